package routing

import (
	"fmt"
	"strings"
	"sync"
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
		if a := f.Post(fleet.CompletionPath, `{"model":"tandem-sim","max_tokens":1,"prompt":"`+prompt+`"}`); a.Status != 200 {
			t.Fatalf("%s", a.Body)
		}
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

// What was sent is believed from the booking on, beside the events that come
// later, and each is counted for what it is.
func TestSentCountsBesideEvents(t *testing.T) {
	f := fleet.New(t, fleet.Options{Prefill: 3, Decode: 1, Gateway: func(c *stack.GatewayConfig) {
		prefillRouter(c, func(ttl *time.Duration, _ *int) { *ttl = time.Hour })
	}})
	prompt := strings.Repeat(fleet.Long, 4)
	blocks := float64(len(fleet.TextPrompt(prompt)) / 16)
	body := `{"model":"tandem-sim","max_tokens":2,"nvext":{"extra_fields":["worker_id"]},"prompt":"` + prompt + `"}`
	first := f.Parse(f.Post(fleet.CompletionPath, body).Body).Nvext.WorkerID.Prefill
	if got := f.Value("tandem_frontend_worker_sent_blocks", first); got != blocks {
		t.Errorf("%v blocks were sent to %s, want %v", got, first, blocks)
	}
	f.Eventually("its events are here", func() bool {
		return f.Value("tandem_component_router_index_held_blocks", "prefill") >= blocks
	})
	var group sync.WaitGroup
	for range 5 {
		group.Go(func() {
			if got := f.Parse(f.Post(fleet.CompletionPath, body).Body).Nvext.WorkerID.Prefill; got != first {
				t.Errorf("a sibling was prefilled on %s, the first on %s", got, first)
			}
		})
	}
	group.Wait()
	total := func(source string) float64 {
		return f.Value("tandem_component_router_overlap_blocks_total", "prefill", source)
	}
	if total("events") < 5*(blocks-1) || total("events")+total("sent") != 5*blocks || total("predicted") != 0 {
		t.Errorf("by events %v, sent %v, predicted %v; want %v for each of five", total("events"), total("sent"), total("predicted"), blocks)
	}
	var report struct {
		Pools []struct {
			Workers []struct {
				ID   string
				Sent int `json:"sent_blocks"`
			}
		}
	}
	f.Get("/workers", &report)
	for _, p := range report.Pools {
		for _, w := range p.Workers {
			if want := map[bool]float64{true: blocks}[w.ID == first]; float64(w.Sent) != want {
				t.Errorf("/workers: %s was sent %d blocks, want %v", w.ID, w.Sent, want)
			}
		}
	}
	f.Idle()
}
