package routing

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/internal/tokens"
	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/lab/replay"
	"github.com/tandem-pd/tandem/lab/simulate"
	"github.com/tandem-pd/tandem/pools"
)

// In mode eft prompts wait in the gateway, and yet a prefill engine has hardly a moment without one while others wait: little
// more than the 2 ms that each takes to come, of 107 ms in the mean to be computed.
func TestPrefillIsRarelyIdle(t *testing.T) {
	const engines, from, span = 2, 125 * time.Second, 15 * time.Second
	each := parityEngine()
	f := parityFleet{
		groups: []simulate.Group{{Count: engines, Role: pools.Prefill, Engine: each}, {Count: 2, Role: pools.Decode, Engine: each}},
		mode:   "eft", threshold: -1, warm: 120, delay: 2 * time.Millisecond, reg: prometheus.NewRegistry(),
	}
	rng := rand.New(rand.NewPCG(paritySeed, 7))
	more := &replay.Workload{Name: "more than they can do"}
	for i := range 600 {
		more.Requests = append(more.Requests, replay.Request{
			Index: i, At: time.Duration(i) * 33 * time.Millisecond, OutputTokens: 2,
			Spans: []replay.Span{{ID: 1<<43 + uint64(i), Tokens: 200 + rng.IntN(3600)}},
		})
	}
	prompter, err := replay.NewPrompter(tokens.Sim(), paritySeed)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		idle := make(chan float64, 1)
		f.begun = func(all []*engine.Server) {
			busy := func() (ms float64) {
				for _, e := range all[:engines] {
					ms += e.Books().BusyMs
				}
				return ms
			}
			go func() {
				time.Sleep(from)
				before := busy()
				time.Sleep(span)
				idle <- 1 - (busy()-before)/float64(span.Milliseconds())/engines
			}()
		}
		f.onTheWire(t, f.after(more), prompter)
		share := <-idle
		t.Logf("prefill engines were idle for %.2f %% of %v", 100*share, span)
		if share > .03 {
			t.Error("that is above 3 %")
		}
	})
}
