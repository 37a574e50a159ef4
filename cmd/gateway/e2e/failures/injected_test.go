package failures

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/decode"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/upstream"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/pools"
)

// injectedFleet is a fleet whose calls go wrong by a scenario.
type injectedFleet struct {
	*fleet.Fleet
	hits    atomic.Int64
	streams atomic.Int64 // workers' answers that are open
}

// newInjectedFleet starts a fleet of three and three, so that two failures of a
// request need not be its end. What cannot be freed by a call, such as the KV
// of a prefill whose answer was lost, ends with a lease; a second is long
// enough for every hand-off and short enough to wait for.
func newInjectedFleet(t *testing.T, rules ...fault.Rule) *injectedFleet {
	t.Helper()
	in := &injectedFleet{}
	scenario := &fault.Scenario{Seed: 7, Rules: rules, OnHit: func(upstream.Leg, string) { in.hits.Add(1) }}
	in.Fleet = fleet.New(t, fleet.Options{
		Prefill: 3, Decode: 3,
		Worker: func(c *devfleet.WorkerConfig) { c.Engine.Lease = time.Second },
		Gateway: func(c *stack.GatewayConfig) {
			c.Prefill.Timeout = time.Second
			c.Decode = decode.Config{FirstTokenTimeout: time.Second, StreamIdleTimeout: time.Hour}
			c.Pools.DownFor = time.Millisecond // a refusal is by chance here, and the next call need not be
			c.WrapTransport = func(inner upstream.Transport) upstream.Transport {
				return fault.Inject(&counting{inner, &in.streams}, scenario)
			}
		},
	})
	return in
}

// counting is a transport that counts the answers which are open.
type counting struct {
	upstream.Transport
	open *atomic.Int64
}

func (c *counting) Call(ctx context.Context, leg upstream.Leg) (upstream.Stream, error) {
	s, err := c.Transport.Call(ctx, leg)
	if err != nil {
		return nil, err
	}
	c.open.Add(1)
	return &counted{Stream: s, open: c.open}, nil
}

type counted struct {
	upstream.Stream
	open *atomic.Int64
	once sync.Once
}

func (c *counted) Close() error {
	c.once.Do(func() { c.open.Add(-1) })
	return c.Stream.Close()
}

// settled checks what holds after any replay: nothing is booked, no engine
// holds anything, and every answer of a worker was closed.
func (f *injectedFleet) settled() {
	f.T.Helper()
	f.Idle()
	f.Eventually("every answer is closed", func() bool { return f.streams.Load() == 0 })
}

// Clients that leave decode workers which have fallen silent for good take
// everything with them.
func TestClientsLeaveStalledStreams(t *testing.T) {
	fleet.Virtual(t, func(t *testing.T) {
		const clients = 20
		f := newInjectedFleet(t, fault.Rule{Fault: "stall", Probability: 1, Leg: string(pools.Decode), AfterEvents: 2})
		ctx, leave := context.WithCancel(context.Background())
		defer leave()
		var group sync.WaitGroup
		for i := range clients {
			group.Go(func() {
				_, err := f.Try(ctx, fleet.CompletionPath, fleet.Ask(fmt.Sprint(i, fleet.Long), 50), func(string) { f.First(i) })
				if !errors.Is(err, context.Canceled) {
					t.Errorf("client %d: %v", i, err)
				}
			})
		}
		f.Eventually("every stream has begun", func() bool { return f.Started() == clients })
		leave()
		group.Wait()
		f.settled()
	})
}
