package routing

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/lab/fleet"
	"github.com/tandem-pd/tandem/router"
)

// The worker that the body or a header names serves the request, in mode kv as in direct; the header wins. Eight
// rounds, in which an unpinned choice would hardly ever be the same.
func TestPins(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"kv", "direct"} {
		t.Run(mode, func(t *testing.T) {
			f := fleet.New(t, fleet.Options{Prefill: 3, Decode: 3, Gateway: fleet.InMode(mode)})
			for _, c := range []struct {
				name, nvext     string
				headers         []string
				prefill, decode string
			}{
				{"both by body", `"prefill_worker_id":"prefill-2","decode_worker_id":"decode-3"`, nil, "prefill-2", "decode-3"},
				{"backend_instance_id", `"backend_instance_id":"decode-1"`, nil, "", "decode-1"},
				{"prefill alone", `"prefill_worker_id":"prefill-3"`, nil, "prefill-3", ""},
				{
					"headers win", `"prefill_worker_id":"prefill-2","decode_worker_id":"nobody","backend_instance_id":"none","dp_rank":7`,
					[]string{"x-dynamo-prefill-instance-id", "prefill-1", "x-dynamo-worker-instance-id", "decode-2",
						"x-dynamo-dp-rank", "0"}, "prefill-1", "decode-2",
				},
				{"ranks too", `"prefill_worker_id":"prefill-2","prefill_dp_rank":0,"decode_worker_id":"decode-3","dp_rank":0`, nil,
					"prefill-2", "decode-3"},
			} {
				t.Run(c.name, func(t *testing.T) {
					for range 8 {
						a := f.Good(fleet.CompletionPath, fleet.Pinned(c.nvext), c.headers...)
						w := f.Parse(a.Body).Nvext.WorkerID
						require.True(t, (c.prefill == "" || w.Prefill == c.prefill) && (c.decode == "" || w.Decode == c.decode),
							"served by %+v, want %q and %q", w, c.prefill, c.decode)
						require.NotEmpty(t, w.Prefill, "no prefill worker: %+v", w)
					}
				})
			}
			f.Idle()
		})
	}
}

// Whom no worker answers to is refused by name.
func TestUnknownPins(t *testing.T) {
	f := fleet.New(t, fleet.Options{})
	for _, c := range []struct {
		name, nvext string
		headers     []string
		code, param string
		word        string
	}{
		{"unknown prefill", `"prefill_worker_id":"prefill-9"`, nil, "unknown_worker", "nvext.prefill_worker_id", `"prefill-9"`},
		{"unknown decode", `"decode_worker_id":"decode-9"`, nil, "unknown_worker", "nvext.decode_worker_id", `"decode-9"`},
		{"unknown backend, a number", `"backend_instance_id":7587884888253033398`, nil, "unknown_worker",
			"nvext.backend_instance_id", `"7587884888253033398"`},
		{"a decode worker cannot prefill", `"prefill_worker_id":"decode-1"`, nil, "unknown_worker", "nvext.prefill_worker_id",
			`"decode-1"`},
		{"a prefill worker cannot decode", `"backend_instance_id":"prefill-1"`, nil, "unknown_worker", "nvext.backend_instance_id",
			`"prefill-1"`},
		{"unknown by header", "", []string{"x-dynamo-worker-instance-id", "x9"}, "unknown_worker", "x-dynamo-worker-instance-id", `"x9"`},
		{"unknown prefill by header", `"prefill_worker_id":"prefill-1"`, []string{"X-Dynamo-Prefill-Instance-Id", "x9"},
			"unknown_worker", "x-dynamo-prefill-instance-id", `"x9"`},
		{"unknown rank", `"dp_rank":1`, nil, "unknown_rank", "nvext.dp_rank", "rank 1"},
		{"unknown prefill rank", "", []string{"x-dynamo-prefill-dp-rank", "4"}, "unknown_rank", "x-dynamo-prefill-dp-rank", "rank 4"},
		{"a rank that is none", "", []string{"x-dynamo-dp-rank", "-1"}, "", "x-dynamo-dp-rank", "integer"},
		{"an id that is none", "", []string{"x-dynamo-worker-instance-id", "a b"}, "", "x-dynamo-worker-instance-id", "id"},
		{"two decoders", `"backend_instance_id":"decode-1","decode_worker_id":"decode-2"`, nil, "", "nvext.backend_instance_id",
			"two workers"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := f.Post(fleet.CompletionPath, fleet.Pinned(c.nvext), c.headers...)
			f.Refused(a, http.StatusBadRequest, c.code, c.param, c.word)
		})
	}
	a := f.Post(fleet.CompletionPath, strings.Replace(fleet.Pinned(`"prefill_worker_id":"prefill-1"`), `"max_tokens"`,
		`"n":2,"max_tokens"`, 1))
	f.Refused(a, http.StatusBadRequest, "", "nvext.prefill_worker_id", "n above 1")
	f.Idle()
}

// Mode direct uses the workers of the request, or names the missing field.
func TestDirectNeedsAPin(t *testing.T) {
	f := fleet.New(t, fleet.Options{Gateway: fleet.InMode("direct")})
	for _, nvext := range []string{"", `"dp_rank":0`} {
		f.Refused(f.Post(fleet.CompletionPath, fleet.Pinned(nvext)), http.StatusBadRequest, "worker_required", "nvext",
			"nvext.prefill_worker_id", "nvext.decode_worker_id", "nvext.backend_instance_id",
			"x-dynamo-worker-instance-id", "x-dynamo-prefill-instance-id")
	}
	f.Refused(f.Post(fleet.CompletionPath, `{"model":"tandem-sim","prompt":"x"}`), http.StatusBadRequest, "worker_required", "nvext")
	f.Idle()
}

// A worker of role both serves by itself when it is named, beside pools of prefill and decode.
func TestPinnedWorkerServesAlone(t *testing.T) {
	f := fleet.New(t, fleet.Options{Prefill: 1, Decode: 1, Both: 2})
	for _, field := range []string{"backend_instance_id", "decode_worker_id"} {
		a := f.Good(fleet.CompletionPath, fleet.Pinned(`"`+field+`":"both-2"`))
		if w := f.Parse(a.Body).Nvext.WorkerID; w.Decode != "both-2" || w.Prefill != "" {
			t.Errorf("served by %+v", w)
		}
	}
	a := f.Post(fleet.CompletionPath, fleet.Pinned(`"backend_instance_id":"both-1","prefill_worker_id":"prefill-1"`))
	f.Refused(a, http.StatusBadRequest, "", "nvext.prefill_worker_id", "alone")
	f.Idle()
}

// A pinned worker that is dead fails its requests: none is answered by another,
// nor by decode in prefill's place. The others are served all the while.
func TestPinnedWorkerDead(t *testing.T) {
	f := fleet.New(t, fleet.Options{Prefill: 2, Decode: 2})
	f.Workers["prefill-1"].Kill()
	f.Workers["decode-1"].Kill()
	for _, field := range []string{`"prefill_worker_id":"prefill-1"`, `"backend_instance_id":"decode-1"`} {
		for i := range 4 {
			a := f.Post(fleet.CompletionPath, fleet.Pinned(field))
			e := f.Parse(a.Body).Error
			require.True(t, e != nil && (a.Status == http.StatusBadGateway || a.Status == http.StatusServiceUnavailable),
				"%s, request %d: status %d: %s", field, i, a.Status, a.Body)
			if i > 0 { // it is known to be down by now
				f.Refused(a, http.StatusServiceUnavailable, "worker_unavailable", "")
			}
		}
	}
	f.Good(fleet.CompletionPath, fleet.Pinned(`"prefill_worker_id":"prefill-2","decode_worker_id":"decode-2"`))
	f.Idle()
}

// A pinned decode worker that cannot load a prompt's KV computes the prompt: six of six answers were errors when a real
// vLLM 0.32 prefill worker was killed before decode had fetched.
func TestPinnedDecodeWithoutItsKV(t *testing.T) {
	f := fleet.New(t, fleet.Options{Prefill: 1, Decode: 2, Gateway: func(c *stack.GatewayConfig) {
		c.WrapTransport = func(inner http1.Transport) http1.Transport {
			return fault.Inject(inner, &fault.Scenario{Rules: []fault.Rule{{Fault: "kv_gone", Probability: 1}}})
		}
	}})
	w := f.Parse(f.Good(fleet.CompletionPath, fleet.Pinned(`"decode_worker_id":"decode-1"`)).Body).Nvext.WorkerID
	assert.True(t, w.Decode == "decode-1" && w.Prefill == "", "served by %+v", w)
	f.Refused(f.Post(fleet.CompletionPath, fleet.Pinned(`"decode_worker_id":"decode-1","prefill_worker_id":"prefill-1"`)),
		http.StatusBadGateway, "engine_error", "")
	f.Idle()
}

// asked is a completion's body with the given nvext object.
func asked(nvext string) string {
	return `{"model":"tandem-sim","max_tokens":4,"prompt":"` + fleet.Long + `","nvext":` + nvext + `}`
}

// TestRoutingIsShown: every candidate of both legs with its terms, and what was
// cached next to the expected hit; a second request finds the first one's.
func TestRoutingIsShown(t *testing.T) {
	f := fleet.New(t, fleet.Options{Prefill: 2, Decode: 3, Gateway: func(c *stack.GatewayConfig) { c.Observe.Log = "routing" }})
	r := f.Nvext(f.Good(fleet.CompletionPath, asked(`{"extra_fields":["routing"]}`))).Routing
	f.Eventually("what is cached is believed to be", func() bool {
		r = f.Nvext(f.Good(fleet.CompletionPath, asked(`{"extra_fields":["routing"]}`))).Routing
		return r.Predicted > 0
	})
	require.True(t, len(r.Prefill.Terms) == 2 && len(r.Decode.Terms) == 3,
		"%d and %d terms, want those of 2 and 3 workers", len(r.Prefill.Terms), len(r.Decode.Terms))
	if first := r.Prefill.Terms[0]; first.Worker != r.Prefill.Worker || first.Cost != r.Prefill.Cost || first.Cached == 0 {
		t.Errorf("the chosen's term is not the first: %+v", r.Prefill)
	}
	assert.True(t, r.Actual != nil && *r.Actual == r.Predicted, "%d tokens believed cached, were %v", r.Predicted, r.Actual)
	f.Eventually("the log has it too", func() bool { return strings.Contains(f.Logs.String(), `predicted_cached_tokens`) })
	f.Idle()
}

// TestBusyThreshold: set while the gateway runs, it refuses requests while the
// only worker is above it, and counts that.
func TestBusyThreshold(t *testing.T) {
	f := fleet.New(t, fleet.Options{Prefill: 1, Decode: 1, Speedup: 1})
	leave := f.OccupyFor(4000)
	f.Good("/busy_threshold", `{"model":"tandem-sim","active_decode_blocks_threshold":1e-9}`)
	f.Refused(f.Post(fleet.CompletionPath, asked(`{}`)), http.StatusServiceUnavailable, "server_is_overloaded", "")
	assert.EqualValues(t, 1, f.Value("tandem_frontend_router_queue_backpressure_total", router.OverDecodeBlocks), "are counted, want 1")
	f.Good("/busy_threshold", `{"model":"tandem-sim","active_decode_blocks_threshold":null}`)
	f.Good(fleet.CompletionPath, asked(`{}`))
	leave()
	f.Idle()
}
