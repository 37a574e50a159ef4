package e2e

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
)

// prefillRouter changes how the prefill pool's router is made.
func prefillRouter(c *stack.GatewayConfig, change func(ttl *time.Duration, blocks *int)) {
	change(&c.Router.PredictedTTL, &c.Router.IndexMaxBlocks)
}

// A gateway keeps its index within the budget, counts what went, and goes on.
func TestIndexStaysWithinItsBudget(t *testing.T) {
	const budget = 1024
	f := newFleet(t, options{prefill: 2, decode: 1, gateway: func(c *stack.GatewayConfig) {
		prefillRouter(c, func(_ *time.Duration, blocks *int) { *blocks = budget })
	}})
	const name = "tandem_component_router_index_"
	evicted := func() float64 { return f.value(name+"evicted_blocks_total", "prefill") }
	if f.value(name+"owners", "prefill") != 2 {
		t.Errorf("%v owners, want the two prefill workers", f.value(name+"owners", "prefill"))
	}
	for i := 0; evicted() < 2*budget && i < 100; i++ {
		prompt := strings.Repeat(fmt.Sprint("Document ", i, ". ", long), 64)
		if a := f.post(completionPath, `{"model":"tandem-sim","max_tokens":1,"prompt":"`+prompt+`"}`); a.status != 200 {
			t.Fatalf("%s", a.body)
		}
		if held := f.value(name+"held_blocks", "prefill"); held > budget {
			t.Fatalf("%v pairs of block and worker are held, the budget is %d", held, budget)
		}
	}
	if evicted() < 2*budget {
		t.Errorf("%v were evicted of many times the budget", evicted())
	}
	if blocks := f.value(name+"blocks", "prefill"); blocks == 0 || blocks > budget {
		t.Errorf("%v distinct blocks", blocks)
	}
	if f.value(name+"bytes", "prefill") == 0 || f.value(name+"holed", "prefill") != 0 {
		t.Errorf("%v bytes, %v holed", f.value(name+"bytes", "prefill"), f.value(name+"holed", "prefill"))
	}
	f.idle()
}

// What was sent is believed from the booking on, beside the events that come
// later, and each is counted for what it is.
func TestSentCountsBesideEvents(t *testing.T) {
	f := newFleet(t, options{prefill: 3, decode: 1, gateway: func(c *stack.GatewayConfig) {
		prefillRouter(c, func(ttl *time.Duration, _ *int) { *ttl = time.Hour })
	}})
	prompt := strings.Repeat(long, 4)
	blocks := float64(len(textPrompt(prompt)) / 16)
	body := `{"model":"tandem-sim","max_tokens":2,"nvext":{"extra_fields":["worker_id"]},"prompt":"` + prompt + `"}`
	first := f.parse(f.post(completionPath, body).body).Nvext.WorkerID.Prefill
	if got := f.value("tandem_frontend_worker_sent_blocks", first); got != blocks {
		t.Errorf("%v blocks were sent to %s, want %v", got, first, blocks)
	}
	f.eventually("its events are here", func() bool {
		return f.value("tandem_component_router_index_held_blocks", "prefill") >= blocks
	})
	var group sync.WaitGroup
	for range 5 {
		group.Go(func() {
			if got := f.parse(f.post(completionPath, body).body).Nvext.WorkerID.Prefill; got != first {
				t.Errorf("a sibling was prefilled on %s, the first on %s", got, first)
			}
		})
	}
	group.Wait()
	total := func(source string) float64 {
		return f.value("tandem_component_router_overlap_blocks_total", "prefill", source)
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
	f.get("/workers", &report)
	for _, p := range report.Pools {
		for _, w := range p.Workers {
			if want := map[bool]float64{true: blocks}[w.ID == first]; float64(w.Sent) != want {
				t.Errorf("/workers: %s was sent %d blocks, want %v", w.ID, w.Sent, want)
			}
		}
	}
	f.idle()
}
