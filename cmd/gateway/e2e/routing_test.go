package e2e

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/router"
)

// asked is a completion's body with the given nvext object.
func asked(nvext string) string {
	return `{"model":"tandem-sim","max_tokens":4,"prompt":"` + long + `","nvext":` + nvext + `}`
}

// TestRoutingIsShown: every candidate of both legs with its terms, and what was
// cached beside what was believed; a second request finds the first one's.
func TestRoutingIsShown(t *testing.T) {
	f := newFleet(t, options{prefill: 2, decode: 3, gateway: func(c *stack.GatewayConfig) { c.Observe.LogRouting = true }})
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
		a, err := f.try(context.Background(), completionPath, asked(`{"extra_fields":["routing"]}`), nil)
		if err != nil || a.status != http.StatusOK {
			t.Fatalf("%v, status %d: %s", err, a.status, a.body)
		}
		if err := json.Unmarshal(a.body, &got); err != nil {
			t.Fatal(err)
		}
	}
	f.eventually("what is cached is believed to be", func() bool {
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
	f.eventually("the log says it too", func() bool { return strings.Contains(f.logs.String(), `predicted_cached_tokens`) })
	f.idle()
}

// TestQueryRunsNothing: the annotation query_instance_id is answered with the
// choice, which the request then pinned so gets.
func TestQueryRunsNothing(t *testing.T) {
	f := newFleet(t, options{prefill: 2, decode: 2})
	a, err := f.try(context.Background(), completionPath, asked(`{"annotations":["query_instance_id:"]}`), nil)
	if err != nil || a.status != http.StatusOK {
		t.Fatalf("%v, status %d: %s", err, a.status, a.body)
	}
	w := f.parse(a.body).Nvext.WorkerID
	if !strings.HasPrefix(w.Prefill, "prefill-") || !strings.HasPrefix(w.Decode, "decode-") || !strings.Contains(string(a.body), `"choices":[]`) {
		t.Errorf("answered %s", a.body)
	}
	if f.started() != 0 || strings.Contains(f.logs.String(), "attempts=1") {
		t.Error("a worker was called")
	}
	f.idle()
}

// TestConstraintsAndOverrides: what cannot be had is refused, by name.
func TestConstraintsAndOverrides(t *testing.T) {
	f := newFleet(t, options{prefill: 1, decode: 1, gateway: func(c *stack.GatewayConfig) {
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
		a, err := f.try(context.Background(), completionPath, asked(c.nvext), nil)
		if err != nil || a.status != c.status || !strings.Contains(string(a.body), c.says) {
			t.Errorf("%s: %v, status %d, want %d and %s: %s", c.nvext, err, a.status, c.status, c.says, a.body)
		}
	}
	f.idle()
}

// TestBusyThreshold: set while the gateway runs, it refuses what comes while the
// only worker is above it, and counts that.
func TestBusyThreshold(t *testing.T) {
	f := newFleet(t, options{prefill: 1, decode: 1, speedup: 1})
	set := func(body string) {
		t.Helper()
		res, err := f.http().Post(f.url+"/busy_threshold", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != http.StatusOK {
			t.Fatalf("%s: status %d", body, res.StatusCode)
		}
	}
	leave := f.occupyFor(4000)
	set(`{"model":"tandem-sim","active_decode_blocks_threshold":1e-9}`)
	var listed struct {
		Thresholds []struct {
			Model  string
			Blocks float64 `json:"active_decode_blocks_threshold"`
		}
	}
	f.get("/busy_threshold", &listed)
	if len(listed.Thresholds) != 1 || listed.Thresholds[0].Blocks != 1e-9 {
		t.Errorf("listed: %+v", listed)
	}
	a, err := f.try(context.Background(), completionPath, asked(`{}`), nil)
	if err != nil || a.status != 503 || !strings.Contains(string(a.body), "server_is_overloaded") {
		t.Errorf("above it: %v, status %d: %s", err, a.status, a.body)
	}
	if n := f.value("tandem_frontend_router_overloaded_total", router.OverDecodeBlocks); n != 1 {
		t.Errorf("%v are counted, want 1", n)
	}
	set(`{"model":"tandem-sim","active_decode_blocks_threshold":null}`)
	if a, err := f.try(context.Background(), completionPath, asked(`{}`), nil); err != nil || a.status != http.StatusOK {
		t.Errorf("without a threshold: %v, status %d: %s", err, a.status, a.body)
	}
	leave()
	f.idle()
}

// A worker's taints are seen in /workers, and requests that require one go to those that have it.
func TestTaintsAreShownAndObeyed(t *testing.T) {
	f := newFleet(t, options{worker: func(c *devfleet.WorkerConfig) {
		if strings.HasSuffix(c.Engine.ID, "-2") {
			c.Taints = []string{"moon", "far"}
		}
	}})
	var report struct {
		Pools []struct {
			Workers []struct {
				ID     string
				Taints []string
			}
		}
	}
	f.get("/workers", &report)
	shown := 0
	for _, p := range report.Pools {
		for _, w := range p.Workers {
			if far := strings.HasSuffix(w.ID, "-2"); far != (len(w.Taints) == 2 && w.Taints[0] == "moon") {
				t.Errorf("%s shows the taints %v", w.ID, w.Taints)
			}
			shown++
		}
	}
	if shown != 4 {
		t.Errorf("%d workers are shown", shown)
	}
	for range 4 {
		a := f.post(completionPath, asked(`{"extra_fields":["worker_id"],"routing_constraints":{"required_taints":["moon"]}}`))
		if a.status != 200 {
			t.Fatalf("status %d, %s", a.status, a.body)
		}
		if w := f.parse(a.body).Nvext.WorkerID; w.Prefill != "prefill-2" || w.Decode != "decode-2" {
			t.Errorf("went to %+v", w)
		}
	}
}
