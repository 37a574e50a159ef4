package routing

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
)

// prefillRouter changes how the prefill pool's router is made.
func prefillRouter(c *stack.GatewayConfig, change func(ttl *time.Duration, blocks *int)) {
	change(&c.Router.PredictedTTL, &c.Router.IndexMaxBlocks)
}

// A gateway keeps its index within the budget, counts what went, and goes on.
func TestIndexStaysWithinItsBudget(t *testing.T) {
	const budget = 1024
	f := fleet.New(t, fleet.Options{Prefill: 2, Decode: 1, Gateway: func(c *stack.GatewayConfig) {
		prefillRouter(c, func(_ *time.Duration, blocks *int) { *blocks = budget })
	}})
	const name = "tandem_component_router_index_"
	evicted := func() float64 { return f.Value(name+"evicted_blocks_total", "prefill") }
	if f.Value(name+"owners", "prefill") != 2 {
		t.Errorf("%v owners, want the two prefill workers", f.Value(name+"owners", "prefill"))
	}
	for i := 0; evicted() < 2*budget && i < 100; i++ {
		prompt := strings.Repeat(fmt.Sprint("Document ", i, ". ", fleet.Long), 64)
		f.Good(fleet.CompletionPath, `{"model":"tandem-sim","max_tokens":1,"prompt":"`+prompt+`"}`)
		if held := f.Value(name+"held_blocks", "prefill"); held > budget {
			t.Fatalf("%v pairs of block and worker are held, the budget is %d", held, budget)
		}
	}
	if evicted() < 2*budget {
		t.Errorf("%v were evicted of many times the budget", evicted())
	}
	if blocks := f.Value(name+"blocks", "prefill"); blocks == 0 || blocks > budget {
		t.Errorf("%v distinct blocks", blocks)
	}
	if f.Value(name+"bytes", "prefill") == 0 || f.Value(name+"holed", "prefill") != 0 {
		t.Errorf("%v bytes, %v holed", f.Value(name+"bytes", "prefill"), f.Value(name+"holed", "prefill"))
	}
	f.Idle()
}
