package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/pools"
)

// pinned is a request's body with the given nvext members.
func pinned(nvext string) string {
	if nvext != "" {
		nvext += ","
	}
	return `{"model":"tandem-sim","max_tokens":4,"prompt":"` + long + `","nvext":{` + nvext + `"extra_fields":["worker_id"]}}`
}

func inMode(mode string) func(c *stack.GatewayConfig) {
	return func(c *stack.GatewayConfig) {
		c.Router.Mode = mode
	}
}

// Whoever is named serves, in every mode, named by the body or by a header, and
// the header wins. Eight rounds: an unpinned choice would hit all but never.
func TestPins(t *testing.T) {
	for _, mode := range []string{"kv", "direct", "round-robin"} {
		t.Run(mode, func(t *testing.T) {
			f := newFleet(t, options{prefill: 3, decode: 3, gateway: inMode(mode)})
			for _, c := range []struct {
				name, nvext     string
				headers         []string
				prefill, decode string
			}{
				{"both by body", `"prefill_worker_id":"prefill-2","decode_worker_id":"decode-3"`, nil, "prefill-2", "decode-3"},
				{"backend_instance_id", `"backend_instance_id":"decode-1"`, nil, "", "decode-1"},
				{"prefill alone", `"prefill_worker_id":"prefill-3"`, nil, "prefill-3", ""},
				{"both by header", "", []string{"x-dynamo-prefill-instance-id", "prefill-1", "x-dynamo-worker-instance-id", "decode-2"}, "prefill-1", "decode-2"},
				{
					"headers win", `"prefill_worker_id":"prefill-2","decode_worker_id":"nobody","backend_instance_id":"none","dp_rank":7`,
					[]string{"x-dynamo-prefill-instance-id", "prefill-1", "x-dynamo-worker-instance-id", "decode-2", "x-dynamo-dp-rank", "0"}, "prefill-1", "decode-2",
				},
				{"ranks too", `"prefill_worker_id":"prefill-2","prefill_dp_rank":0,"decode_worker_id":"decode-3","dp_rank":0`, nil, "prefill-2", "decode-3"},
			} {
				t.Run(c.name, func(t *testing.T) {
					for range 8 {
						a, err := f.try(context.Background(), completionPath, pinned(c.nvext), nil, c.headers...)
						if err != nil || a.status != http.StatusOK {
							t.Fatalf("%v, status %d: %s", err, a.status, a.body)
						}
						w := f.parse(a.body).Nvext.WorkerID
						if c.prefill != "" && w.Prefill != c.prefill || c.decode != "" && w.Decode != c.decode {
							t.Fatalf("served by %+v, want %q and %q", w, c.prefill, c.decode)
						}
						if w.Prefill == "" {
							t.Fatalf("no prefill worker: %+v", w)
						}
					}
				})
			}
			f.idle()
		})
	}
}

// refused checks an error answer.
func (f *fleet) refused(t *testing.T, a answer, status int, code, param string, words ...string) {
	t.Helper()
	e := f.parse(a.body).Error
	if a.status != status || e == nil || e.Code == nil && code != "" || code != "" && *e.Code != code {
		t.Fatalf("status %d, want %d %s: %s", a.status, status, code, a.body)
	}
	if param != "" && (e.Param == nil || *e.Param != param) {
		t.Errorf("param is not %q: %s", param, a.body)
	}
	for _, w := range words {
		if !strings.Contains(e.Message, w) {
			t.Errorf("the message lacks %q: %s", w, e.Message)
		}
	}
}

// Whom no worker answers to is refused by name.
func TestUnknownPins(t *testing.T) {
	f := newFleet(t, options{})
	for _, c := range []struct {
		name, nvext string
		headers     []string
		code, param string
		word        string
	}{
		{"unknown prefill", `"prefill_worker_id":"prefill-9"`, nil, "unknown_worker", "nvext.prefill_worker_id", `"prefill-9"`},
		{"unknown decode", `"decode_worker_id":"decode-9"`, nil, "unknown_worker", "nvext.decode_worker_id", `"decode-9"`},
		{"unknown backend, a number", `"backend_instance_id":7587884888253033398`, nil, "unknown_worker", "nvext.backend_instance_id", `"7587884888253033398"`},
		{"a decode worker cannot prefill", `"prefill_worker_id":"decode-1"`, nil, "unknown_worker", "nvext.prefill_worker_id", `"decode-1"`},
		{"a prefill worker cannot decode", `"backend_instance_id":"prefill-1"`, nil, "unknown_worker", "nvext.backend_instance_id", `"prefill-1"`},
		{"unknown by header", "", []string{"x-dynamo-worker-instance-id", "x9"}, "unknown_worker", "x-dynamo-worker-instance-id", `"x9"`},
		{"unknown prefill by header", `"prefill_worker_id":"prefill-1"`, []string{"X-Dynamo-Prefill-Instance-Id", "x9"}, "unknown_worker", "x-dynamo-prefill-instance-id", `"x9"`},
		{"unknown rank", `"dp_rank":1`, nil, "unknown_rank", "nvext.dp_rank", "rank 1"},
		{"unknown prefill rank", "", []string{"x-dynamo-prefill-dp-rank", "4"}, "unknown_rank", "x-dynamo-prefill-dp-rank", "rank 4"},
		{"a rank that is none", "", []string{"x-dynamo-dp-rank", "-1"}, "", "x-dynamo-dp-rank", "integer"},
		{"an id that is none", "", []string{"x-dynamo-worker-instance-id", "a b"}, "", "x-dynamo-worker-instance-id", "id"},
		{"two decoders", `"backend_instance_id":"decode-1","decode_worker_id":"decode-2"`, nil, "", "nvext.backend_instance_id", "two workers"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, err := f.try(context.Background(), completionPath, pinned(c.nvext), nil, c.headers...)
			if err != nil {
				t.Fatal(err)
			}
			f.refused(t, a, http.StatusBadRequest, c.code, c.param, c.word)
		})
	}
	a := f.post(completionPath, strings.Replace(pinned(`"prefill_worker_id":"prefill-1"`), `"max_tokens"`, `"n":2,"max_tokens"`, 1))
	f.refused(t, a, http.StatusBadRequest, "", "nvext.prefill_worker_id", "n above 1")
	f.idle()
}

// Mode direct is told whom to ask, or says what it wants to be told.
func TestDirectNeedsAPin(t *testing.T) {
	f := newFleet(t, options{gateway: inMode("direct")})
	for _, nvext := range []string{"", `"dp_rank":0`} {
		f.refused(t, f.post(completionPath, pinned(nvext)), http.StatusBadRequest, "worker_required", "nvext",
			"nvext.prefill_worker_id", "nvext.decode_worker_id", "nvext.backend_instance_id", "x-dynamo-worker-instance-id", "x-dynamo-prefill-instance-id")
	}
	f.refused(t, f.post(completionPath, `{"model":"tandem-sim","prompt":"x"}`), http.StatusBadRequest, "worker_required", "nvext")
	f.idle()
}

// A worker of role both serves by itself when it is named, beside pools of
// prefill and decode.
func TestPinnedWorkerServesAlone(t *testing.T) {
	f := newFleet(t, options{prefill: 1, decode: 1, both: 2})
	for _, field := range []string{"backend_instance_id", "decode_worker_id"} {
		a := f.post(completionPath, pinned(`"`+field+`":"both-2"`))
		if a.status != http.StatusOK {
			t.Fatalf("%s", a.body)
		}
		if w := f.parse(a.body).Nvext.WorkerID; w.Decode != "both-2" || w.Prefill != "" {
			t.Errorf("served by %+v", w)
		}
	}
	a := f.post(completionPath, pinned(`"backend_instance_id":"both-1","prefill_worker_id":"prefill-1"`))
	f.refused(t, a, http.StatusBadRequest, "", "nvext.prefill_worker_id", "alone")
	f.idle()
}

// A pinned worker that is dead fails its requests: none is answered by another,
// nor by decode in prefill's place. The others are served all the while.
func TestPinnedWorkerDead(t *testing.T) {
	f := newFleet(t, options{prefill: 2, decode: 2})
	f.workers["prefill-1"].kill()
	f.workers["decode-1"].kill()
	for _, field := range []string{`"prefill_worker_id":"prefill-1"`, `"backend_instance_id":"decode-1"`} {
		for i := range 4 {
			a := f.post(completionPath, pinned(field))
			e := f.parse(a.body).Error
			if e == nil || a.status != http.StatusBadGateway && a.status != http.StatusServiceUnavailable {
				t.Fatalf("%s, request %d: status %d: %s", field, i, a.status, a.body)
			}
			if i > 0 { // it is known to be down by now
				f.refused(t, a, http.StatusServiceUnavailable, "worker_unavailable", "")
			}
		}
	}
	if a := f.post(completionPath, pinned(`"prefill_worker_id":"prefill-2","decode_worker_id":"decode-2"`)); a.status != http.StatusOK {
		t.Errorf("%d: %s", a.status, a.body)
	}
	f.idle()
}

// A draining worker takes nothing, whoever names it.
func TestPinnedWorkerDraining(t *testing.T) {
	f := newFleet(t, options{})
	for role, field := range map[pools.Role]string{pools.Prefill: "prefill_worker_id", pools.Decode: "decode_worker_id"} {
		id := fmt.Sprintf("%s-1", role)
		if err := f.gateway.Roster.Drain(id, true); err != nil {
			t.Fatal(err)
		}
		f.refused(t, f.post(completionPath, pinned(`"`+field+`":"`+id+`"`)), http.StatusServiceUnavailable, "worker_unavailable", "nvext."+field, id)
	}
	f.idle()
}
