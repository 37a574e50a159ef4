package engines

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/internal/kvevents/wire"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/engine"
)

// tensorRTConnectors are the two ways in which TensorRT-LLM hands over.
var tensorRTConnectors = []string{"trtllm", "trtllm-gen-first"}

// newTensorRT is a fleet of strict TensorRT-LLM workers that hand over by a connector.
func newTensorRT(t *testing.T, connector string, o fleet.Options) *fleet.Fleet {
	t.Helper()
	worker := o.Worker
	o.Worker = func(c *devfleet.WorkerConfig) {
		c.Engine.Engine, c.Engine.Connector, c.Engine.NoticeAfter = "trtllm", connector, 50*time.Millisecond
		if worker != nil {
			worker(c)
		}
	}
	return fleet.New(t, o)
}

// ofTheHandOff are words of the hand-off that no client may see.
var ofTheHandOff = []string{"disaggregated_params", "encoded_opaque_state", "ctx_request_id", "prompt_token_ids"}

// leaks names what an answer shows of the hand-off.
func leaks(a fleet.Answer) string {
	all := string(a.Body) + strings.Join(a.Events, "")
	for _, word := range ofTheHandOff {
		if strings.Contains(all, word) {
			return word
		}
	}
	return ""
}

// Every form of a request is answered by a pair as by one undisturbed engine; nothing of the hand-off reaches the client,
// and nothing stays on a worker.
func TestTensorRTAnswers(t *testing.T) {
	for _, connector := range tensorRTConnectors {
		t.Run(connector, func(t *testing.T) {
			f := newTensorRT(t, connector, fleet.Options{Prefill: 1, Decode: 1})
			tools := `"tools":[{"type":"function","function":{"name":"look","parameters":{}}}],"tool_choice":"required",`
			for _, c := range []struct {
				name, path, body string
				prompt           []uint32
				tokens           int
			}{
				{"chat", fleet.ChatPath, `"max_tokens":12,"messages":[{"role":"user","content":"Hello"}]`, fleet.ChatPrompt("Hello"), 12},
				{"chat with both limits and tools", fleet.ChatPath,
					tools + `"max_tokens":3,"max_completion_tokens":9,"messages":[{"role":"user","content":"Hello"}]`,
					fleet.ChatPrompt("Hello"), 9},
				{"chat with what no model of the engine knows", fleet.ChatPath,
					`"max_tokens":12,"store":true,"x":1,"messages":[{"role":"user","content":"Hello"}]`, fleet.ChatPrompt("Hello"), 12},
				{"completion", fleet.CompletionPath, `"max_tokens":12,"prompt":"` + fleet.Long + `"`, fleet.TextPrompt(fleet.Long), 12},
				{"completion with the limit of chats", fleet.CompletionPath,
					`"max_tokens":12,"max_completion_tokens":5,"prompt":"` + fleet.Long + `"`, fleet.TextPrompt(fleet.Long), 12},
				{"one token", fleet.CompletionPath, `"max_tokens":1,"prompt":"` + fleet.Long + `"`, fleet.TextPrompt(fleet.Long), 1},
			} {
				for _, stream := range []bool{false, true} {
					a := f.Post(c.path, fmt.Sprintf(`{"model":"tandem-sim","stream":%v,"nvext":{"extra_fields":["worker_id"]},%s}`,
						stream, c.body))
					if a.Status != http.StatusOK || f.Text(a) != fleet.Expected(c.prompt, c.tokens) || leaks(a) != "" {
						t.Errorf("%s, stream %v: %d %s %q", c.name, stream, a.Status, a.Body, a.Events)
						continue
					}
					if all := string(a.Body) + strings.Join(a.Events, ""); !strings.Contains(all,
						`"prefill_worker_id":"prefill-1","decode_worker_id":"decode-1"`) {
						t.Errorf("%s, stream %v: not by the pair: %s", c.name, stream, all)
					}
				}
			}
			f.Idle()
		})
	}
}

// A client that leaves while decode has not asked for the KV yet: decode asks all the same, and the context worker lets
// go long before its time-out. Streamed or not.
func TestTensorRTClientLeavesBeforeDecodeAttaches(t *testing.T) {
	for _, stream := range []bool{true, false} {
		fleet.VirtualRun(t, fmt.Sprint("stream ", stream), func(t *testing.T) {
			f := newTensorRT(t, "trtllm", fleet.Options{Prefill: 1, Decode: 1, Worker: func(c *devfleet.WorkerConfig) {
				if c.Engine.Role == "decode" {
					c.Engine.MaxNumSeqs, c.Engine.Speedup = 1, 2
				}
			}})
			// The gateway does not know of the one place, so that the second request waits in the engine.
			record := f.Workers["decode-1"].Record()
			record.MaxNumSeqs, record.Connector = 0, "trtllm"
			f.Put(record)
			var all sync.WaitGroup
			defer all.Wait()
			other, stop := context.WithCancel(t.Context())
			defer stop()
			all.Go(func() {
				_, _ = f.Try(other, fleet.CompletionPath, `{"model":"tandem-sim","max_tokens":100000,"ignore_eos":true,`+
					`"stream":true,"prompt":"x"}`, nil)
			})
			decode := func() engine.Books { return f.Workers["decode-1"].Engine.Books() }
			f.Eventually("decode is full", func() bool { return decode().Running == 1 })
			ctx, leave := context.WithCancel(t.Context())
			all.Go(func() {
				_, _ = f.Try(ctx, fleet.CompletionPath, fmt.Sprintf(`{"model":"tandem-sim","max_tokens":50,"stream":%v,`+
					`"prompt":"%s"}`, stream, fleet.Long), nil)
			})
			f.Eventually("it waits at decode", func() bool { return decode().Waiting == 1 })
			leave()
			<-time.After(300 * time.Millisecond) // the engine looks for clients that left each 50 ms
			if decode().Waiting != 1 || len(f.Workers["prefill-1"].Engine.Books().Pinned) != 1 {
				t.Fatalf("it was cut off before it had asked: %s", f.Books())
			}
			stop() // and decode has room
			f.Idle()
		})
	}
}

// A pair that was given by URL alone is asked what it is, and hands over either way; its KV events arrive in
// TensorRT-LLM's form and end in overlaps of chats.
func TestTensorRTByURL(t *testing.T) {
	for _, connector := range tensorRTConnectors {
		t.Run(connector, func(t *testing.T) {
			cfg := fleet.GatewayConfig()
			cfg.Events.RetryMin, cfg.Events.RetryMax = 5*time.Millisecond, 100*time.Millisecond
			var pair []*fleet.Stock
			for _, role := range []string{"prefill", "decode"} {
				s := fleet.NewStock(t, engine.Config{Engine: "trtllm", Role: role, ID: role, Speedup: 50,
					NoticeAfter: 50 * time.Millisecond}, wire.TensorRT, "kv")
				pair = append(pair, s)
				cfg.Workers.Static = append(cfg.Workers.Static, s.Endpoint(t, ",block-size=16,connector="+connector+s.Published()))
			}
			f := fleet.NewStatic(t, cfg)
			for _, s := range pair {
				f.Launch(s)
			}
			f.Followed("prefill", "decode")
			w, ok := f.Gateway.Roster.Lookup("prefill")
			assert.True(t, ok && w.Worker.Engine == "trtllm" && w.Worker.EngineVersion != "" && len(w.Worker.TransferIDs) == 1,
				"the worker's own record: %+v", w)
			messages := `{"role":"user","content":"` + strings.Repeat(fleet.Long, 4) + `"}`
			for turn := range 3 {
				a := f.Good(fleet.ChatPath, `{"model":"tandem-sim","max_tokens":6,"nvext":{"extra_fields":["worker_id","routing"]},`+
					`"messages":[`+messages+`]}`)
				served := f.Parse(a.Body)
				cached := served.Usage.Details.Cached
				if turn > 0 && (cached < 64 || !strings.Contains(string(a.Body), fmt.Sprintf(`"predicted_cached_tokens":%d`, cached))) {
					t.Errorf("turn %d: the engine had %d tokens: %s", turn, cached, a.Body)
				}
				messages += `,{"role":"assistant","content":"` + f.Text(a) + `"},{"role":"user","content":"and?"}`
				known := served.Usage.Prompt / 16
				f.Eventually("the turn is known", func() bool { return f.Sources()["prefill"].Blocks >= known })
			}
			f.Idle()
		})
	}
}
