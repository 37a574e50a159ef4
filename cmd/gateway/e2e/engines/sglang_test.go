package engines

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/lab/fleet"
	"github.com/tandem-pd/tandem/pools"
)

// sglangFleet is a gateway that is given SGLang workers by URL and role alone: all else it learns from their
// server_info.
func sglangFleet(t *testing.T, prefill, decode int, change func(c *devfleet.WorkerConfig),
	gateway func(c *stack.GatewayConfig)) *fleet.Fleet {
	t.Helper()
	cfg := fleet.GatewayConfig()
	cfg.Events.RetryMin, cfg.Events.RetryMax = 5*time.Millisecond, 100*time.Millisecond
	if gateway != nil {
		gateway(&cfg)
	}
	var workers []*fleet.Stock
	for role, n := range map[pools.Role]int{pools.Prefill: prefill, pools.Decode: decode} {
		for i := range n {
			s := fleet.NewStock(t, engine.Config{Engine: "sglang", Role: string(role), ID: fmt.Sprintf("%s-%d", role, i+1),
				Speedup: 50, TotalKVBlocks: 40_000}, 0, "kv-events")
			if change != nil {
				change(&s.WorkerConfig)
			}
			workers = append(workers, s)
			cfg.Workers.Static = append(cfg.Workers.Static, s.Endpoint(t, ""))
		}
	}
	f := fleet.NewStatic(t, cfg)
	for _, s := range workers {
		f.Launch(s)
	}
	f.Eventually("the fleet is healthy, and its caches are followed", func() bool {
		live := 0
		for _, s := range f.Sources() {
			if s.State == "live" && s.Transport == "zmq" {
				live++
			}
		}
		return live == prefill+decode && f.Status("/health") == http.StatusOK
	})
	return f
}

// freed waits until the engines hold nothing, and no longer than an abort takes: SGLang notices only after 4 s that a
// caller has left.
func freed(f *fleet.Fleet, t *testing.T, what string) {
	t.Helper()
	began := time.Now()
	f.Eventually(what+": the engines hold nothing", func() bool {
		for _, w := range f.Workers {
			if books := w.Engine.Books(); !books.Idle() {
				return false
			}
		}
		return true
	})
	assert.LessOrEqual(t, time.Since(began), 2*time.Second, "%s: the engines held something for", what)
	f.Idle()
}

// A pair answers every form of a request as one undisturbed engine does, with what prefill's cache held as cached.
func TestSGLangPairsAnswerAsOneEngine(t *testing.T) {
	fleet.Virtual(t, func(t *testing.T) {
		f := sglangFleet(t, 1, 1, nil, nil)
		one := fleet.NewStock(t, engine.Config{Engine: "sglang", Role: "both", ID: "alone", Speedup: 50}, 0, "")
		one.KVEvents.Off = true
		f.Launch(one)
		alone := &fleet.Fleet{T: t, URL: "http://" + addressOf(one)} // without a gateway
		alone.Healthy()
		const tools = `,"tools":[{"type":"function","function":{"name":"look","parameters":{}}}],"tool_choice":"required"`
		for name, c := range map[string]struct{ path, body string }{
			"completion": {fleet.CompletionPath, `"prompt":%q,"max_tokens":20`},
			"token ids": {fleet.CompletionPath, `"prompt":[5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24],"user":%q,` +
				`"max_tokens":20`},
			"no limit":    {fleet.CompletionPath, `"prompt":%q`},
			"one token":   {fleet.CompletionPath, `"prompt":%q,"max_tokens":1`},
			"two tokens":  {fleet.CompletionPath, `"prompt":%q,"max_tokens":2`},
			"stop string": {fleet.CompletionPath, `"prompt":%q,"max_tokens":50,"ignore_eos":true,"stop":[" a"," the"," e"]`},
			"chat":        {fleet.ChatPath, `"messages":[{"role":"user","content":%q}],"max_tokens":20`},
			"thought": {fleet.ChatPath, `"messages":[{"role":"user","content":%q}],"max_tokens":20,` +
				`"chat_template_kwargs":{"enable_thinking":true}`},
			"tool call": {fleet.ChatPath, `"messages":[{"role":"user","content":%q}],"max_tokens":20` + tools},
			"ends at once": {fleet.ChatPath, `"messages":[{"role":"user","content":` + fmt.Sprintf("%q",
				endsAtOnce()) + `}],"user":%q,"max_tokens":20`},
		} {
			fleet.Within(t, name, func(t *testing.T) {
				for _, stream := range []string{`,"stream":false`, `,"stream":true,"stream_options":{"include_usage":true}`} {
					body := `{"model":"tandem-sim",` + fmt.Sprintf(c.body, strings.Repeat(name+" "+fleet.Long, 2)) + stream + `}`
					want, got := f.Read(alone.Post(c.path, body)), f.Read(f.Post(c.path, body))
					assert.True(t, got.Cached >= 0 && (stream == `,"stream":false` || got.Cached == want.Cached),
						"%d cached tokens, one engine had %d", got.Cached, want.Cached)
					if want.Cached = got.Cached; got != want {
						t.Errorf("got  %+v\nwant %+v", got, want)
					}
				}
			})
		}
		freed(f, t, "at the end")
	})
}

// Decode workers that keep a prefix cache report it, and events of what is in it: the next turn goes where the last
// was.
func TestSGLangConversationsStayAtTheirDecodeWorker(t *testing.T) {
	var published sync.Map
	f := sglangFleet(t, 1, 3, func(w *devfleet.WorkerConfig) {
		w.Engine.DecodeRadixCache = w.Engine.Role == "decode"
		n := new(atomic.Uint64)
		published.Store(w.Engine.ID, n)
		w.KVEvents.Alter = func(events []wire.Event) []wire.Event { n.Add(1); return events }
	}, nil)
	homes := map[int]string{}
	for turn := 1; turn <= 3; turn++ {
		for conversation := range 6 {
			var prompt strings.Builder
			for i := range turn * 160 {
				fmt.Fprintf(&prompt, ",%d", 3+(conversation*31+i*7)%200)
			}
			r := f.Nvext(f.Good(fleet.CompletionPath, `{"model":"tandem-sim","max_tokens":2,"nvext":{"extra_fields":["routing"]},"prompt":[`+
				prompt.String()[1:]+`]}`)).Routing
			f.Idle()
			f.Eventually("what came of it is known", func() bool {
				for id, s := range f.Sources() {
					if n, _ := published.Load(id); s.Seq != n.(*atomic.Uint64).Load() {
						return false
					}
				}
				return true
			})
			if turn == 1 {
				homes[conversation] = r.Decode.Worker
			}
			if want := (turn - 1) * 10; r.Decode.Worker != homes[conversation] || r.Decode.Overlap != want {
				t.Errorf("turn %d of %d is at %s for %d blocks, want %s for %d",
					turn, conversation, r.Decode.Worker, r.Decode.Overlap, homes[conversation], want)
			}
		}
	}
}

// A client that leaves frees both workers at once, in every phase: aborts do not wait for the engines to notice.
func TestSGLangClientsLeave(t *testing.T) {
	const words = `{"model":"tandem-sim","max_tokens":4000,"ignore_eos":true,"stream":%t,"prompt":%q}`
	for _, stream := range []bool{true, false} {
		for phase, c := range map[string]struct {
			change func(c *devfleet.WorkerConfig)
			prompt string
			there  func(p, d engine.Books) bool
		}{
			"prefill computes": {func(c *devfleet.WorkerConfig) { c.Engine.Speedup = .05 }, strings.Repeat(fleet.Long, 40),
				func(p, d engine.Books) bool { return p.Running == 1 && d.Transferring == 1 }},
			"the hand-off": {func(c *devfleet.WorkerConfig) { c.Engine.Speedup, c.Engine.TransferSetup = 1, time.Minute },
				fleet.Long, func(p, d engine.Books) bool { return len(p.Pinned) == 1 && d.Transferring == 1 }},
			"decode": {func(c *devfleet.WorkerConfig) { c.Engine.Speedup = 1 }, fleet.Long,
				func(_, d engine.Books) bool { return d.Running == 1 }},
		} {
			fleet.VirtualRun(t, fmt.Sprintf("%s/stream=%t", phase, stream), func(t *testing.T) {
				f := sglangFleet(t, 1, 1, c.change, nil)
				ctx, leave := context.WithCancel(t.Context())
				gone := make(chan struct{})
				go func() {
					defer close(gone)
					_, _ = f.Try(ctx, fleet.CompletionPath, fmt.Sprintf(words, stream, c.prompt), nil)
				}()
				f.Eventually("it has come so far", func() bool {
					return c.there(f.Workers["prefill-1"].Engine.Books(), f.Workers["decode-1"].Engine.Books())
				})
				leave()
				<-gone
				freed(f, t, phase)
			})
		}
	}
}

// Two gateways with one seed, and one that starts again, never send two requests to one room.
func TestSGLangRoomsOfSeveralGateways(t *testing.T) {
	f := sglangFleet(t, 2, 2, nil, nil)
	gateways := []*fleet.Fleet{f}
	for range 2 {
		other := fleet.New(t, fleet.Options{Alone: true}) // with the same seed
		for _, role := range []pools.Role{pools.Prefill, pools.Decode} {
			for _, m := range f.Gateway.Roster.Snapshot(stack.SimModel, role).Members {
				w := *m.Worker
				w.KVEvents, w.KVEndpoint, w.KVReplay, w.KVTopic = "none", "", "", ""
				other.Put(w)
			}
		}
		other.Eventually("it is healthy", func() bool { return other.Status("/health") == http.StatusOK })
		gateways = append(gateways, other)
	}
	var all sync.WaitGroup
	for g, gateway := range gateways {
		for n := range 40 {
			all.Go(func() {
				prompt := fmt.Sprintf("%d of %d: %s", n, g, fleet.Long)
				a, err := gateway.Try(context.Background(), fleet.CompletionPath,
					fmt.Sprintf(`{"model":"tandem-sim","max_tokens":10,"stream":true,"prompt":%q}`, prompt), nil)
				if err != nil || a.Status != http.StatusOK {
					t.Errorf("%v, %d %s", err, a.Status, a.Body)
				} else if got := gateway.Text(a); got != fleet.Expected(fleet.TextPrompt(prompt), 10) {
					t.Errorf("%q got another request's answer: %q", prompt, got)
				}
			})
		}
	}
	all.Wait()
	freed(f, t, "at the end")
}

// A prefill worker whose bootstrap server no decode worker reaches costs its requests an attempt, and is soon left out;
// every request is answered.
func TestSGLangPrefillThatDecodeCannotReach(t *testing.T) {
	fleet.Virtual(t, func(t *testing.T) {
		f := sglangFleet(t, 2, 2, nil, nil)
		m, _ := f.Gateway.Roster.Lookup("prefill-1")
		cut := *m.Worker
		cut.Transfer, cut.Incarnation = fmt.Sprintf("127.0.0.1:%d", fleet.FreePort(t)), "cut"
		require.NoError(t, f.Gateway.Roster.From("the command line").Put(cut))
		for n := range 40 {
			prompt := fmt.Sprintf("%d: %s", n, fleet.Long)
			a := f.Post(fleet.CompletionPath, fmt.Sprintf(`{"model":"tandem-sim","max_tokens":10,"prompt":%q}`, prompt))
			assert.True(t, a.Status == http.StatusOK && f.Text(a) == fleet.Expected(fleet.TextPrompt(prompt), 10),
				"%d %s", a.Status, a.Body)
		}
		logs := f.Logs.String()
		if n := strings.Count(logs, "class=engine_error"); n == 0 || n > 12 {
			t.Errorf("%d attempts failed", n)
		}
		if !strings.Contains(logs, `msg="circuit open" worker=prefill-1 leg=prefill`) ||
			strings.Contains(logs, `msg="circuit open" worker=prefill-2`) {
			t.Error("not the prefill worker that is to blame was left out")
		}
		freed(f, t, "at the end")
	})
}
