package handoff

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff/connector"
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
)

// cleanup calls engines to free what they still hold for ended requests. Each call has its own time limit, and a
// shutdown waits for them. The round's id names what to free, so a late call cannot affect a later round.
type cleanup struct {
	transport http1.Transport
	roster    *pools.Roster
	between   func(p, d *pools.Worker) (connector.Connector, error)
	observer  Observer
	calls     sync.WaitGroup
	slots     chan struct{}
}

// Bounds of clean-up: a release is a rejected request, answered in milliseconds. What cannot be freed in time ends
// with the engine's lease.
const (
	cleanupTimeout = 5 * time.Second
	cleanupTry     = cleanupTimeout / 2 // of one worker: the round's own may be the broken one
	cleanupAtOnce  = 256
)

func newCleanup(rooms Rooms, o Observer) *cleanup {
	return &cleanup{
		transport: rooms.Transport, roster: rooms.Roster, between: rooms.Between, observer: o,
		slots: make(chan struct{}, cleanupAtOnce),
	}
}

// release frees what engines hold of a round, through the round's decode worker or, if that is unreachable, another
// of its model.
func (c *cleanup) release(speaks connector.Connector, r connector.Round, kv prefill.KV) {
	r.Memory = nil // the round's own is released with the round
	calls := speaks.Release(r, kv)
	if len(calls) == 0 {
		return
	}
	r.Body.Retain() // the calls may carry parts of it
	c.calls.Go(func() {
		defer r.Body.Release()
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		select {
		case c.slots <- struct{}{}:
			defer func() { <-c.slots }()
		case <-ctx.Done():
		}
		err := c.callAll(ctx, calls)
		if err != nil {
			if other := c.standIn(r, speaks); other != nil {
				r.D, r.DRank = other, 0
				if calls := speaks.Release(r, kv); len(calls) > 0 {
					err = c.callAll(ctx, calls)
				}
			}
		}
		c.observer.Released(kv, r.ID, err)
		if again, ok := speaks.(connector.Repeater); ok {
			select {
			case <-time.After(again.RepeatAfter()):
				_ = c.callAll(ctx, calls) // the first result was observed above
			case <-ctx.Done():
			}
		}
	})
}

// standIn finds another eligible worker of the round's model and protocol: one that decodes or, where the connector
// allows, prefills. It returns nil if there is none.
func (c *cleanup) standIn(r connector.Round, speaks connector.Connector) *pools.Worker {
	roles := []pools.Role{pools.Decode}
	if _, any := speaks.(connector.ReleasedByAny); any {
		roles = append(roles, pools.Both, pools.Prefill)
	}
	now := time.Now()
	for _, role := range roles {
		for _, m := range c.roster.Snapshot(r.D.Model, role).Members {
			if m.Worker.ID == r.D.ID || r.P != nil && m.Worker.ID == r.P.ID || !m.Eligible(now) {
				continue
			}
			if same, err := c.between(m.Worker, m.Worker); err == nil && same == speaks {
				return m.Worker
			}
		}
	}
	return nil
}

// callAll makes the calls in parallel: a dead worker must not delay the release on another.
func (c *cleanup) callAll(ctx context.Context, legs []http1.Leg) error {
	ctx, cancel := context.WithTimeout(ctx, cleanupTry)
	defer cancel()
	errs := make([]error, len(legs))
	var all sync.WaitGroup
	for i, leg := range legs {
		all.Go(func() { errs[i] = c.call(ctx, leg) })
	}
	all.Wait()
	return errors.Join(errs...)
}

func (c *cleanup) call(ctx context.Context, leg http1.Leg) error {
	stream, err := c.transport.Call(ctx, leg)
	if err != nil {
		return err
	}
	_, broken := io.Copy(io.Discard, io.LimitReader(stream, 64<<10)) // reading to the end keeps the connection
	if err := errors.Join(broken, stream.Close()); err != nil {      // an engine that hangs after its head has released nothing
		return err
	}
	if !releasing(stream.Status()) {
		return fmt.Errorf("%w: status %d", errNotReleased, stream.Status())
	}
	return nil
}

// errNotReleased reports a release that the engine answered but did not carry out.
var errNotReleased = errors.New("engine did not look at the release")

// releasing reports whether an answer with status shows that the engine read the release. It refuses the request,
// since it does not serve its model; one that failed, has no room, or was blocked by its own server released nothing.
func releasing(status int) bool {
	switch fault.Classify(nil, status) {
	case fault.None, fault.Rejected:
		return true
	default:
		return status == http.StatusNotFound // vLLM's answer for a model that it does not serve
	}
}

// wait returns when no call is in flight, or ctx's error.
func (c *cleanup) wait(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		c.calls.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
