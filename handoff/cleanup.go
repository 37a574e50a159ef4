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
	"github.com/tandem-pd/tandem/internal/upstream"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
)

// cleanup makes the calls that free what an engine still holds for a request that has ended. They outlive the
// request: each has its own time limit, and a shutdown waits for them. An attempt's id names what they free, so a
// late call can never hurt a later attempt.
type cleanup struct {
	transport upstream.Transport
	roster    *pools.Roster
	between   func(p, d *pools.Worker) (connector.Connector, error)
	observer  Observer
	calls     sync.WaitGroup
	slots     chan struct{}
}

// Bounds of clean-up: a release is a rejected request, answered in milliseconds; what cannot be freed in time ends
// with the engine's lease.
const (
	cleanupTimeout = 5 * time.Second
	cleanupTry     = cleanupTimeout / 2 // of one worker: the round's own may be why there is something to clean up
	cleanupAtOnce  = 256
)

func newCleanup(rooms Rooms, o Observer) *cleanup {
	return &cleanup{transport: rooms.Transport, roster: rooms.Roster, between: rooms.Between, observer: o, slots: make(chan struct{}, cleanupAtOnce)}
}

// abandon frees what engines hold of a round, through the round's decode worker or, where that cannot be reached,
// through another of its model.
func (c *cleanup) abandon(speaks connector.Connector, r connector.Round, kv prefill.KV) {
	r.Memory = nil // the round's own may be another's by now
	calls := speaks.Abandon(r, kv)
	if len(calls) == 0 {
		return
	}
	c.calls.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		select {
		case c.slots <- struct{}{}:
			defer func() { <-c.slots }()
		case <-ctx.Done():
		}
		err := c.call(ctx, calls)
		if err != nil {
			if other := c.standIn(r, speaks); other != nil {
				r.D, r.DRank = other, 0
				if calls := speaks.Abandon(r, kv); len(calls) > 0 {
					err = c.call(ctx, calls)
				}
			}
		}
		c.observer.Released(kv, r.ID, err)
		if again, ok := speaks.(connector.Repeater); ok {
			select {
			case <-time.After(again.RepeatAfter()):
				_ = c.call(ctx, calls) // what came of it was observed above
			case <-ctx.Done():
			}
		}
	})
}

// standIn finds another worker of the round's model and protocol that may be called now, nil if there is none: one that
// decodes or, where the connector's release may come from any, another one that prefills.
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

// call makes the calls at once: a worker that is gone must not keep another one from being freed.
func (c *cleanup) call(ctx context.Context, legs []upstream.Leg) error {
	ctx, cancel := context.WithTimeout(ctx, cleanupTry)
	defer cancel()
	errs := make([]error, len(legs))
	var all sync.WaitGroup
	for i, leg := range legs {
		all.Go(func() { errs[i] = c.free(ctx, leg) })
	}
	all.Wait()
	return errors.Join(errs...)
}

// free makes one call.
func (c *cleanup) free(ctx context.Context, leg upstream.Leg) error {
	stream, err := c.transport.Call(ctx, leg)
	if err != nil {
		return err
	}
	_, broken := io.Copy(io.Discard, io.LimitReader(stream, 64<<10)) // read to its end, the connection is kept
	if err := errors.Join(broken, stream.Close()); err != nil {      // an engine that hangs after its head has let nothing go
		return err
	}
	if !releasing(stream.Status()) {
		return fmt.Errorf("%w: status %d", errNotReleased, stream.Status())
	}
	return nil
}

// errNotReleased is a release that the engine answered and did not carry out.
var errNotReleased = errors.New("engine did not look at the release")

// releasing reports whether an engine that answers with status has read the request and what it carries. It refuses
// it, since no engine serves its model; but one that failed, has no room, or was not let near the request by its own
// server has let nothing go.
func releasing(status int) bool {
	switch fault.Classify(nil, status) {
	case fault.None, fault.Rejected:
		return true
	default:
		return status == http.StatusNotFound // vLLM's answer for a model that it does not serve
	}
}

// wait returns when no call is in flight, or with ctx's error.
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
