package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/tandem-pd/tandem/internal/tokens"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/pools"
)

const (
	chatPath       = "/v1/chat/completions"
	completionPath = "/v1/completions"
)

// expected is the undisturbed answer: the simulated engines' text is a pure
// function of all tokens so far.
func expected(prompt []uint32, n int) string { return generated(prompt, n, true) }

// generated is expected, past the end of the text where eos is false, as an
// engine goes on that was told to ignore it.
func generated(prompt []uint32, n int, eos bool) string {
	vocab := engine.Vocabulary{Words: tokens.Words(), EOS: tokens.EOS()}
	state := engine.Begin(0).FoldAll(prompt)
	var out []byte
	for range n {
		next := vocab.Next(state, eos)
		if next == tokens.EOS() {
			break
		}
		out = tokens.Sim().Decode(out, []uint32{next})
		state = state.Fold(next)
	}
	return string(out)
}

func chatPrompt(content string) []uint32 {
	return tokens.Sim().EncodeChat(nil, []tokens.Message{{Role: "user", Content: content}})
}

func textPrompt(text string) []uint32 { return tokens.Sim().Encode(nil, text) }

const long = "The quick brown fox jumps over the lazy dog, and the dog, being lazy, lets it pass without a word of complaint. "

// Every way to ask the same question gives the undisturbed answer, whatever
// the workers take as a prompt.
func TestEveryFormOfARequest(t *testing.T) {
	for _, input := range []string{"text", "tokens"} {
		t.Run(input, func(t *testing.T) {
			f := newFleet(t, options{modelInput: input})
			ids := textPrompt(long)
			for _, c := range []struct {
				name, path, body string
				prompt           []uint32
			}{
				{"chat", chatPath, `"messages":[{"role":"user","content":"Hello"}]`, chatPrompt("Hello")},
				{"chat in parts", chatPath, `"messages":[{"role":"user","content":[{"type":"text","text":"Hello"}]}]`, chatPrompt("Hello")},
				{"completion", completionPath, `"prompt":"` + long + `"`, ids},
				{"completion of ids", completionPath, `"prompt":` + strings.ReplaceAll(fmt.Sprint(ids), " ", ","), ids},
				{"completion of a list of one", completionPath, `"prompt":["` + long + `"]`, ids},
			} {
				for _, stream := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s/stream=%v", c.name, stream), func(t *testing.T) {
						body := fmt.Sprintf(`{"model":"tandem-sim","max_tokens":12,"stream":%v,%s}`, stream, c.body)
						a := f.post(c.path, body)
						if a.status != http.StatusOK {
							t.Fatalf("status %d: %s", a.status, a.body)
						}
						if got, want := f.text(a), expected(c.prompt, 12); got != want {
							t.Errorf("text %q, want %q", got, want)
						}
						if a.header.Get("X-Request-Id") == "" {
							t.Error("no x-request-id")
						}
						f.checkShape(a, c.path, stream)
					})
				}
			}
			f.idle()
		})
	}
}

// A chat that sets no limit is as long at a worker that takes tokens as at one
// that takes text: a completion without max_tokens would end after 16.
func TestChatWithoutALimit(t *testing.T) {
	for _, input := range []string{"text", "tokens"} {
		f := newFleet(t, options{modelInput: input, worker: func(c *devfleet.WorkerConfig) { c.Engine.ContextLength = 128 }})
		a := f.post(chatPath, `{"model":"tandem-sim","ignore_eos":true,"messages":[{"role":"user","content":"Hello"}]}`)
		if a.status != http.StatusOK {
			t.Fatalf("%s: status %d: %s", input, a.status, a.body)
		}
		usage := f.parse(a.body).Usage
		if usage == nil || usage.Total != 128 {
			t.Errorf("%s: usage %+v, want the whole context of 128", input, usage)
		}
		f.idle()
	}
}

// A prompt that the client has cut is booked and answered as what is left of it,
// however the workers take it.
func TestTruncatedPrompt(t *testing.T) {
	for _, input := range []string{"text", "tokens"} {
		f := newFleet(t, options{modelInput: input})
		ids := textPrompt(long)
		a := f.post(completionPath, `{"model":"tandem-sim","max_tokens":12,"truncate_prompt_tokens":9,"prompt":"`+long+`"}`)
		if a.status != http.StatusOK {
			t.Fatalf("%s: status %d: %s", input, a.status, a.body)
		}
		if got, want := f.text(a), expected(ids[len(ids)-9:], 12); got != want {
			t.Errorf("%s: text %q, want %q", input, got, want)
		}
		f.idle()
		if !strings.Contains(f.logs.String(), " isl=9 ") {
			t.Errorf("%s: the whole prompt was booked", input)
		}
	}
}

// checkShape checks what OpenAI's API promises of any answer.
func (f *fleet) checkShape(a answer, path string, stream bool) {
	f.t.Helper()
	object := map[string]string{chatPath: "chat.completion", completionPath: "text_completion"}[path]
	prefix := map[string]string{chatPath: "chatcmpl-", completionPath: "cmpl-"}[path]
	if path == chatPath && stream {
		object += ".chunk"
	}
	check := func(c chunk) (finish string) {
		if c.Object != object || !strings.HasPrefix(c.ID, prefix) || c.Model != "tandem-sim" {
			f.t.Errorf("object %q, id %q, model %q", c.Object, c.ID, c.Model)
		}
		for _, ch := range c.Choices {
			if ch.FinishReason != nil {
				finish = *ch.FinishReason
			}
		}
		return finish
	}
	if !stream {
		c := f.parse(a.body)
		if finish := check(c); finish != "length" && finish != "stop" {
			f.t.Errorf("finish_reason %q", finish)
		}
		if u := c.Usage; u == nil || u.Total != u.Prompt+u.Completion || u.Completion < 1 || u.Details == nil {
			f.t.Errorf("usage %+v", c.Usage)
		}
		return
	}
	if n := len(a.events); n < 2 || a.events[n-1] != "[DONE]" {
		f.t.Fatalf("the stream does not end in [DONE]: %q", a.events)
	}
	id, finish := "", ""
	for i, e := range a.events[:len(a.events)-1] {
		c := f.parse([]byte(e))
		if id == "" {
			id = c.ID
		}
		if c.ID != id {
			f.t.Errorf("event %d has id %s, the first %s", i, c.ID, id)
		}
		if got := check(c); got != "" {
			finish = got
		}
		if c.Usage != nil {
			f.t.Error("usage without being asked for")
		}
	}
	if finish != "length" && finish != "stop" {
		f.t.Errorf("finish_reason %q", finish)
	}
	if path == chatPath && !strings.Contains(a.events[0], `"role":"assistant"`) {
		f.t.Errorf("the first event names no role: %s", a.events[0])
	}
}

// The second time a prompt comes, its prefix is found where the first left it,
// and the client is told prefill's count of cached tokens, not decode's.
func TestPrefixIsFoundAgain(t *testing.T) {
	f := newFleet(t, options{})
	prompt := strings.Repeat(long, 8)
	ids := textPrompt(prompt)
	body := `{"model":"tandem-sim","max_tokens":4,"stream":true,"stream_options":{"include_usage":true},` +
		`"nvext":{"extra_fields":["worker_id","timing"]},"prompt":"` + prompt + `"}`
	last := func(a answer) chunk { return f.parse([]byte(a.events[len(a.events)-2])) }
	first := last(f.post(completionPath, body))
	if first.Usage == nil || first.Usage.Prompt != len(ids) || first.Usage.Completion != 4 || first.Usage.Details.Cached != 0 {
		t.Fatalf("first usage %+v", first.Usage)
	}
	if len(first.Choices) != 0 {
		t.Error("the usage event has choices")
	}
	blocks := (len(ids) - 1) / 16
	f.eventually("the index has heard of the prompt", func() bool {
		for _, p := range f.gateway.Fleet.Report() {
			for _, w := range p.Workers {
				if w.ID == first.Nvext.WorkerID.Prefill && w.CachedBlocks >= blocks {
					return true
				}
			}
		}
		return false
	})
	for range 5 {
		again := last(f.post(completionPath, body))
		if got, want := again.Nvext.WorkerID.Prefill, first.Nvext.WorkerID.Prefill; got != want {
			t.Errorf("prefilled on %s, the prefix is on %s", got, want)
		}
		if got := again.Usage.Details.Cached; got != blocks*16 {
			t.Errorf("%d cached tokens, want %d", got, blocks*16)
		}
		for _, name := range []string{"queue_ms", "prefill_ms", "total_ms"} {
			if _, ok := again.Nvext.Timing[name]; !ok {
				t.Errorf("no timing %s", name)
			}
		}
	}
}

func TestStopStringsAndChoices(t *testing.T) {
	f := newFleet(t, options{})
	text := expected(textPrompt(long), 20)
	words := strings.Fields(text)
	stop := words[5]
	want, _, _ := strings.Cut(text, stop)
	for _, stream := range []bool{false, true} {
		a := f.post(completionPath, fmt.Sprintf(`{"model":"tandem-sim","max_tokens":20,"stream":%v,"stop":[%q],"prompt":%q}`, stream, stop, long))
		if got := f.text(a); got != want {
			t.Errorf("stream=%v: %q, want %q, cut before %q", stream, got, want, stop)
		}
	}
	a := f.post(completionPath, fmt.Sprintf(`{"model":"tandem-sim","max_tokens":5,"n":3,"prompt":%q}`, long))
	if c := f.parse(a.body); len(c.Choices) != 3 {
		t.Errorf("n=3 gave %d choices: %s", len(c.Choices), a.body)
	}
	f.idle()
}

// max_completion_tokens is chat's newer name, and holds on both legs.
func TestMaxCompletionTokens(t *testing.T) {
	f := newFleet(t, options{})
	a := f.post(chatPath, `{"model":"tandem-sim","max_completion_tokens":3,"ignore_eos":true,"messages":[{"role":"user","content":"Hi"}]}`)
	if c := f.parse(a.body); c.Usage == nil || c.Usage.Completion != 3 {
		t.Errorf("%s", a.body)
	}
}

// TestBodiesAsEnginesTakeThem: the forms that vLLM answers are answered, and the text is that of the plain form.
func TestBodiesAsEnginesTakeThem(t *testing.T) {
	f := newFleet(t, options{})
	want := expected(textPrompt("hello"), 3)
	for _, body := range []string{
		`{"prompt":"hello","max_tokens":3}`,
		`{"model":null,"prompt":"hello","max_tokens":"3"}`,
		"\ufeff" + `{"model":"","prompt":["hello"],"max_tokens":3.0,"n":"1","temperature":"0.5"}`,
		`{"model":"tandem-sim","prompt":"hello","max_tokens":"+3","stream":"off","stream_options":{"include_usage":1},"ignore_eos":0,"stop_token_ids":["7"]}`,
		`{"model":"tandem-sim","prompt":"hello","max_tokens":3,"stream":1,"stream_options":{"include_usage":"y"},"echo":"no"}`,
		`{"model":"tandem-sim","prompt":"hello","max_tokens":3,"priority":7,"request_id":null,"kv_transfer_params":false,"data_parallel_rank":0}`,
	} {
		if a := f.post(completionPath, body); a.status != http.StatusOK || f.text(a) != want {
			t.Errorf("%s: %d %s", body, a.status, a.body)
		}
	}
	for _, parts := range []string{`"hello"`, `{"type":"text","text":null},"hello",{"type":"text","text":""}`} {
		plain := f.post(chatPath, `{"messages":[{"role":"user","content":"hello"}],"max_tokens":3}`)
		if a := f.post(chatPath, `{"messages":[{"role":"user","content":[`+parts+`]}],"max_tokens":3}`); a.status != http.StatusOK || f.text(a) != f.text(plain) {
			t.Errorf("%s: %d %s", parts, a.status, a.body)
		}
	}
	f.idle()
}

// A pool of role both serves alone.
func TestPoolOfBoth(t *testing.T) {
	f := newFleet(t, options{both: 2})
	a := f.post(completionPath, `{"model":"tandem-sim","max_tokens":8,"nvext":{"extra_fields":["worker_id"]},"prompt":"`+long+`"}`)
	c := f.parse(a.body)
	if f.text(a) != expected(textPrompt(long), 8) || c.Nvext == nil || !strings.HasPrefix(c.Nvext.WorkerID.Decode, "both-") || c.Nvext.WorkerID.Prefill != "" {
		t.Errorf("%s", a.body)
	}
	f.idle()
}

func TestErrorsHaveOneShape(t *testing.T) {
	f := newFleet(t, options{})
	tooLong := strings.Repeat("12,", 262_150)
	for _, c := range []struct {
		name, body  string
		status      int
		code, param string
	}{
		{"unknown model", `{"model":"gpt-9","prompt":"x"}`, 404, "model_not_found", "model"},
		{"over the context by ids", `{"model":"tandem-sim","prompt":[` + tooLong + `12]}`, 400, "context_length_exceeded", "prompt"},
		{"over the context by length alone", `{"model":"tandem-sim","prompt":"` + strings.Repeat("z", 40<<20) + `"}`, 400, "context_length_exceeded", "prompt"},
		{"answer over the context", `{"model":"tandem-sim","prompt":"x","max_tokens":262144}`, 400, "context_length_exceeded", "max_tokens"},
		{"negative max_tokens", `{"model":"tandem-sim","prompt":"x","max_tokens":-1}`, 400, "", "max_tokens"},
		{"empty prompt", `{"model":"tandem-sim","prompt":""}`, 400, "", "prompt"},
		{"forged hand-off", `{"model":"tandem-sim","prompt":"x","kv_transfer_p\u0061rams":{}}`, 400, "", ""},
		{"not JSON", `{"model":`, 400, "invalid_json", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := f.post(completionPath, c.body)
			e := f.parse(a.body).Error
			if a.status != c.status || e == nil || e.Message == "" || e.Type == "" {
				t.Fatalf("status %d: %.300s", a.status, a.body)
			}
			if c.code != "" && (e.Code == nil || *e.Code != c.code) || c.param != "" && (e.Param == nil || *e.Param != c.param) {
				t.Errorf("%.300s", a.body)
			}
			if e.RequestID == "" || e.RequestID != a.header.Get("X-Request-Id") {
				t.Errorf("request id %q in the body, %q in the header", e.RequestID, a.header.Get("X-Request-Id"))
			}
		})
	}
	f.idle()
}

func TestNoPromptInLogs(t *testing.T) {
	f := newFleet(t, options{logLevel: -8})
	const secret = "the launch code is swordfish"
	f.post(chatPath, `{"model":"tandem-sim","max_tokens":4,"messages":[{"role":"user","content":"`+secret+`"}]}`)
	f.post(chatPath, `{"model":"tandem-sim","max_tokens":"`+secret+`","messages":[{"role":"user","content":"`+secret+`"}]}`)
	f.post(completionPath, `{"model":"tandem-sim","max_tokens":300000,"prompt":"`+secret+`"}`)
	f.post(completionPath, `{"model":"nobody","prompt":"`+secret+`"}`)
	log := f.logs.String()
	if !strings.Contains(log, "msg=request") || !strings.Contains(log, "Formula for prefill-") {
		t.Fatalf("the log lacks the request or its formulas:\n%s", log)
	}
	if i := strings.Index(log, "swordfish"); i >= 0 {
		t.Errorf("the log quotes a prompt: …%s…", log[max(0, i-200):i+20])
	}
}

// TestMistakesAreTheClients: a 400 without a code that the flow answers is
// counted as the client's mistake, never as a broken worker.
func TestMistakesAreTheClients(t *testing.T) {
	f := newFleet(t, options{prefill: 1, decode: 2})
	a := f.post("/v1/completions", `{"model":"tandem-sim","prompt":"a","nvext":{"decode_worker_id":"decode-1","backend_instance_id":"decode-2"}}`)
	if a.status != 400 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	f.eventually("the mistake is counted", func() bool {
		return f.value("tandem_frontend_requests_total", "completions", "rejected") == 1
	})
}

// TestNoWorkerYet: before the first worker has joined a model may still come, so
// that the answer is one to ask again after, not a 404; and that caches are
// predicted is logged once, however many workers come, and not of one whose KV events are still to come.
func TestNoWorkerYet(t *testing.T) {
	f := newFleet(t, options{alone: true})
	a := f.post("/v1/completions", `{"model":"tandem-sim","prompt":"a"}`)
	if a.status != http.StatusServiceUnavailable || !strings.Contains(string(a.body), `"no_worker"`) || a.header.Get("Retry-After") < "5" {
		t.Errorf("%d, Retry-After %q: %s", a.status, a.header.Get("Retry-After"), a.body)
	}
	for i, id := range []string{"publishes", "one", "two"} {
		w := pools.Worker{
			ID: id, Incarnation: "1", Model: "m", Role: pools.Both, Engine: "vllm", Address: "http://127.0.0.1:1",
			BlockSize: 16, DataParallelRanks: 1, ModelInput: "text",
		}
		if i == 0 {
			w.KVEvents, w.KVEndpoint = "zmq", "tcp://127.0.0.1:1"
		}
		if err := f.gateway.Roster.Put(w); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(f.logs.String(), "are predicted from where prompts are sent"); n != min(i, 1) {
			t.Errorf("%s: logged %d times that caches are predicted, want %d", id, n, min(i, 1))
		}
	}
	if a := f.post("/v1/completions", `{"model":"tandem-sim","prompt":"a"}`); a.status != http.StatusNotFound {
		t.Errorf("with workers of another model: %d, want 404", a.status)
	}
	if err := f.gateway.Roster.Put(pools.Worker{
		ID: "three", Incarnation: "1", Model: "n", Role: pools.Both, Engine: "vllm", Address: "http://127.0.0.1:1", BlockSize: 16, DataParallelRanks: 1, ModelInput: "text",
	}); err != nil {
		t.Fatal(err)
	}
	if a := f.post("/v1/completions", `{"prompt":"a"}`); a.status != http.StatusBadRequest || !strings.Contains(string(a.body), `"param":"model"`) {
		t.Errorf("of two models none is named: %d %s", a.status, a.body)
	}
}
