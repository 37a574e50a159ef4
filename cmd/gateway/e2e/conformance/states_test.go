//go:build engines

package conformance

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/handoff"
)

// tokens is what a streamed completion brought.
type tokens struct {
	ids    []uint32
	text   string
	finish string
	failed string // the error of the stream, empty for none
}

// stream sends a completion for prompt, n tokens long, and calls each with what has come so far.
func stream(ctx context.Context, base string, prompt []uint32, n int, each func(t *tokens)) (t tokens, err error) {
	return streamAt(ctx, base, "", prompt, n, each)
}

// streamAt is stream at a decode worker of a gateway; "" for any.
func streamAt(ctx context.Context, base, worker string, prompt []uint32, n int, each func(t *tokens)) (t tokens, err error) {
	ids, err := json.Marshal(prompt)
	if err != nil {
		return t, err
	}
	body := fmt.Sprintf(`{"model":"tiny","prompt":%s,"max_tokens":%d,"temperature":0,"ignore_eos":true,"stream":true,"return_token_ids":true}`, ids, n)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+completionPath, strings.NewReader(body))
	if err != nil {
		return t, err
	}
	req.Header.Set("Content-Type", "application/json")
	if worker != "" {
		req.Header.Set(handoff.HeaderWorker, worker)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return t, err
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK {
		var text bytes.Buffer
		_, err := text.ReadFrom(res.Body)
		t.failed = res.Status + " " + text.String()
		return t, err
	}
	s := bufio.NewScanner(res.Body)
	for s.Scan() {
		data, ok := bytes.CutPrefix(s.Bytes(), []byte("data: "))
		if !ok || string(data) == "[DONE]" {
			continue
		}
		var e struct {
			Choices []struct {
				Text     string
				TokenIDs []uint32 `json:"token_ids"`
				Finish   string   `json:"finish_reason"`
			}
			Error *struct{ Message string }
		}
		if err := json.Unmarshal(data, &e); err != nil {
			return t, fmt.Errorf("%s: %w", data, err)
		}
		if e.Error != nil {
			t.failed = e.Error.Message
		}
		for _, c := range e.Choices {
			t.ids, t.text, t.finish = append(t.ids, c.TokenIDs...), t.text+c.Text, t.finish+c.Finish
		}
		if each != nil {
			each(&t)
		}
	}
	return t, s.Err()
}

// promptOf is a prompt of its own for each i, of ids that any of the vocabularies has.
func promptOf(i, length int) []uint32 {
	p := make([]uint32, length)
	for k := range p {
		p[k] = uint32(300 + (i*7919+k*k*31)%3000)
	}
	return p
}

// load is a number of streams at once.
type load struct {
	first, length, out int // the first prompt's number, tokens of each prompt and answer
	got                []tokens
	begun              atomic.Int32 // streams that have brought early tokens, or have ended
	all                sync.WaitGroup
}

// early is how many tokens a stream has brought when it counts as begun.
const early = 8

// begin starts n streams.
func begin(t *testing.T, base string, first, n, length, out int) *load {
	l := &load{first: first, length: length, out: out, got: make([]tokens, n)}
	for i := range n {
		l.all.Go(func() {
			once := sync.OnceFunc(func() { l.begun.Add(1) })
			defer once()
			var err error
			l.got[i], err = stream(t.Context(), base, promptOf(first+i, length), out, func(s *tokens) {
				if len(s.ids) >= early {
					once()
				}
			})
			assert.NoError(t, err, "stream %d", i)
		})
	}
	return l
}

// streaming waits until all streams have begun.
func (l *load) streaming(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool { return int(l.begun.Load()) == len(l.got) }, 5*time.Minute, 5*time.Millisecond)
}

// equal waits for the streams' ends. Each must be what the engine gives alone for the prompt, or, since bf16 breaks near ties
// by how many sequences are computed at once, and by whether a token was generated or is part of the prompt, of tokens that
// the engine itself takes for the most likely ones. It returns how many were of the first and of the second kind.
func (r *rig) equal(t *testing.T, l *load) (same, ties int) {
	t.Helper()
	l.all.Wait()
	for i, g := range l.got {
		if !assert.Empty(t, g.failed, "stream %d", i) || !assert.Len(t, g.ids, l.out, "stream %d", i) {
			continue
		}
		assert.Equal(t, "length", g.finish, "stream %d", i)
		prompt := promptOf(l.first+i, l.length)
		want, err := stream(t.Context(), r.alone.URL, prompt, l.out, nil)
		require.NoError(t, err)
		if slices.Equal(want.ids, g.ids) {
			if assert.Equal(t, want.text, g.text, "stream %d", i) {
				same++
			}
			continue
		}
		worst, at, err := r.behind(t.Context(), append(slices.Clone(prompt), g.ids...), len(prompt))
		require.NoError(t, err)
		if assert.LessOrEqual(t, worst, tie, "stream %d: token %d is less likely than the most likely one, by nats", i, at) {
			ties++
		}
	}
	return same, ties
}

// resumed waits for the streams' ends as equal does, and records how many went on well after what was done to their worker.
func (r *rig) resumed(t *testing.T, what string, l *load) {
	t.Helper()
	same, ties := r.equal(t, l)
	r.found(t, what, "%d of %d, %d by near ties", same+ties, len(l.got), ties)
}

// tie is how many nats a token may be less likely than the most likely one: logits of up to 16 in bf16 are 1/16 apart, and
// two are compared.
const tie = 2. / 16

// behind asks the engine how likely it takes each token from position first on, and returns by how many nats the worst one
// is behind the most likely one at its place, and its place.
func (r *rig) behind(ctx context.Context, ids []uint32, first int) (worst float64, at int, err error) {
	list, err := json.Marshal(ids)
	if err != nil {
		return 0, 0, err
	}
	path, body := completionPath, fmt.Sprintf(`{"model":"tiny","prompt":%s,"max_tokens":1,"prompt_logprobs":1}`, list)
	if r.Kind == "sglang" {
		path, body = "/generate", fmt.Sprintf(`{"input_ids":%s,"sampling_params":{"max_new_tokens":1},"return_logprob":true,"logprob_start_len":0,"top_logprobs_num":1}`, list)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.alone.URL+path, strings.NewReader(body))
	if err != nil {
		return 0, 0, err
	}
	req.Header.Set("Content-Type", "application/json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = res.Body.Close() }()
	var a struct {
		Choices []struct {
			Logprobs []map[string]struct{ Logprob float64 } `json:"prompt_logprobs"`
		}
		Meta struct {
			Token [][]any   `json:"input_token_logprobs"`
			Top   [][][]any `json:"input_top_logprobs"`
		} `json:"meta_info"`
	}
	if err := json.NewDecoder(res.Body).Decode(&a); err != nil {
		return 0, 0, err
	}
	for i := first; i < len(ids); i++ {
		var token, top float64
		switch {
		case len(a.Choices) == 1 && len(a.Choices[0].Logprobs) == len(ids):
			all := a.Choices[0].Logprobs[i] // the token's, and the most likely one's
			token = all[fmt.Sprint(ids[i])].Logprob
			top = token
			for _, one := range all {
				top = max(top, one.Logprob)
			}
		case len(a.Meta.Token) == len(ids) && len(a.Meta.Top) == len(ids):
			token, _ = a.Meta.Token[i][0].(float64)
			top, _ = a.Meta.Top[i][0][0].(float64)
		default:
			return 0, 0, fmt.Errorf("%s has no log-probabilities of its prompt: status %d, %d and %d", path, res.StatusCode, len(a.Choices),
				len(a.Meta.Token))
		}
		if top-token > worst {
			worst, at = top-token, i
		}
	}
	return worst, at, nil
}

// idle waits until engines hold nothing: no request runs or waits, and no KV is in use but what is cached.
func (r *rig) idle(t *testing.T, es ...*Engine) {
	t.Helper()
	names := []string{"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc"}
	if r.Kind == "sglang" {
		names = []string{"sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:num_prefill_inflight_queue_reqs",
			"sglang:num_prefill_bootstrap_queue_reqs",
			"sglang:num_decode_prealloc_queue_reqs", "sglang:num_decode_transfer_queue_reqs", "sglang:kv_used_tokens"}
	}
	var held []string
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		held = nil
		for _, e := range es {
			for _, name := range names {
				var err error
				v := e.Metric(t.Context(), name, &err)
				require.NoError(c, err)
				if v != 0 {
					held = append(held, fmt.Sprintf("%s: %s %v", e.Name, name, v))
				}
			}
		}
		assert.Empty(c, held)
	}, 2*time.Minute, 200*time.Millisecond, "what engines still hold")
}

// pair serves with prefill and both decode workers. Prompts go through both legs, though a hand-off is slower here than decode's own
// prefill would be.
func (r *rig) pair(t *testing.T, name string, args ...string) (*Gateway, string) {
	g := r.serve(t, name, []*Engine{r.prefill, r.decode, r.second}, append(args, "--no-decode-fallback")...)
	return g, g.URL
}

// streams is how many are cut at once.
func streams() int {
	if testing.Short() {
		return 6
	}
	return 20
}

// clientsLeave has clients leave in each phase: at once, and after 1 to 12 tokens. Nothing is held for them.
func (r *rig) clientsLeave(t *testing.T) {
	_, url := r.pair(t, "gateway-leave")
	var all sync.WaitGroup
	for i := range 2 * streams() {
		all.Go(func() {
			ctx, leave := context.WithCancel(t.Context())
			if i%2 == 1 {
				ctx, leave = context.WithTimeout(t.Context(), time.Duration(i)*15*time.Millisecond)
			}
			defer leave()
			s, err := stream(ctx, url, promptOf(1000+i, 200), 400, func(s *tokens) {
				if len(s.ids) > i%12 {
					leave()
				}
			})
			assert.Error(t, err, "stream %d of a client that leaves ended with %d tokens, %q", i, len(s.ids), s.failed)
		})
	}
	all.Wait()
	r.idle(t, r.prefill, r.decode, r.second)
	r.equal(t, begin(t, url, 2000, 4, 48, 24))
	r.found(t, "clients that leave in each phase, and hold nothing", "%d", 2*streams())
}

// decodeKilled kills one of two decode workers in the middle of streams. Each goes on at the other one. Started again, the
// worker serves again.
func (r *rig) decodeKilled(t *testing.T) {
	g, url := r.pair(t, "gateway-killed")
	out := 160
	if testing.Short() {
		out = 80
	}
	l := begin(t, url, 3000, streams(), 48, out)
	l.streaming(t)
	require.NoError(t, r.decode.Kill())
	r.resumed(t, "streams resumed after `kill -9` of a decode worker", l)
	require.NoError(t, r.decode.Again())
	ready(t, r.decode)
	require.NoError(t, g.Await(t.Context(), 3))
	r.equal(t, begin(t, url, 3000, streams(), 48, 24))
	r.idle(t, r.prefill, r.decode, r.second)
}

// speculating kills a decode worker that speculates by n-grams, so that an event brings several tokens.
func (r *rig) speculating(t *testing.T) {
	if r.Kind != "vllm" {
		return // SGLang has no speculation on a CPU
	}
	es := r.launch(t, Spec{Name: "speculating", Role: "decode", Args: []string{"--speculative-config",
		`{"method":"ngram","num_speculative_tokens":3,"prompt_lookup_max":3,"prompt_lookup_min":1}`}})
	url := r.serve(t, "gateway-speculating", []*Engine{r.prefill, es[0], r.second}).URL
	l := begin(t, url, 7000, streams(), 48, 160)
	l.streaming(t)
	require.NoError(t, es[0].Kill())
	r.resumed(t, "streams resumed after `kill -9` of a decode worker that speculates", l)
}

// templates compares chats with a server whose template and defaults the gateway does not have.
func (r *rig) templates(t *testing.T) {
	if r.Kind != "vllm" {
		return // SGLang's defaults are its template's
	}
	es := r.launch(t, Spec{Name: "templated", Model: "tiny-thinking",
		Args: []string{"--default-chat-template-kwargs", `{"thinking":true}`}})
	var rows []row
	for range 8 { // the gateway compares its rendering with the first ones
		for _, x := range table(r.Kind, real) {
			if strings.HasPrefix(x.name, "chat messages") || strings.HasPrefix(x.name, "chat add_generation_prompt") {
				rows = append(rows, x)
			}
		}
	}
	_, unexplained := conform(t, http.DefaultClient, r.Kind, es[0].URL, rows, []target{{"whole", r.serve(t, "gateway-templated", es).URL}})
	r.found(t, "chats with another template and defaults than the gateway's", "%d, %d unexplained", len(rows), unexplained)
	require.NoError(t, es[0].Kill())
}

// decodeFrozen stops one of two decode workers in the middle of streams, as a machine that hangs. Each goes on at the other
// one after --stream-idle-timeout. The worker serves again when it goes on.
func (r *rig) decodeFrozen(t *testing.T) {
	g, url := r.pair(t, "gateway-frozen", "--stream-idle-timeout", "15s")
	l := begin(t, url, 4000, streams(), 48, 160)
	l.streaming(t)
	require.NoError(t, r.decode.Signal(syscall.SIGSTOP))
	r.resumed(t, "streams resumed after SIGSTOP of a decode worker", l)
	require.NoError(t, r.decode.Signal(syscall.SIGCONT))
	require.NoError(t, g.Await(t.Context(), 3))
	r.equal(t, begin(t, url, 4000, 6, 48, 24))
	r.idle(t, r.prefill, r.decode, r.second)
}

// prefillKilled kills the only prefill worker while it computes. Answers are the engine's, or the error is typed: with vLLM
// decode computes the prompts itself, SGLang's decode workers cannot. Started again, prefill serves again.
func (r *rig) prefillKilled(t *testing.T) {
	g := r.serve(t, "gateway-prefill", []*Engine{r.prefill, r.decode, r.second})
	url := g.URL
	l := begin(t, url, 5000, 8, 1200, 16)
	require.Eventually(t, func() bool {
		var err error
		running := r.prefill.Metric(t.Context(),
			map[string]string{"vllm": "vllm:num_requests_running", "sglang": "sglang:num_running_reqs"}[r.Kind], &err)
		return err == nil && running > 0 || l.begun.Load() > 0
	}, time.Minute, time.Millisecond)
	noticed := r.notice(t)
	require.NoError(t, r.prefill.Kill())
	l.all.Wait()
	served, typed := 0, 0
	for i, s := range l.got {
		switch {
		case s.failed == "":
			served++
		case r.Kind == "sglang" && (strings.HasPrefix(s.failed, "503 ") || strings.HasPrefix(s.failed, "502 ")):
			typed++
		default:
			t.Errorf("stream %d: %s", i, s.failed)
		}
	}
	r.found(t, "answers after `kill -9` of the only prefill worker", "%d of %d, %d got a typed error", served, len(l.got), typed)
	noticed()
	require.NoError(t, r.prefill.Again())
	ready(t, r.prefill)
	require.NoError(t, g.Await(t.Context(), 3))
	r.equal(t, begin(t, url, 5100, 6, 48, 24))
	r.idle(t, r.prefill, r.decode, r.second)
}

// notice returns a func that waits until decode workers have noticed that prefill, which is alive now, is gone: started again before that,
// SGLang's is not found (see docs/engines.md).
func (r *rig) notice(t *testing.T) func() {
	deaths := func(e *Engine) int {
		log, err := os.ReadFile(e.Log)
		require.NoError(t, err)
		return bytes.Count(log, []byte("Lost connection with prefill"))
	}
	was := [2]int{deaths(r.decode), deaths(r.second)}
	return func() {
		for i, e := range []*Engine{r.decode, r.second} {
			require.Eventually(t, func() bool { return r.Kind == "vllm" || deaths(e) > was[i] }, 2*time.Minute, 100*time.Millisecond, e.Name)
		}
	}
}

// drained drains a decode worker in the middle of streams: each answer is whole, and the worker is free at the end.
func (r *rig) drained(t *testing.T) {
	_, url := r.pair(t, "gateway-drained")
	l := begin(t, url, 6000, 12, 48, 160)
	l.streaming(t)
	res, err := http.Post(url+"/workers/decode-1/drain", "application/json", nil)
	require.NoError(t, err)
	require.NoError(t, res.Body.Close())
	require.Equal(t, http.StatusOK, res.StatusCode)
	same, ties := r.equal(t, l)
	r.idle(t, r.prefill, r.decode, r.second)
	r.found(t, "whole streams while their decode worker drains", "%d of %d", same+ties, len(l.got))
}
