package handoff

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/tandem-pd/tandem/fault"
)

// A call continues after its client has left until its answer begins, or the limit; with an answer that has begun it ends
// with the client.
func TestLetAttach(t *testing.T) {
	const limit = 5 * time.Second
	for _, c := range []struct {
		name          string
		limit         time.Duration
		begins, leave time.Duration // from the call's beginning; 0 never
		ends          time.Duration
	}{
		{"no limit of its own", 0, 0, time.Second, time.Second},
		{"the answer never begins", limit, 0, time.Second, time.Second + limit},
		{"the answer begins afterwards", limit, 3 * time.Second, time.Second, 3 * time.Second},
		{"the answer had begun", limit, time.Second, 4 * time.Second, 4 * time.Second},
	} {
		bubble(t, c.name, func(t *testing.T) {
			ctx, leave := context.WithCancelCause(t.Context())
			call, out, end := letAttach(ctx, c.limit, &written{})
			defer end()
			time.AfterFunc(c.leave, func() { leave(fault.ErrClientGone) })
			if c.begins > 0 {
				time.AfterFunc(c.begins, func() { out.Start("text/event-stream") })
			}
			start := time.Now()
			<-call.Done()
			assert.Equal(t, c.ends, time.Since(start))
			assert.ErrorIs(t, context.Cause(call), fault.ErrClientGone)
		})
	}
	bubble(t, "a call that ends first leaves nothing behind", func(t *testing.T) {
		ctx, leave := context.WithCancelCause(t.Context())
		call, _, end := letAttach(ctx, limit, &written{})
		leave(fault.ErrClientGone)
		synctest.Wait()
		end()
		synctest.Wait()
		assert.Error(t, call.Err(), "it continues")
	})
}
