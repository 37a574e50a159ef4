package failures

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/internal/upstream"
	"github.com/tandem-pd/tandem/pools"
)

// noPrefill is a transport over which every prefill fails; it counts the others.
type noPrefill struct {
	upstream.Transport
	prefills, decodes *atomic.Int64
}

func (n noPrefill) Call(ctx context.Context, leg upstream.Leg) (upstream.Stream, error) {
	switch pools.Role(leg.Purpose) {
	case pools.Prefill:
		n.prefills.Add(1)
		return nil, &upstream.Error{Worker: leg.Worker, Op: upstream.OpHead, Err: errors.New("the wire is cut")}
	case pools.Decode:
		n.decodes.Add(1)
	}
	return n.Transport.Call(ctx, leg)
}

// With --no-decode-fallback no decode worker computes a prompt, however many prefill
// workers have failed the request.
func TestNoDecodeFallbackHolds(t *testing.T) {
	for name, prefills := range map[string]int{"more prefill workers than attempts": 7, "fewer": 2} {
		t.Run(name, func(t *testing.T) {
			var calls noPrefill
			calls.prefills, calls.decodes = new(atomic.Int64), new(atomic.Int64)
			f := fleet.New(t, fleet.Options{Prefill: prefills, Decode: 1, Gateway: func(c *stack.GatewayConfig) {
				c.Flow.DecodeFallback = false
				c.WrapTransport = func(inner upstream.Transport) upstream.Transport {
					calls.Transport = inner
					return calls
				}
			}})
			a := f.Post(fleet.CompletionPath, fleet.Ask(fleet.Long, 2))
			if a.Status != http.StatusBadGateway && a.Status != http.StatusServiceUnavailable {
				t.Errorf("status %d: %s", a.Status, a.Body)
			}
			if calls.decodes.Load() != 0 || calls.prefills.Load() == 0 {
				t.Errorf("%d calls to prefill and %d to decode", calls.prefills.Load(), calls.decodes.Load())
			}
			f.Idle()
		})
	}
}

// Workers of role both serve while the only decode worker drains, and no longer
// once it is back.
func TestWorkersThatServeAloneStandIn(t *testing.T) {
	f := fleet.New(t, fleet.Options{Prefill: 1, Decode: 1, Both: 1})
	generates := func() string {
		t.Helper()
		a := f.Post(fleet.CompletionPath, fleet.Pinned(""))
		if a.Status != http.StatusOK {
			t.Fatalf("status %d: %s", a.Status, a.Body)
		}
		return f.Parse(a.Body).Nvext.WorkerID.Decode
	}
	for _, drains := range []bool{false, true, false} {
		if err := f.Gateway.Roster.Drain("decode-1", drains); err != nil {
			t.Fatal(err)
		}
		if got := generates(); strings.HasPrefix(got, "both-") != drains {
			t.Errorf("with decode-1 draining %t, %s generates", drains, got)
		}
	}
	f.Idle()
}
