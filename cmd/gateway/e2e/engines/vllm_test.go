package engines

import (
	"bufio"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/internal/kvevents/wire"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/engine"
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
			a := f.Post(fleet.CompletionPath, fmt.Sprintf(`{"model":"tandem-sim","max_tokens":8,"stream":%v,`+
				`"nvext":{"extra_fields":["worker_id"]},"prompt":"%s"}`, stream, prompt))
			if a.Status != http.StatusOK || f.Text(a) != fleet.Expected(ids, 8) ||
				!strings.Contains(string(a.Body)+strings.Join(a.Events, ""), `"prefill-1"`) {
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
		require.NoError(f.T, err)
		lines := bufio.NewScanner(res.Body)
		for lines.Scan() {
			if text, ok := strings.CutPrefix(lines.Text(), "vllm:external_prefix_cache_hits_total{"); ok {
				_, value, _ := strings.Cut(text, "} ")
				tokens, err := strconv.ParseFloat(value, 64)
				require.NoError(f.T, err)
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
					a := f.Post(c.path, fmt.Sprintf(`{"model":"tandem-sim","max_tokens":12,"stream":%v,`+
						`"nvext":{"extra_fields":["worker_id"]},%s}`, stream, c.body))
					if got, want := f.Text(a), fleet.Expected(c.prompt, 12); a.Status != http.StatusOK || got != want {
						t.Fatalf("%d: status %d, text %q, want %q", i, a.Status, got, want)
					}
					f.CheckShape(a, c.path, stream)
					assert.Contains(t, string(a.Body)+strings.Join(a.Events, ""), `"prefill_worker_id":"prefill-1"`,
						"%d: prefill did not run", i)
				}
			}
			f.Idle() // had decode not fetched the blocks, prefill would hold them still
			assert.GreaterOrEqual(t, takenOver(f), len(fleet.TextPrompt(fleet.Long))-1+len(fleet.ChatPrompt("Hello"))-1,
				"decode took over N tokens at least")
		})
	}
}

// A client that leaves frees both engines, in every phase and with every connector; what is being transferred, at its end or
// its lease's.
func TestVLLMConnectorsWhenClientsLeave(t *testing.T) {
	for _, name := range vllmConnectors {
		for _, c := range []struct {
			phase   string
			options fleet.Options
			prompt  string
			there   func(f *fleet.Fleet) bool
		}{
			{"prefill", fleet.Options{Speedup: .005}, strings.Repeat(fleet.Long, 10),
				func(f *fleet.Fleet) bool { return f.Engines("prefill") == fleet.Clients }},
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

// What vLLM's full-attention layers have of a prompt is what its events have the gateway predict, to the block: of a model
// with full attention and of a hybrid one, whose first KV-cache group is a sliding window; of prompts that are cached whole,
// whose last block is stored once more each time; and while the pool is full and evicts its copies.
func TestVLLMEventsPredictWhatIsCached(t *testing.T) {
	for name, window := range map[string]int{"full attention": 0, "hybrid": 64} {
		t.Run(name, func(t *testing.T) {
			e := engine.Config{Engine: "vllm", Role: "both", ID: "v1", Speedup: 50, BlockSize: 16, TotalKVBlocks: 40,
				ContextLength: 400, SlidingWindow: window}
			s := fleet.NewStock(t, e, wire.VLLM, "")
			var messages atomic.Uint64
			s.KVEvents.Alter = func(events []wire.Event) []wire.Event { messages.Add(1); return events }
			cfg := fleet.GatewayConfig()
			cfg.Workers.Static = append(cfg.Workers.Static, s.Endpoint(t, s.Published()))
			f := fleet.NewStatic(t, cfg)
			f.Launch(s)
			f.Followed("v1")
			ids := func(seed, n int) string {
				var b strings.Builder
				for i := range n {
					fmt.Fprintf(&b, ",%d", 3+(seed*31+i*7)%200)
				}
				return b.String()[1:]
			}
			shared := ids(1, 96)
			ask := func(prompt string) (predicted, cached int) {
				f.Eventually("all that happened is known", func() bool { return f.Sources()["v1"].Seq == messages.Load() })
				r := f.Nvext(f.Good(fleet.CompletionPath, `{"model":"tandem-sim","max_tokens":1,`+
					`"nvext":{"extra_fields":["routing"]},"prompt":[`+prompt+`]}`)).Routing
				require.NotNil(t, r.Actual)
				f.Idle()
				return r.Predicted, *r.Actual
			}
			for i, c := range []struct {
				prompt       string
				full, hybrid int // tokens that the engine has
			}{
				{shared, 0, 0}, {shared, 80, 80}, {shared, 80, 80},
				{shared + "," + ids(2, 40), 96, 80}, // the window is kept for who sends the same prompt again
				{shared + "," + ids(2, 40), 128, 128},
			} {
				want := c.full
				if window > 0 {
					want = c.hybrid
				}
				if predicted, cached := ask(c.prompt); predicted != c.full || cached != want {
					t.Errorf("request %d: predicted %d, want %d; the engine had %d, want %d", i, predicted, c.full, cached, want)
				}
			}
			for i := range 12 { // others fill the pool, and evict the copies that are not in use
				ask(ids(10+i, 200))
				if predicted, cached := ask(shared + "," + ids(2, 40)); predicted != cached || cached != 128 {
					t.Errorf("after %d others: predicted %d, the engine had %d, want 128", i+1, predicted, cached)
				}
			}
			if s := f.Sources()["v1"]; s.State != "live" || s.Losses != 0 {
				t.Errorf("it is %+v", s)
			}
			f.Idle()
		})
	}
}
