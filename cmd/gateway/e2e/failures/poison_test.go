package failures

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/pools"
)

// dies breaks the connection that a request came on, as an engine that it killed.
func dies(w http.ResponseWriter, _ *http.Request) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err == nil {
		_ = conn.Close()
	}
}

// No request takes a fleet down: one that kills whatever worker it reaches is
// tried on one more and no further, whichever way its deaths look. Its end has a
// name of its own, in the answer, in the log and in a metric.
func TestPoisonIsTriedTwice(t *testing.T) {
	const core = `{"error":{"message":"EngineCore encountered an issue. See stack trace (above) for the root cause.","type":"BadRequestError","param":null,"code":400}}`
	prefills := func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, handsOver) }
	for _, c := range []struct {
		name            string
		prefill, decode http.HandlerFunc // prefill nil: workers of role both
	}{
		{"the connection breaks", nil, dies},
		{"decode's connection breaks after a hand-off", prefills, dies},
		{"prefill's connection breaks", dies, dies},
		{"the stream ends before its first token", nil, func(w http.ResponseWriter, _ *http.Request) {
			fleet.SSE(w, `{"choices":[{"index":0,"text":"","finish_reason":null}]}`)
		}},
		{"the engine's core dies, in an event", nil, func(w http.ResponseWriter, _ *http.Request) { fleet.SSE(w, core, "[DONE]") }},
		{"the engine's core dies, by its status", nil, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = io.WriteString(w, core)
		}},
	} {
		fleet.VirtualRun(t, c.name, func(t *testing.T) {
			f := fleet.New(t, fleet.Options{Alone: true})
			var mu sync.Mutex
			killed := map[string]bool{} // hosts that a call of the request reached
			kill := func(serve http.HandlerFunc) http.HandlerFunc {
				return func(w http.ResponseWriter, r *http.Request) {
					if !strings.HasSuffix(r.Header.Get("X-Request-Id"), "-release") {
						mu.Lock()
						killed[r.Host] = true
						mu.Unlock()
					}
					serve(w, r)
				}
			}
			role := pools.Both
			if c.prefill != nil {
				role = pools.Decode
				serve := c.prefill
				if c.name == "prefill's connection breaks" {
					serve = kill(serve)
				}
				fleet.NewEngines(f, pools.Prefill, 5, serve)
			}
			fleet.NewEngines(f, role, 5, kill(c.decode))
			a := f.Post(fleet.CompletionPath, fleet.Ask(fleet.Long, 4))
			err := f.Parse(a.Body).Error
			if a.Status != http.StatusBadGateway || err == nil || *err.Code != "suspected_poison" || a.Header.Get("X-Should-Retry") != "false" {
				t.Errorf("status %d, headers %v: %s", a.Status, a.Header, a.Body)
			}
			mu.Lock()
			n := len(killed)
			mu.Unlock()
			if n != 2 {
				t.Errorf("%d workers were killed, want 2", n)
			}
			if log := f.Logs.String(); strings.Count(log, "suspected poison") != 1 || strings.Contains(log, fleet.Long) {
				t.Error("not one line of the log names it, or the log has the prompt")
			}
			if got := f.Metric(`tandem_frontend_suspected_poison_total`); got != "1" {
				t.Errorf("the metric is %q", got)
			}
			f.Idle()
		})
	}
}

// A request under which the only worker of a role dies is not one that is worth another try once that is back: 503, which
// clients' libraries send again by themselves, would kill it each time.
func TestTheOnlyWorkerDies(t *testing.T) {
	for _, leg := range []pools.Role{pools.Both, pools.Prefill, pools.Decode} {
		fleet.VirtualRun(t, string(leg), func(t *testing.T) {
			f := fleet.New(t, fleet.Options{Alone: true, Gateway: func(c *stack.GatewayConfig) { c.Flow.DecodeFallback = false }})
			fleet.NewEngines(f, leg, 1, dies)
			switch leg {
			case pools.Prefill:
				fleet.NewEngines(f, pools.Decode, 1, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
			case pools.Decode:
				fleet.NewEngines(f, pools.Prefill, 1, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, handsOver) })
			}
			a := f.Post(fleet.CompletionPath, fleet.Ask(fleet.Long, 4))
			if err := f.Parse(a.Body).Error; a.Status != http.StatusBadGateway || err == nil || *err.Code != "suspected_poison" || a.Header.Get("X-Should-Retry") != "false" {
				t.Errorf("status %d, headers %v: %s", a.Status, a.Header, a.Body)
			}
			if log := f.Logs.String(); strings.Count(log, "suspected poison") != 1 {
				t.Error("not one line of the log names it")
			}
			if got := f.Metric(`tandem_frontend_suspected_poison_total`); got != "1" {
				t.Errorf("the metric is %q", got)
			}
			f.Idle()
		})
	}
}

// The line that suspects a request names the workers that died under it: one that
// refused its connection had never seen it.
func TestPoisonNamesTheDead(t *testing.T) {
	f := fleet.New(t, fleet.Options{Alone: true, Gateway: fleet.InMode("round-robin")})
	fleet.NewEngines(f, pools.Both, 2, dies)
	w := *f.Gateway.Roster.Snapshot("tandem-sim", pools.Both).Members[0].Worker
	gone := httptest.NewServer(nil)
	gone.Close()
	for _, id := range []string{"engine-both-10", "engine-both-11", "engine-both-12"} { // between the two
		w.ID, w.Address = id, gone.URL
		if err := f.Gateway.Roster.Put(w); err != nil {
			t.Fatal(err)
		}
	}
	f.Post(fleet.CompletionPath, fleet.Ask(fleet.Long, 4))
	log := f.Logs.String()
	if !strings.Contains(log, "class=refused") {
		t.Fatal("no worker refused the request before the second death: ", log)
	}
	if !strings.Contains(log, `suspected poison`) || !strings.Contains(log, `workers="[engine-both-1 engine-both-2]"`) && !strings.Contains(log, `workers="[engine-both-2 engine-both-1]"`) {
		t.Error(log)
	}
	f.Idle()
}

// One death alone is bad luck: the request is answered by another worker.
func TestOneDeathIsNoPoison(t *testing.T) {
	f := fleet.New(t, fleet.Options{Both: 1, Speedup: 1000})
	fleet.NewEngines(f, pools.Both, 1, dies)
	for i := range 6 {
		if a := f.Post(fleet.CompletionPath, fleet.Ask(fmt.Sprint(i, fleet.Long), 4)); a.Status != http.StatusOK {
			t.Errorf("status %d: %s", a.Status, a.Body)
		}
	}
	if strings.Contains(f.Logs.String(), "suspected poison") {
		t.Error("it is suspected")
	}
	f.Idle()
}

// Probabilities of the prompt's own tokens cross no hand-off: releases of vLLM fail
// an assertion in decode's core over them.
func TestPromptLogprobsTakeOneLeg(t *testing.T) {
	f := fleet.New(t, fleet.Options{Prefill: 1, Decode: 1, Speedup: 1000})
	with := func(more string) string {
		return strings.Replace(fleet.Ask(fleet.Long, 2), `"prompt"`, more+`"prompt"`, 1)
	}
	for more, oneLeg := range map[string]bool{``: false, `"prompt_logprobs":null,`: false, `"prompt_logprobs":0,`: true, `"prompt_logprobs":5,`: true} {
		if p, d := f.Served(f.Post(fleet.CompletionPath, with(more))); (p == "") != oneLeg || d == "" {
			t.Errorf("%q: served by %q and %q", more, p, d)
		}
	}
	if p, d := f.Served(f.Post(fleet.CompletionPath, with(`"use_beam_search":true,`))); p != "" || d == "" {
		t.Errorf("beam search: served by %q and %q", p, d)
	}
	if p, d := f.Served(f.Post(fleet.CompletionPath, with(`"logprobs":1,"logprob_token_ids":[5],`))); p == "" || d == "" {
		t.Errorf("logprob_token_ids: served by %q and %q", p, d)
	}
	if got := f.Metric(`tandem_frontend_not_disaggregated_total{model="tandem-sim",reason="prompt_logprobs"}`); got != "2" {
		t.Errorf("the metric is %q", got)
	}
	a, err := f.Try(t.Context(), fleet.CompletionPath, with(`"prompt_logprobs":1,`), nil, "x-dynamo-prefill-instance-id", "prefill-1")
	if err != nil || a.Status != http.StatusBadRequest {
		t.Errorf("with a pinned prefill worker: %v, status %d: %s", err, a.Status, a.Body)
	}
	f.Idle()
}
