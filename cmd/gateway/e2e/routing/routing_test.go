package routing

import (
	"strings"
	"testing"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
)

// asked is a completion's body with the given nvext object.
func asked(nvext string) string {
	return `{"model":"tandem-sim","max_tokens":4,"prompt":"` + fleet.Long + `","nvext":` + nvext + `}`
}

// TestRoutingIsShown: every candidate of both legs with its terms, and what was
// cached beside what was believed; a second request finds the first one's.
func TestRoutingIsShown(t *testing.T) {
	f := fleet.New(t, fleet.Options{Prefill: 2, Decode: 3, Gateway: func(c *stack.GatewayConfig) { c.Observe.LogRouting = true }})
	r := f.Nvext(f.Good(fleet.CompletionPath, asked(`{"extra_fields":["routing"]}`))).Routing
	f.Eventually("what is cached is believed to be", func() bool {
		r = f.Nvext(f.Good(fleet.CompletionPath, asked(`{"extra_fields":["routing"]}`))).Routing
		return r.Predicted > 0
	})
	if len(r.Prefill.Terms) != 2 || len(r.Decode.Terms) != 3 {
		t.Fatalf("%d and %d terms, want those of 2 and 3 workers", len(r.Prefill.Terms), len(r.Decode.Terms))
	}
	if first := r.Prefill.Terms[0]; first.Worker != r.Prefill.Worker || first.Cost != r.Prefill.Cost || first.Cached == 0 {
		t.Errorf("the chosen's term is not the first: %+v", r.Prefill)
	}
	if r.Actual == nil || *r.Actual != r.Predicted {
		t.Errorf("%d tokens believed cached, were %v", r.Predicted, r.Actual)
	}
	f.Eventually("the log says it too", func() bool { return strings.Contains(f.Logs.String(), `predicted_cached_tokens`) })
	f.Idle()
}
