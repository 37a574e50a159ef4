package clients

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/pools"
)

// Every way to ask the same question gives the undisturbed answer, whatever
// the workers take as a prompt.
func TestEveryFormOfARequest(t *testing.T) {
	for _, input := range []string{"text", "tokens"} {
		t.Run(input, func(t *testing.T) {
			f := fleet.New(t, fleet.Options{ModelInput: input})
			ids := fleet.TextPrompt(fleet.Long)
			for _, c := range []struct {
				name, path, body string
				prompt           []uint32
			}{
				{"chat", fleet.ChatPath, `"messages":[{"role":"user","content":"Hello"}]`, fleet.ChatPrompt("Hello")},
				{"chat in parts", fleet.ChatPath, `"messages":[{"role":"user","content":[{"type":"text","text":"Hello"}]}]`, fleet.ChatPrompt("Hello")},
				{"completion", fleet.CompletionPath, `"prompt":"` + fleet.Long + `"`, ids},
				{"completion of ids", fleet.CompletionPath, `"prompt":` + strings.ReplaceAll(fmt.Sprint(ids), " ", ","), ids},
				{"completion of a list of one", fleet.CompletionPath, `"prompt":["` + fleet.Long + `"]`, ids},
			} {
				for _, stream := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s/stream=%v", c.name, stream), func(t *testing.T) {
						body := fmt.Sprintf(`{"model":"tandem-sim","max_tokens":12,"stream":%v,%s}`, stream, c.body)
						a := f.Post(c.path, body)
						if a.Status != http.StatusOK {
							t.Fatalf("status %d: %s", a.Status, a.Body)
						}
						if got, want := f.Text(a), fleet.Expected(c.prompt, 12); got != want {
							t.Errorf("text %q, want %q", got, want)
						}
						if a.Header.Get("X-Request-Id") == "" {
							t.Error("no x-request-id")
						}
						f.CheckShape(a, c.path, stream)
					})
				}
			}
			f.Idle()
		})
	}
}

// A chat that sets no limit is as long at a worker that takes tokens as at one
// that takes text: a completion without max_tokens would end after 16.
func TestChatWithoutALimit(t *testing.T) {
	for _, input := range []string{"text", "tokens"} {
		f := fleet.New(t, fleet.Options{ModelInput: input, Worker: func(c *devfleet.WorkerConfig) { c.Engine.ContextLength = 128 }})
		a := f.Post(fleet.ChatPath, `{"model":"tandem-sim","ignore_eos":true,"messages":[{"role":"user","content":"Hello"}]}`)
		if a.Status != http.StatusOK {
			t.Fatalf("%s: status %d: %s", input, a.Status, a.Body)
		}
		usage := f.Parse(a.Body).Usage
		if usage == nil || usage.Total != 128 {
			t.Errorf("%s: usage %+v, want the whole context of 128", input, usage)
		}
		f.Idle()
	}
}

// A prompt that the client has cut is booked and answered as what is left of it,
// however the workers take it.
func TestTruncatedPrompt(t *testing.T) {
	for _, input := range []string{"text", "tokens"} {
		f := fleet.New(t, fleet.Options{ModelInput: input})
		ids := fleet.TextPrompt(fleet.Long)
		a := f.Post(fleet.CompletionPath, `{"model":"tandem-sim","max_tokens":12,"truncate_prompt_tokens":9,"prompt":"`+fleet.Long+`"}`)
		if a.Status != http.StatusOK {
			t.Fatalf("%s: status %d: %s", input, a.Status, a.Body)
		}
		if got, want := f.Text(a), fleet.Expected(ids[len(ids)-9:], 12); got != want {
			t.Errorf("%s: text %q, want %q", input, got, want)
		}
		f.Idle()
		if !strings.Contains(f.Logs.String(), " isl=9 ") {
			t.Errorf("%s: the whole prompt was booked", input)
		}
	}
}

// The second time a prompt comes, its prefix is found where the first left it,
// and the client receives prefill's count of cached tokens, not decode's.
func TestPrefixIsFoundAgain(t *testing.T) {
	f := fleet.New(t, fleet.Options{})
	prompt := strings.Repeat(fleet.Long, 8)
	ids := fleet.TextPrompt(prompt)
	body := `{"model":"tandem-sim","max_tokens":4,"stream":true,"stream_options":{"include_usage":true},` +
		`"nvext":{"extra_fields":["worker_id","timing"]},"prompt":"` + prompt + `"}`
	last := func(a fleet.Answer) fleet.Chunk { return f.Parse([]byte(a.Events[len(a.Events)-2])) }
	first := last(f.Post(fleet.CompletionPath, body))
	if first.Usage == nil || first.Usage.Prompt != len(ids) || first.Usage.Completion != 4 || first.Usage.Details.Cached != 0 {
		t.Fatalf("first usage %+v", first.Usage)
	}
	if len(first.Choices) != 0 {
		t.Error("the usage event has choices")
	}
	blocks := (len(ids) - 1) / 16
	f.Eventually("the index has heard of the prompt", func() bool {
		for _, p := range f.Gateway.Fleet.Report() {
			for _, w := range p.Workers {
				if w.ID == first.Nvext.WorkerID.Prefill && w.CachedBlocks >= blocks {
					return true
				}
			}
		}
		return false
	})
	for range 5 {
		again := last(f.Post(fleet.CompletionPath, body))
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
	f := fleet.New(t, fleet.Options{})
	text := fleet.Expected(fleet.TextPrompt(fleet.Long), 20)
	words := strings.Fields(text)
	stop := words[5]
	want, _, _ := strings.Cut(text, stop)
	for _, stream := range []bool{false, true} {
		a := f.Post(fleet.CompletionPath, fmt.Sprintf(`{"model":"tandem-sim","max_tokens":20,"stream":%v,"stop":[%q],"prompt":%q}`, stream, stop, fleet.Long))
		if got := f.Text(a); got != want {
			t.Errorf("stream=%v: %q, want %q, cut before %q", stream, got, want, stop)
		}
	}
	a := f.Post(fleet.CompletionPath, fmt.Sprintf(`{"model":"tandem-sim","max_tokens":5,"n":3,"prompt":%q}`, fleet.Long))
	if c := f.Parse(a.Body); len(c.Choices) != 3 {
		t.Errorf("n=3 gave %d choices: %s", len(c.Choices), a.Body)
	}
	f.Idle()
}

// max_completion_tokens is chat's newer name, and holds on both legs.
func TestMaxCompletionTokens(t *testing.T) {
	f := fleet.New(t, fleet.Options{})
	a := f.Post(fleet.ChatPath, `{"model":"tandem-sim","max_completion_tokens":3,"ignore_eos":true,"messages":[{"role":"user","content":"Hi"}]}`)
	if c := f.Parse(a.Body); c.Usage == nil || c.Usage.Completion != 3 {
		t.Errorf("%s", a.Body)
	}
}

// TestBodiesAsEnginesTakeThem: the forms that vLLM answers are answered, and the text is that of the plain form.
func TestBodiesAsEnginesTakeThem(t *testing.T) {
	f := fleet.New(t, fleet.Options{})
	want := fleet.Expected(fleet.TextPrompt("hello"), 3)
	for _, body := range []string{
		`{"prompt":"hello","max_tokens":3}`,
		`{"model":null,"prompt":"hello","max_tokens":"3"}`,
		"\ufeff" + `{"model":"","prompt":["hello"],"max_tokens":3.0,"n":"1","temperature":"0.5"}`,
		`{"model":"tandem-sim","prompt":"hello","max_tokens":"+3","stream":"off","stream_options":{"include_usage":1},"ignore_eos":0,"stop_token_ids":["7"]}`,
		`{"model":"tandem-sim","prompt":"hello","max_tokens":3,"stream":1,"stream_options":{"include_usage":"y"},"echo":"no"}`,
		`{"model":"tandem-sim","prompt":"hello","max_tokens":3,"priority":7,"request_id":null,"kv_transfer_params":false,"data_parallel_rank":0}`,
	} {
		if a := f.Post(fleet.CompletionPath, body); a.Status != http.StatusOK || f.Text(a) != want {
			t.Errorf("%s: %d %s", body, a.Status, a.Body)
		}
	}
	for _, parts := range []string{`"hello"`, `{"type":"text","text":null},"hello",{"type":"text","text":""}`} {
		plain := f.Post(fleet.ChatPath, `{"messages":[{"role":"user","content":"hello"}],"max_tokens":3}`)
		if a := f.Post(fleet.ChatPath, `{"messages":[{"role":"user","content":[`+parts+`]}],"max_tokens":3}`); a.Status != http.StatusOK || f.Text(a) != f.Text(plain) {
			t.Errorf("%s: %d %s", parts, a.Status, a.Body)
		}
	}
	f.Idle()
}

// A pool of role both serves alone.
func TestPoolOfBoth(t *testing.T) {
	f := fleet.New(t, fleet.Options{Both: 2})
	a := f.Post(fleet.CompletionPath, `{"model":"tandem-sim","max_tokens":8,"nvext":{"extra_fields":["worker_id"]},"prompt":"`+fleet.Long+`"}`)
	c := f.Parse(a.Body)
	if f.Text(a) != fleet.Expected(fleet.TextPrompt(fleet.Long), 8) || c.Nvext == nil || !strings.HasPrefix(c.Nvext.WorkerID.Decode, "both-") || c.Nvext.WorkerID.Prefill != "" {
		t.Errorf("%s", a.Body)
	}
	f.Idle()
}

func TestErrorsHaveOneShape(t *testing.T) {
	f := fleet.New(t, fleet.Options{})
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
			a := f.Post(fleet.CompletionPath, c.body)
			e := f.Parse(a.Body).Error
			if a.Status != c.status || e == nil || e.Message == "" || e.Type == "" {
				t.Fatalf("status %d: %.300s", a.Status, a.Body)
			}
			if c.code != "" && (e.Code == nil || *e.Code != c.code) || c.param != "" && (e.Param == nil || *e.Param != c.param) {
				t.Errorf("%.300s", a.Body)
			}
			if e.RequestID == "" || e.RequestID != a.Header.Get("X-Request-Id") {
				t.Errorf("request id %q in the body, %q in the header", e.RequestID, a.Header.Get("X-Request-Id"))
			}
		})
	}
	f.Idle()
}

func TestNoPromptInLogs(t *testing.T) {
	f := fleet.New(t, fleet.Options{LogLevel: -8})
	const secret = "the launch code is swordfish"
	f.Post(fleet.ChatPath, `{"model":"tandem-sim","max_tokens":4,"messages":[{"role":"user","content":"`+secret+`"}]}`)
	f.Post(fleet.ChatPath, `{"model":"tandem-sim","max_tokens":"`+secret+`","messages":[{"role":"user","content":"`+secret+`"}]}`)
	f.Post(fleet.CompletionPath, `{"model":"tandem-sim","max_tokens":300000,"prompt":"`+secret+`"}`)
	f.Post(fleet.CompletionPath, `{"model":"nobody","prompt":"`+secret+`"}`)
	log := f.Logs.String()
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
	f := fleet.New(t, fleet.Options{Prefill: 1, Decode: 2})
	a := f.Post("/v1/completions", `{"model":"tandem-sim","prompt":"a","nvext":{"decode_worker_id":"decode-1","backend_instance_id":"decode-2"}}`)
	if a.Status != 400 {
		t.Fatalf("%d %s", a.Status, a.Body)
	}
	f.Eventually("the mistake is counted", func() bool {
		return f.Value("tandem_frontend_requests_total", "completions", "rejected") == 1
	})
}

// TestNoWorkerYet: before the first worker has joined a model may still come, so
// that the answer is one to ask again after, not a 404; and that caches are
// predicted is logged once, however many workers come, and not of one whose KV events are still to come.
func TestNoWorkerYet(t *testing.T) {
	f := fleet.New(t, fleet.Options{Alone: true})
	a := f.Post("/v1/completions", `{"model":"tandem-sim","prompt":"a"}`)
	if a.Status != http.StatusServiceUnavailable || !strings.Contains(string(a.Body), `"no_worker"`) || a.Header.Get("Retry-After") < "5" {
		t.Errorf("%d, Retry-After %q: %s", a.Status, a.Header.Get("Retry-After"), a.Body)
	}
	for i, id := range []string{"publishes", "one", "two"} {
		w := pools.Worker{
			ID: id, Incarnation: "1", Model: "m", Role: pools.Both, Engine: "vllm", Address: "http://127.0.0.1:1",
			BlockSize: 16, DataParallelRanks: 1, ModelInput: "text",
		}
		if i == 0 {
			w.KVEvents, w.KVEndpoint = "zmq", "tcp://127.0.0.1:1"
		}
		if err := f.Gateway.Roster.Put(w); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(f.Logs.String(), "are predicted from where prompts are sent"); n != min(i, 1) {
			t.Errorf("%s: logged %d times that caches are predicted, want %d", id, n, min(i, 1))
		}
	}
	if a := f.Post("/v1/completions", `{"model":"tandem-sim","prompt":"a"}`); a.Status != http.StatusNotFound {
		t.Errorf("with workers of another model: %d, want 404", a.Status)
	}
	if err := f.Gateway.Roster.Put(pools.Worker{
		ID: "three", Incarnation: "1", Model: "n", Role: pools.Both, Engine: "vllm", Address: "http://127.0.0.1:1", BlockSize: 16, DataParallelRanks: 1, ModelInput: "text",
	}); err != nil {
		t.Fatal(err)
	}
	if a := f.Post("/v1/completions", `{"prompt":"a"}`); a.Status != http.StatusBadRequest || !strings.Contains(string(a.Body), `"param":"model"`) {
		t.Errorf("of two models none is named: %d %s", a.Status, a.Body)
	}
}
