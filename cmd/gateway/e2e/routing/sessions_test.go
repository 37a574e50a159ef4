package routing

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/lab/fleet"
	"github.com/tandem-pd/tandem/pools"
)

// TestSessionsAreBound: a session stays on the worker that served it first, though others have less to do, until that
// fails: then on the one that served it instead, though the first is well again.
func TestSessionsAreBound(t *testing.T) {
	f := fleet.New(t, fleet.Options{Alone: true, Gateway: func(c *stack.GatewayConfig) { c.SessionTTL = time.Hour }})
	var ill atomic.Pointer[string] // the host of the engine that fails
	var holds atomic.Bool          // the next call lasts
	held := make(chan struct{})
	fleet.NewEngines(f, pools.Both, 3, func(w http.ResponseWriter, r *http.Request) {
		if holds.CompareAndSwap(true, false) {
			fleet.FirstToken(w)
			<-held
			fleet.SSE(w, fleet.Last, "[DONE]")
			return
		}
		if host := ill.Load(); host != nil && *host == r.Host {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		fleet.SSE(w, fleet.Token, fleet.Last, "[DONE]")
	})
	turns := 0
	turn := func(headers ...string) string {
		t.Helper()
		turns++
		a := f.Good(fleet.CompletionPath, fleet.Ask(fmt.Sprint(turns, fleet.Long), 2), headers...)
		_, on := f.Served(a)
		return on
	}
	home := turn("X-Dynamo-Session-ID", "s")
	holds.Store(true)
	f.Group.Go(func() {
		_, _ = f.Try(context.Background(), fleet.CompletionPath,
			fmt.Sprintf(`{"model":"tandem-sim","stream":true,"prompt":%q,"nvext":{"backend_instance_id":%q}}`, fleet.Long, home), nil)
	})
	f.Eventually("its worker has most to do", func() bool { return !holds.Load() })
	for range 5 {
		assert.Equal(t, home, turn("X-Session-ID", "s"), "the session's worker")
	}
	assert.NotEqual(t, home, turn(), "the worker of a request without a session")
	close(held)
	m, _ := f.Gateway.Roster.Lookup(home)
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
		assert.Equal(t, want, f.Metric(fmt.Sprintf(`tandem_router_session_events_total{event=%q,model="tandem-sim",role="both"}`, event)), event)
	}
	assert.Equal(t, "1", f.Metric(`tandem_router_session_bindings{model="tandem-sim",role="both"}`), "bindings")
	f.Idle()
}
