package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/pools"
)

// TestSessionsAreBound: a session stays on the worker that served it first, though others have less to do, until that fails: then on
// the one that served it instead, though the first is well again.
func TestSessionsAreBound(t *testing.T) {
	f := newFleet(t, options{alone: true, gateway: func(c *stack.GatewayConfig) { c.SessionTTL = time.Hour }})
	var ill atomic.Pointer[string] // the host of the engine that fails
	var holds atomic.Bool          // the next call lasts
	held := make(chan struct{})
	newEngines(f, pools.Both, 3, func(w http.ResponseWriter, r *http.Request) {
		if holds.CompareAndSwap(true, false) {
			firstToken(w)
			<-held
			sse(w, last, "[DONE]")
			return
		}
		if host := ill.Load(); host != nil && *host == r.Host {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		sse(w, token, last, "[DONE]")
	})
	turns := 0
	turn := func(headers ...string) string {
		t.Helper()
		turns++
		a, err := f.try(context.Background(), completionPath, ask(fmt.Sprint(turns, long), 2), nil, headers...)
		if err != nil || a.status != http.StatusOK {
			t.Fatal(a.status, string(a.body), err)
		}
		_, on := f.served(a)
		return on
	}
	home := turn("X-Dynamo-Session-ID", "s")
	holds.Store(true)
	f.group.Go(func() {
		_, _ = f.try(context.Background(), completionPath, fmt.Sprintf(`{"model":"tandem-sim","stream":true,"prompt":%q,"nvext":{"backend_instance_id":%q}}`, long, home), nil)
	})
	f.eventually("its worker has most to do", func() bool { return !holds.Load() })
	for range 5 {
		if on := turn("X-Session-ID", "s"); on != home {
			t.Errorf("on %s, bound to %s", on, home)
		}
	}
	if on := turn(); on == home {
		t.Errorf("a request of no session is on %s, which has most to do", on)
	}
	close(held)
	m, _ := f.gateway.Roster.Lookup(home)
	host := strings.TrimPrefix(m.Worker.Address, "http://")
	ill.Store(&host)
	next := turn("X-Session-ID", "s")
	ill.Store(nil)
	for range 5 {
		if on := turn("X-Session-ID", "s"); on != next || on == home {
			t.Errorf("on %s; %s failed, and %s took the session over", on, home, next)
		}
	}
	for event, want := range map[string]string{"bound": "2", "hit": "10", "dropped": "1", "moved": "0", "elsewhere": "0", "evicted": "0"} {
		if got := f.metric(fmt.Sprintf(`tandem_router_session_events_total{event=%q,model="tandem-sim",role="both"}`, event)); got != want {
			t.Errorf("%s %s sessions, want %s", event, got, want)
		}
	}
	if got := f.metric(`tandem_router_session_bindings{model="tandem-sim",role="both"}`); got != "1" {
		t.Errorf("%s bindings", got)
	}
	f.idle()
}
