package engines

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/lab/fleet"
)

// A client that leaves frees both engines, in every phase and with every connector; what is being transferred, at its
// end or its lease's.
func TestVLLMConnectorsWhenClientsLeave(t *testing.T) {
	for _, name := range []string{"vllm-nixl", "vllm-nixl-push", "vllm-mooncake", "vllm-offload"} { // vllm-multi releases as vllm-nixl does
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
				o := c.options
				o.Worker = func(w *devfleet.WorkerConfig) {
					w.Engine.Engine, w.Engine.Connector = "vllm", name
					if c.options.Worker != nil {
						c.options.Worker(w)
					}
				}
				fleet.LeaveAtOnce(t, fleet.New(t, o), c.phase, c.prompt, c.there)
			})
		}
	}
}

// What vLLM's full-attention layers have of a prompt is what its events have the gateway predict, to the block: of a
// model with full attention and of a hybrid one, whose first KV-cache group is a sliding window; of prompts that are
// cached whole, whose last block is stored once more each time; and while the pool is full and evicts its copies.
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
