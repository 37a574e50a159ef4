package engines

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/internal/upstream"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/zmqpub"
	"github.com/tandem-pd/tandem/pools"
)

// vllmConnectors are the connectors of which prefill's KV has to be released if decode never fetches it.
var vllmConnectors = []string{"vllm-nixl", "vllm-nixl-push", "vllm-mooncake", "vllm-multi"}

// speaking makes a fleet's workers vLLM's, strict, with a connector.
func speaking(t *testing.T, connector string, o fleet.Options) fleet.Options {
	more, dir := o.Worker, ""
	if connector == "lmcache" {
		dir = t.TempDir()
	}
	o.Worker = func(c *devfleet.WorkerConfig) {
		c.Engine.Engine, c.Engine.Connector, c.Engine.Store = "vllm", connector, dir
		if more != nil {
			more(c)
		}
	}
	return o
}

// Decode finds in the store what prefill has computed, whichever worker that is, and computes what the store has lost.
func TestLMCacheStore(t *testing.T) {
	f := fleet.New(t, speaking(t, "lmcache", fleet.Options{Prefill: 1, Decode: 2}))
	prompt := strings.Repeat(fleet.Long, 40)
	ids := fleet.TextPrompt(prompt)
	for range 3 {
		for _, stream := range []bool{false, true} {
			a := f.Post(fleet.CompletionPath, fmt.Sprintf(`{"model":"tandem-sim","max_tokens":8,"stream":%v,"nvext":{"extra_fields":["worker_id"]},"prompt":"%s"}`, stream, prompt))
			if a.Status != http.StatusOK || f.Text(a) != fleet.Expected(ids, 8) || !strings.Contains(string(a.Body)+strings.Join(a.Events, ""), `"prefill-1"`) {
				t.Fatalf("%d %s %v", a.Status, a.Body, a.Events)
			}
		}
	}
	f.Idle()
	// The first request of a decode worker loads all full chunks. Its own cache has the rest of what is asked for again.
	if got, want := takenOver(f), len(ids)/256*256; got < want || got%want != 0 {
		t.Errorf("decode took over %d tokens, want %d or as many again", got, want)
	}
}

// takenOver counts the prompt tokens of which decode engines got the KV from elsewhere.
func takenOver(f *fleet.Fleet) (n int) {
	f.T.Helper()
	for id, w := range f.Workers {
		if !strings.HasPrefix(id, "decode") {
			continue
		}
		res, err := f.HTTP().Get(w.Record().Address + "/metrics")
		if err != nil {
			f.T.Fatal(err)
		}
		lines := bufio.NewScanner(res.Body)
		for lines.Scan() {
			if text, ok := strings.CutPrefix(lines.Text(), "vllm:external_prefix_cache_hits_total{"); ok {
				_, value, _ := strings.Cut(text, "} ")
				tokens, err := strconv.ParseFloat(value, 64)
				if err != nil {
					f.T.Fatal(err)
				}
				n += int(tokens)
			}
		}
		_ = res.Body.Close()
	}
	return n
}

// Through every connector answers are the undisturbed ones, prefill computes the prompt and decode takes it over.
func TestVLLMConnectorsAnswer(t *testing.T) {
	for _, name := range vllmConnectors {
		fleet.VirtualRun(t, name, func(t *testing.T) {
			f := fleet.New(t, speaking(t, name, fleet.Options{Prefill: 1, Decode: 1}))
			for i, c := range []struct {
				path, body string
				prompt     []uint32
			}{
				{fleet.ChatPath, `"messages":[{"role":"user","content":"Hello"}]`, fleet.ChatPrompt("Hello")},
				{fleet.CompletionPath, `"prompt":"` + fleet.Long + `"`, fleet.TextPrompt(fleet.Long)},
			} {
				for _, stream := range []bool{false, true} {
					a := f.Post(c.path, fmt.Sprintf(`{"model":"tandem-sim","max_tokens":12,"stream":%v,"nvext":{"extra_fields":["worker_id"]},%s}`, stream, c.body))
					if got, want := f.Text(a), fleet.Expected(c.prompt, 12); a.Status != http.StatusOK || got != want {
						t.Fatalf("%d: status %d, text %q, want %q", i, a.Status, got, want)
					}
					f.CheckShape(a, c.path, stream)
					if all := string(a.Body) + strings.Join(a.Events, ""); !strings.Contains(all, `"prefill_worker_id":"prefill-1"`) {
						t.Errorf("%d: prefill did not run: %s", i, all)
					}
				}
			}
			f.Idle() // had decode not fetched the blocks, prefill would hold them still
			if got, least := takenOver(f), len(fleet.TextPrompt(fleet.Long))-1+len(fleet.ChatPrompt("Hello"))-1; got < least {
				t.Errorf("decode took over %d tokens, want %d at least", got, least)
			}
		})
	}
}

// A client that leaves frees both engines, in every phase and with every connector; what is being transferred, at its end or its lease's.
func TestVLLMConnectorsWhenClientsLeave(t *testing.T) {
	for _, name := range vllmConnectors {
		for _, c := range []struct {
			phase   string
			options fleet.Options
			prompt  string
			there   func(f *fleet.Fleet) bool
		}{
			{"prefill", fleet.Options{Speedup: .005}, strings.Repeat(fleet.Long, 10), func(f *fleet.Fleet) bool { return f.Engines("prefill") == fleet.Clients }},
			{
				"transfer", fleet.Options{Speedup: 1, Worker: func(c *devfleet.WorkerConfig) {
					c.Engine.TransferSetup = fleet.Transfers / fleet.Clients
					if name == "vllm-nixl-push" { // what decode has not asked for when its client leaves stays for the lease, see TestMatrix
						c.Engine.Lease = fleet.Transfers
					}
				}}, fleet.Long,
				func(f *fleet.Fleet) bool {
					return f.Transferring() > fleet.Clients/2 && f.Engines("prefill") == 0
				},
			},
			{"streaming", fleet.Options{Speedup: 1}, fleet.Long, func(f *fleet.Fleet) bool { return f.Started() >= fleet.Clients }},
		} {
			fleet.VirtualRun(t, name+"/"+c.phase, func(t *testing.T) {
				fleet.LeaveAtOnce(t, fleet.New(t, speaking(t, name, c.options)), c.phase, c.prompt, c.there)
			})
		}
	}
}

// legEditor changes the calls of one leg, the first n of them.
type legEditor struct {
	upstream.Transport
	leg  pools.Role
	left *atomic.Int64
	with func(ctx context.Context, leg *upstream.Leg) error
}

func (m legEditor) Call(ctx context.Context, leg upstream.Leg) (upstream.Stream, error) {
	if leg.Purpose == string(m.leg) && m.left.Add(-1) >= 0 {
		if err := m.with(ctx, &leg); err != nil {
			return nil, err
		}
	}
	return m.Transport.Call(ctx, leg)
}

// editing puts a legEditor into a fleet's gateway.
func editing(leg pools.Role, n int64, with func(f **fleet.Fleet, ctx context.Context, leg *upstream.Leg) error) (fleet.Options, **fleet.Fleet) {
	var f *fleet.Fleet
	left := new(atomic.Int64)
	left.Store(n)
	return fleet.Options{Prefill: 1, Decode: 2, Gateway: func(c *stack.GatewayConfig) {
		c.WrapTransport = func(next upstream.Transport) upstream.Transport {
			return legEditor{next, leg, left, func(ctx context.Context, leg *upstream.Leg) error { return with(&f, ctx, leg) }}
		}
	}}, &f
}

// kept counts the prompts whose KV engines keep for decode.
func keptBy(f *fleet.Fleet) (n int) {
	for _, w := range f.Workers {
		b := w.Engine.Books()
		n += len(b.Pinned)
	}
	return n
}

// A decode worker that is gone when prefill has finished costs no answer, and prefill's KV is released at once, though the engines'
// own time limits are 30 s and 480 s; for NixlPushConnector there is nothing but its lease.
func TestVLLMConnectorsWhenDecodeIsGone(t *testing.T) {
	for _, name := range vllmConnectors {
		fleet.VirtualRun(t, name, func(t *testing.T) {
			o, at := editing(pools.Decode, 1, func(f **fleet.Fleet, ctx context.Context, _ *upstream.Leg) error {
				for keptBy((*f)) == 0 && ctx.Err() == nil {
					<-time.After(time.Millisecond)
				}
				return errors.New("the connection broke")
			})
			if name == "vllm-nixl-push" {
				o.Worker = func(c *devfleet.WorkerConfig) { c.Engine.Lease = time.Second }
			}
			f := fleet.New(t, speaking(t, name, o))
			*at = f
			a := f.Post(fleet.CompletionPath, `{"model":"tandem-sim","max_tokens":8,"prompt":"`+fleet.Long+`"}`)
			if a.Status != http.StatusOK || f.Text(a) != fleet.Expected(fleet.TextPrompt(fleet.Long), 8) {
				t.Errorf("%d %s", a.Status, a.Body)
			}
			f.Idle()
		})
	}
}

// A request that prefill's engine refuses is the client's to hear of, with no byte of decode before it, and decode holds nothing
// of it: a decode engine that waited would do so for 480 s, or until it is started again.
func TestVLLMConnectorsWhenPrefillRefuses(t *testing.T) {
	for _, name := range vllmConnectors {
		fleet.VirtualRun(t, name, func(t *testing.T) {
			o, at := editing(pools.Prefill, 1000, func(_ **fleet.Fleet, _ context.Context, leg *upstream.Leg) error {
				leg.Body = upstream.Body{[]byte(`{"model":"tandem-sim","prompt":"x","temperature":-1}`)}
				return nil
			})
			f := fleet.New(t, speaking(t, name, o))
			*at = f
			begin := time.Now()
			a := f.Post(fleet.CompletionPath, `{"model":"tandem-sim","max_tokens":8,"stream":true,"prompt":"`+fleet.Long+`"}`)
			if a.Status != http.StatusBadRequest || !strings.Contains(string(a.Body), "temperature") {
				t.Errorf("%d %s %v", a.Status, a.Body, a.Events)
			}
			f.Idle()
			t.Logf("refused and let go after %v", time.Since(begin))
		})
	}
}

// A prefill worker that dies while it computes costs no answer.
func TestVLLMConnectorsWhenPrefillDies(t *testing.T) {
	for _, name := range vllmConnectors {
		fleet.VirtualRun(t, name, func(t *testing.T) {
			f := fleet.New(t, speaking(t, name, fleet.Options{Prefill: 2, Decode: 1, Speedup: .05}))
			came := make(chan fleet.Answer, 1)
			go func() {
				a, err := f.Try(context.Background(), fleet.CompletionPath, `{"model":"tandem-sim","max_tokens":2,"prompt":"`+strings.Repeat(fleet.Long, 10)+`"}`, nil)
				if err != nil {
					t.Error(err)
				}
				came <- a
			}()
			var busy *fleet.Worker
			f.Eventually("prefill runs", func() bool {
				for id, w := range f.Workers {
					if strings.HasPrefix(id, "prefill") && len(w.Engine.Books().Requests) > 0 {
						busy = w
					}
				}
				return busy != nil
			})
			busy.Kill()
			if a := <-came; a.Status != http.StatusOK || f.Text(a) != fleet.Expected(fleet.TextPrompt(strings.Repeat(fleet.Long, 10)), 2) {
				t.Errorf("%d %s", a.Status, a.Body)
			}
			f.Idle()
		})
	}
}

// The KV events of every release of vLLM end in the index, over ZMQ and in the form of that release.
func TestVLLMEventsOfEveryRelease(t *testing.T) {
	for _, release := range []string{"0.9.2", "0.10.2", "0.14.0", "0.17.0", "0.20.0", "0.23.0", "0.24.0", "0.26.0", "0.33.0"} {
		t.Run(release, func(t *testing.T) {
			f := fleet.New(t, fleet.Options{Both: 1, Worker: func(c *devfleet.WorkerConfig) {
				c.Engine.Engine, c.Engine.EngineVersion = "vllm", release
				c.KVEvents.ZMQ = &zmqpub.Config{Endpoint: "tcp://*:0", ReplayEndpoint: "tcp://*:0", Topic: "kv"}
			}})
			prompt := strings.Repeat(fleet.Long, 10)
			if a := f.Post(fleet.CompletionPath, `{"model":"tandem-sim","max_tokens":8,"prompt":"`+prompt+`"}`); a.Status != http.StatusOK {
				t.Fatalf("%d %s", a.Status, a.Body)
			}
			f.Eventually("the prompt's blocks are in the index", func() bool {
				s := f.Sources()["both-1"]
				return s.State == "live" && s.Transport == "zmq" && s.Blocks >= len(fleet.TextPrompt(prompt))/16
			})
			f.Idle()
		})
	}
}
