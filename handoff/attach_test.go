package handoff

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-pd/tandem/fault"
)

// quiet is a client's sink that takes all.
type quiet struct{}

func (quiet) Start(string)       {}
func (quiet) Write([]byte) error { return nil }
func (quiet) Last([]byte) error  { return nil }

// A call goes on after its client has left until its answer begins, or the limit; with an answer that has begun it ends
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
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, leave := context.WithCancelCause(t.Context())
				call, out, end := letAttach(ctx, c.limit, quiet{})
				defer end()
				time.AfterFunc(c.leave, func() { leave(fault.ErrClientGone) })
				if c.begins > 0 {
					time.AfterFunc(c.begins, func() { out.Start("text/event-stream") })
				}
				start := time.Now()
				<-call.Done()
				if took := time.Since(start); took != c.ends || !errors.Is(context.Cause(call), fault.ErrClientGone) {
					t.Errorf("ended after %v by %v, want %v", took, context.Cause(call), c.ends)
				}
			})
		})
	}
	// A call that ends first leaves nothing behind.
	synctest.Test(t, func(t *testing.T) {
		ctx, leave := context.WithCancelCause(t.Context())
		call, _, end := letAttach(ctx, limit, quiet{})
		leave(fault.ErrClientGone)
		synctest.Wait()
		end()
		synctest.Wait()
		if call.Err() == nil {
			t.Error("it goes on")
		}
	})
}
