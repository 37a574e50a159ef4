//go:build engines

package conformance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// believer compares what the gateway predicts to be cached with what the engine reports.
type believer struct {
	t              *testing.T
	r              *rig
	url            string // the gateway's
	asked, differs int
	last           routing // of the last answer
}

// routing is nvext.routing of an answer.
type routing struct {
	Predicted int    `json:"predicted_cached_tokens"`
	Actual    *int   `json:"actual_cached_tokens"`
	Source    string `json:"prompt_tokens_source"`
	Decode    struct {
		Worker  string `json:"worker_id"`
		Overlap int    `json:"overlap_blocks"`
	}
	prompt int // tokens, of the usage
}

// quiet waits until the views of the gateway have not changed for half a second: the events of what was asked are in.
func (b *believer) quiet() {
	b.t.Helper()
	var before any
	since := time.Now()
	require.Eventually(b.t, func() bool {
		var now struct {
			Events map[string][]struct {
				Worker string
				Seq    uint64
				Blocks int
			} `json:"kv_events"`
		}
		if Get(b.t.Context(), b.url+"/workers", &now) != nil {
			return false
		}
		if !reflect.DeepEqual(before, now.Events) {
			before, since = now.Events, time.Now()
		}
		return time.Since(since) > 500*time.Millisecond
	}, time.Minute, 50*time.Millisecond)
}

// ask sends a request and compares. It returns the cached tokens, and the answer's text.
func (b *believer) ask(name, path, body string) (cached int, text string) {
	b.t.Helper()
	res, err := http.Post(b.url+path, "application/json", strings.NewReader(put(body, "nvext", `{"extra_fields":["routing"]}`)))
	require.NoError(b.t, err)
	answer, err := io.ReadAll(res.Body)
	require.NoError(b.t, err)
	require.NoError(b.t, res.Body.Close())
	require.Equal(b.t, http.StatusOK, res.StatusCode, "%s: %s", name, answer)
	var a struct {
		Choices []struct {
			Text    string
			Message struct{ Content string }
		}
		Usage struct {
			Prompt  int `json:"prompt_tokens"`
			Details struct {
				Cached int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		}
		Nvext struct{ Routing routing }
	}
	require.NoError(b.t, json.NewDecoder(bytes.NewReader(answer)).Decode(&a))
	b.quiet()
	b.last = a.Nvext.Routing
	b.last.prompt = a.Usage.Prompt
	require.NotNil(b.t, b.last.Actual, "%s: %s", name, answer)
	assert.Equal(b.t, *b.last.Actual, a.Usage.Details.Cached, "%s: the usage's cached tokens", name)
	b.asked++
	if *b.last.Actual != b.last.Predicted {
		b.differs++
		b.t.Logf("%s: %d tokens were predicted to be cached, and %d were (tokens from: %s)",
			name, b.last.Predicted, *b.last.Actual, b.last.Source)
	}
	return *b.last.Actual, a.Choices[0].Text + a.Choices[0].Message.Content
}

// part is a subtest: each of its predictions must be right, but for as many as may differ.
func (r *rig) part(t *testing.T, name, url string, mayDiffer int, run func(b *believer)) {
	t.Run(name, func(t *testing.T) {
		b := &believer{t: t, r: r, url: url}
		b.quiet()
		run(b)
		r.found(t, "predicted = cached tokens, "+name, "%d of %d", b.asked-b.differs, b.asked)
		require.NotZero(t, b.asked)
		assert.LessOrEqual(t, b.differs, mayDiffer)
	})
}

func words(i, n int) string {
	var s strings.Builder
	for k := range n {
		fmt.Fprintf(&s, "word%d-%d ", i, k*k%97)
	}
	return s.String()
}

func completionOf(model, prompt string) string {
	return fmt.Sprintf(`{"model":"%s","max_tokens":2,"prompt":"%s"}`, model, prompt)
}

// conversation asks turn by turn, with the answers of the model in between.
func (b *believer) conversation(i, turns int) {
	messages, before := "", 0
	for turn := range turns {
		if turn > 0 {
			messages += ","
		}
		messages += fmt.Sprintf(`{"role":"user","content":"%s"}`, words(100*i+turn, 60))
		cached, text := b.ask(fmt.Sprintf("conversation %d, turn %d", i, turn), chatPath,
			`{"model":"tiny","max_tokens":4,"temperature":0,"messages":[`+messages+`]}`)
		if turn > 0 {
			assert.GreaterOrEqual(b.t, cached, before, "conversation %d, turn %d", i, turn)
		}
		before = cached
		messages += `,` + put(`{"role":"assistant"}`, "content", quoted(text))
	}
}

func quoted(text string) string {
	out, err := json.Marshal(text)
	if err != nil {
		panic(err)
	}
	return string(out)
}

// common asks what any cache must get right: conversations, prompts that begin alike, salts.
func (b *believer) common() {
	for i := range 2 {
		b.conversation(i, 4)
	}
	for i := range 4 {
		b.ask(fmt.Sprint("beginning alike ", i), completionPath, completionOf("tiny", words(7, 200)+words(50+i, 40)))
	}
	for i, salt := range []string{`"a"`, `"b"`, `"a"`, `"b"`, `null`} {
		cached, _ := b.ask("salt "+salt, completionPath, put(completionOf("tiny", words(8, 120)), "cache_salt", salt))
		if i < 2 {
			assert.Zero(b.t, cached, "salt %s", salt)
		}
	}
}

// events compares predictions with what a whole worker and a pair report: at first, after the cache was cleared, after the
// engine was started again, and after the gateway was away.
func (r *rig) events(t *testing.T) {
	_, pair := r.pair(t, "gateway-events-pair")
	r.part(t, "pair", pair, 0, (*believer).common)
	g := r.serve(t, "gateway-events", []*Engine{r.alone})
	r.part(t, "whole", g.URL, 0, (*believer).common)
	if testing.Short() {
		return
	}
	// One: vLLM queues that its cache was cleared (reset_prefix_cache of 0.32's v1/core/block_pool.py), and publishes it with its next step.
	late := map[string]int{"vllm": 1}[r.Kind]
	r.part(t, "cleared", g.URL, late, func(b *believer) {
		r.clearCache(t, r.alone)
		b.quiet()
		b.conversation(0, 3)
		r.viewIsPool(t, g.URL, r.alone, 0)
	})
	r.part(t, "started again", g.URL, 0, func(b *believer) {
		require.NoError(t, r.alone.Kill())
		require.NoError(t, r.alone.Again())
		ready(t, r.alone)
		require.NoError(t, g.Await(t.Context(), 1))
		b.quiet()
		b.conversation(0, 3)
	})
	g.Close()
	for i := range 3 { // what the gateway does not see
		_, err := stream(t.Context(), r.alone.URL, promptOf(9000+i, 200), 4, nil)
		require.NoError(t, err)
	}
	again := r.serve(t, "gateway-events-again", []*Engine{r.alone})
	r.part(t, "gateway away", again.URL, 0, func(b *believer) {
		for i := range 3 {
			assert.NotZero(t, b.askIDs(promptOf(9000+i, 200)))
		}
		b.conversation(0, 4)
	})
}

// otherCaches compares with caches that are too small for what is asked, that have adapters, and that are hybrid.
func (r *rig) otherCaches(t *testing.T) {
	small := Spec{Name: "small", Args: []string{"--max-total-tokens", "4096"}}
	if r.Kind == "vllm" {
		small.Args = []string{"--num-gpu-blocks-override", "40", "--max-model-len", "4096", "--enable-lora", "--max-lora-rank", "8",
			"--lora-modules", "adapter=" + r.Models + "/lora"}
	}
	es := r.launch(t, small)
	g := r.serve(t, "gateway-small", es)
	r.part(t, "evictions", g.URL, 3, func(b *believer) { // of 110 that were tried by hand, vLLM evicted 3 after the choice
		for round := range 2 {
			for i := range 18 {
				b.ask(fmt.Sprintf("round %d, prompt %d", round, i), completionPath, completionOf("tiny", words(i%6, 40)+words(100+i, 80)))
			}
		}
		r.viewIsPool(t, g.URL, es[0], 0)
	})
	if r.Kind != "vllm" {
		return // adapters and hybrid caches of SGLang need kernels that no CPU has
	}
	r.part(t, "adapters", g.URL, 0, func(b *believer) {
		for _, model := range []string{"tiny", "adapter", "tiny", "adapter"} {
			b.ask("model "+model, completionPath, completionOf(model, words(300, 150)))
		}
	})
	require.NoError(t, es[0].Kill())
	es = r.launch(t, Spec{Name: "hybrid", Model: "tiny-gemma3"})
	hybrid := r.serve(t, "gateway-hybrid", es)
	// One: the first prompt's sliding-window layers keep the blocks before its end alone (reachable_block_mask of vLLM 0.32's
	// v1/core/single_type_kv_cache_manager.py), so that the second one finds nothing of a beginning that is cached in full.
	r.part(t, "hybrid", hybrid.URL, 1, func(b *believer) {
		b.common()
		r.viewIsPool(t, hybrid.URL, es[0], 5)
	})
	require.NoError(t, es[0].Kill())
}
