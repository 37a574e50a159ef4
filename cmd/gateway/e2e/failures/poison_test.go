package failures

import (
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
// name of its own, in the answer, in the log and in a metric, also where it was the only worker that died.
func TestPoisonIsTriedTwice(t *testing.T) {
	const core = `{"error":{"message":"EngineCore encountered an issue. See stack trace (above) for the root cause.","type":"BadRequestError","param":null,"code":400}}`
	none, prefills := http.HandlerFunc(nil), fleet.Says(handsOver)
	teapot := fleet.Fails(http.StatusTeapot)
	for _, c := range []struct {
		name            string
		workers         int              // of each role
		prefill, decode http.HandlerFunc // prefill none: workers of role both
		by              pools.Role       // whose calls kill
	}{
		{"the connection breaks", 5, none, dies, pools.Decode},
		{"decode's connection breaks after a hand-off", 5, prefills, dies, pools.Decode},
		{"prefill's connection breaks", 5, dies, teapot, pools.Prefill},
		{"the stream ends before its first token", 5, none, fleet.Streams(`{"choices":[{"index":0,"text":"","finish_reason":null}]}`), pools.Decode},
		{"the engine's core dies, in an event", 5, none, fleet.Streams(core, "[DONE]"), pools.Decode},
		{"the engine's core dies, by its status", 5, none, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = io.WriteString(w, core)
		}, pools.Decode},
		// 503, which clients' libraries send again by themselves, would kill the only worker each time.
		{"the only worker dies", 1, none, dies, pools.Decode},
		{"the only decode worker dies", 1, prefills, dies, pools.Decode},
		{"the only prefill worker dies", 1, dies, teapot, pools.Prefill},
	} {
		fleet.VirtualRun(t, c.name, func(t *testing.T) {
			f := fleet.New(t, fleet.Options{Alone: true, Gateway: func(g *stack.GatewayConfig) { g.Flow.DecodeFallback = c.workers > 1 }})
			var mu sync.Mutex
			killed := map[string]bool{} // hosts that a call of the request reached
			kill := func(role pools.Role, serve http.HandlerFunc) http.HandlerFunc {
				return func(w http.ResponseWriter, r *http.Request) {
					if role == c.by && !strings.HasSuffix(r.Header.Get("X-Request-Id"), "-release") {
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
				fleet.NewEngines(f, pools.Prefill, c.workers, kill(pools.Prefill, c.prefill))
			}
			fleet.NewEngines(f, role, c.workers, kill(pools.Decode, c.decode))
			a := f.Post(fleet.CompletionPath, fleet.Ask(fleet.Long, 4))
			f.Refused(a, http.StatusBadGateway, "suspected_poison", "")
			if a.Header.Get("X-Should-Retry") != "false" {
				t.Errorf("headers %v", a.Header)
			}
			mu.Lock()
			n := len(killed)
			mu.Unlock()
			if n != min(2, c.workers) {
				t.Errorf("%d workers were killed, want %d", n, min(2, c.workers))
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

// The line that suspects a request names the workers that died under it: one that
// refused its connection had never seen it.
func TestPoisonNamesTheDead(t *testing.T) {
	f, _ := fleet.NewFake(t, pools.Both, 2, dies, fleet.InMode("round-robin"))
	w := *f.Gateway.Roster.Snapshot("tandem-sim", pools.Both).Members[0].Worker
	gone := httptest.NewServer(nil)
	gone.Close()
	for _, id := range []string{"engine-both-10", "engine-both-11", "engine-both-12"} { // between the two
		w.ID, w.Address = id, gone.URL
		f.Put(w)
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
