package failures

import (
	"context"
	"net"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/pools"
)

// A gateway whose own descriptors, ports or resolver are at their end holds it
// against no worker: clients get a 503 that says so, and the first request after
// it is served.
func TestOwnWantBlamesNoWorker(t *testing.T) {
	for name, want := range map[string]error{
		"descriptors": os.NewSyscallError("socket", syscall.EMFILE),
		"ports":       os.NewSyscallError("connect", syscall.EADDRNOTAVAIL),
		"resolver":    &net.DNSError{Err: "server misbehaving", Name: "worker"},
	} {
		t.Run(name, func(t *testing.T) {
			var lacks atomic.Bool
			lacks.Store(true)
			f := fleet.New(t, fleet.Options{Speedup: 1000, Gateway: func(c *stack.GatewayConfig) {
				c.Upstream.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
					if lacks.Load() {
						return nil, &net.OpError{Op: "dial", Net: network, Err: want}
					}
					return new(net.Dialer).DialContext(ctx, network, address)
				}
			}})
			for range 5 {
				a := f.Post(fleet.CompletionPath, fleet.Ask(fleet.Long, 2))
				err := f.Parse(a.Body).Error
				if a.Status != http.StatusServiceUnavailable || err == nil || *err.Code != "gateway_error" || a.Header.Get("Retry-After") == "" || strings.Contains(err.Message, "decode worker failed") {
					t.Errorf("status %d: %s", a.Status, a.Body)
				}
			}
			if open := f.Circuits(); len(open) > 0 {
				t.Errorf("circuits %v", open)
			}
			for _, p := range f.Gateway.Fleet.Report() {
				for _, w := range p.Workers {
					if w.State != pools.Up.String() {
						t.Errorf("%s is %s", w.ID, w.State)
					}
				}
			}
			lacks.Store(false)
			if p, d := f.Served(f.Post(fleet.CompletionPath, fleet.Ask(fleet.Long, 2))); p == "" || d == "" {
				t.Errorf("after it: served by %q and %q", p, d)
			}
			f.Idle()
		})
	}
}
