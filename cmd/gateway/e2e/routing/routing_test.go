package routing

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/router"
)

// asked is a completion's body with the given nvext object.
func asked(nvext string) string {
	return `{"model":"tandem-sim","max_tokens":4,"prompt":"` + fleet.Long + `","nvext":` + nvext + `}`
}

// TestRoutingIsShown: every candidate of both legs with its terms, and what was
// cached beside what was believed; a second request finds the first one's.
func TestRoutingIsShown(t *testing.T) {
	f := fleet.New(t, fleet.Options{Prefill: 2, Decode: 3, Gateway: func(c *stack.GatewayConfig) { c.Observe.LogRouting = true }})
	var got struct {
		Nvext struct {
			Routing struct {
				Prefill, Decode struct {
					Worker string `json:"worker_id"`
					Cost   float64
					Terms  []struct {
						Worker string `json:"worker_id"`
						Cost   float64
						Cached int `json:"cached_blocks"`
					}
				}
				Predicted int  `json:"predicted_cached_tokens"`
				Actual    *int `json:"actual_cached_tokens"`
			}
		}
	}
	ask := func() {
		a := f.Good(fleet.CompletionPath, asked(`{"extra_fields":["routing"]}`))
		if err := json.Unmarshal(a.Body, &got); err != nil {
			t.Fatal(err)
		}
	}
	f.Eventually("what is cached is believed to be", func() bool {
		ask()
		return got.Nvext.Routing.Predicted > 0
	})
	r := got.Nvext.Routing
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

// TestConstraintsAndOverrides: what cannot be had is refused, by name.
func TestConstraintsAndOverrides(t *testing.T) {
	f := fleet.New(t, fleet.Options{Prefill: 1, Decode: 1, Gateway: func(c *stack.GatewayConfig) {
		c.Router.Cost = router.Credited
	}})
	for _, c := range []struct {
		nvext  string
		status int
		says   string
	}{
		{`{"routing_constraints":{"required_taints":["moon"]}}`, 503, `"no_tainted_worker"`},
		{`{"routing_constraints":{"preferred_taints":{"moon":3}}}`, 200, ""},
		{`{"router_config_override":{"overlap_score_credit":2,"router_temperature":0.5,"prefill_load_scale":4,"track_prefill_tokens":false,"assume_kv_reuse":false}}`, 200, ""},
		{`{"router_config_override":{"router_temperature":-1}}`, 400, "nvext.router_config_override.router_temperature"},
		{`{"router_config_override":{"overlap_score_credit":1e7}}`, 400, "nvext.router_config_override.overlap_score_credit"},
		{`{"router_config_override":{"overlap_score_weight":1}}`, 400, "nvext.router_config_override.overlap_score_weight"},
		{`{"router_config_override":{"temperature":1}}`, 400, "router_config_override"},
	} {
		a, err := f.Try(context.Background(), fleet.CompletionPath, asked(c.nvext), nil)
		if err != nil || a.Status != c.status || !strings.Contains(string(a.Body), c.says) {
			t.Errorf("%s: %v, status %d, want %d and %s: %s", c.nvext, err, a.Status, c.status, c.says, a.Body)
		}
	}
	f.Idle()
}

// TestBusyThreshold: set while the gateway runs, it refuses what comes while the
// only worker is above it, and counts that.
func TestBusyThreshold(t *testing.T) {
	f := fleet.New(t, fleet.Options{Prefill: 1, Decode: 1, Speedup: 1})
	set := func(body string) {
		t.Helper()
		res, err := f.HTTP().Post(f.URL+"/busy_threshold", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != http.StatusOK {
			t.Fatalf("%s: status %d", body, res.StatusCode)
		}
	}
	leave := f.OccupyFor(4000)
	set(`{"model":"tandem-sim","active_decode_blocks_threshold":1e-9}`)
	var listed struct {
		Thresholds []struct {
			Model  string
			Blocks float64 `json:"active_decode_blocks_threshold"`
		}
	}
	f.Get("/busy_threshold", &listed)
	if len(listed.Thresholds) != 1 || listed.Thresholds[0].Blocks != 1e-9 {
		t.Errorf("listed: %+v", listed)
	}
	a, err := f.Try(context.Background(), fleet.CompletionPath, asked(`{}`), nil)
	if err != nil || a.Status != 503 || !strings.Contains(string(a.Body), "server_is_overloaded") {
		t.Errorf("above it: %v, status %d: %s", err, a.Status, a.Body)
	}
	if n := f.Value("tandem_frontend_router_overloaded_total", router.OverDecodeBlocks); n != 1 {
		t.Errorf("%v are counted, want 1", n)
	}
	set(`{"model":"tandem-sim","active_decode_blocks_threshold":null}`)
	f.Good(fleet.CompletionPath, asked(`{}`))
	leave()
	f.Idle()
}
