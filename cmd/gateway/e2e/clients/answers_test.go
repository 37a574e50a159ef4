package clients

import (
	"fmt"
	"net/http"
	"os"
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
				{"chat in parts", fleet.ChatPath, `"messages":[{"role":"user","content":[{"type":"text","text":"Hello"}]}]`,
					fleet.ChatPrompt("Hello")},
				{"completion", fleet.CompletionPath, `"prompt":"` + fleet.Long + `"`, ids},
				{"completion of ids", fleet.CompletionPath, `"prompt":` + strings.ReplaceAll(fmt.Sprint(ids), " ", ","), ids},
				{"completion of a list of one", fleet.CompletionPath, `"prompt":["` + fleet.Long + `"]`, ids},
			} {
				for _, stream := range []bool{false, true} {
					t.Run(fmt.Sprintf("%s/stream=%v", c.name, stream), func(t *testing.T) {
						body := fmt.Sprintf(`{"model":"tandem-sim","max_tokens":12,"stream":%v,%s}`, stream, c.body)
						a := f.Good(c.path, body)
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
		a := f.Good(fleet.ChatPath, `{"model":"tandem-sim","ignore_eos":true,"messages":[{"role":"user","content":"Hello"}]}`)
		usage := f.Parse(a.Body).Usage
		if usage == nil || usage.Total != 128 {
			t.Errorf("%s: usage %+v, want the whole context of 128", input, usage)
		}
		f.Idle()
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
		`{"model":"tandem-sim","prompt":"hello","max_tokens":"+3","stream":"off","stream_options":{"include_usage":1},` +
			`"ignore_eos":0,"stop_token_ids":["7"]}`,
		`{"model":"tandem-sim","prompt":"hello","max_tokens":3,"stream":1,"stream_options":{"include_usage":"y"},"echo":"no"}`,
		`{"model":"tandem-sim","prompt":"hello","max_tokens":3,"priority":7,"request_id":null,"kv_transfer_params":false,` +
			`"data_parallel_rank":0}`,
	} {
		if a := f.Post(fleet.CompletionPath, body); a.Status != http.StatusOK || f.Text(a) != want {
			t.Errorf("%s: %d %s", body, a.Status, a.Body)
		}
	}
	for _, parts := range []string{`"hello"`, `{"type":"text","text":null},"hello",{"type":"text","text":""}`} {
		plain := f.Post(fleet.ChatPath, `{"messages":[{"role":"user","content":"hello"}],"max_tokens":3}`)
		if a := f.Post(fleet.ChatPath, `{"messages":[{"role":"user","content":[`+parts+`]}],`+
			`"max_tokens":3}`); a.Status != http.StatusOK || f.Text(a) != f.Text(plain) {
			t.Errorf("%s: %d %s", parts, a.Status, a.Body)
		}
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
		f.Put(w)
		if n := strings.Count(f.Logs.String(), "are predicted from where prompts are sent"); n != min(i, 1) {
			t.Errorf("%s: logged %d times that caches are predicted, want %d", id, n, min(i, 1))
		}
	}
	if a := f.Post("/v1/completions", `{"model":"tandem-sim","prompt":"a"}`); a.Status != http.StatusNotFound {
		t.Errorf("with workers of another model: %d, want 404", a.Status)
	}
	f.Put(pools.Worker{
		ID: "three", Incarnation: "1", Model: "n", Role: pools.Both, Engine: "vllm", Address: "http://127.0.0.1:1", BlockSize: 16,
		DataParallelRanks: 1, ModelInput: "text",
	})
	if a := f.Post("/v1/completions", `{"prompt":"a"}`); a.Status != http.StatusBadRequest ||
		!strings.Contains(string(a.Body), `"param":"model"`) {
		t.Errorf("of two models none is named: %d %s", a.Status, a.Body)
	}
}

func TestMain(m *testing.M) { os.Exit(fleet.Main(m)) }
