package handoff

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff/connector"
	"github.com/tandem-pd/tandem/internal/openai"
)

// ownsKV reports whether decode's engine owns the KV although its call ended before the first token: it reported a
// failed transfer, or its call was cut. With plan.Attach, only a cut answer that is not streamed leaves this open.
// sent is set once a call that may ask only once has left; nil if it may ask again.
func ownsKV(plan *connector.Plan, r *request, failed *fault.Error, sent *atomic.Bool) bool {
	switch {
	case openai.ReadEngineError(failed.Detail).Failed:
		return true
	case failed.Class != fault.ClientGone && failed.Class != fault.Moved:
		return false
	case plan.Attach > 0:
		return !r.Call.Request.Stream
	}
	return r.Sent.Accepted || sent != nil && sent.Load()
}

// letAttach returns a context that outlives ctx by limit, or until the answer begins, and the sink that detects that.
func letAttach(ctx context.Context, limit time.Duration, out Sink) (_ context.Context, _ Sink, end func()) {
	if limit == 0 {
		return ctx, out, func() {}
	}
	callCtx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	started := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		select {
		case <-started:
		case <-timer.C:
		case <-callCtx.Done():
		}
		cancel(context.Cause(ctx))
	})
	return callCtx, &attaching{Sink: out, started: started}, func() { stop(); cancel(nil) }
}

// attaching wraps the client's sink to signal the start of the answer.
type attaching struct {
	Sink
	started chan struct{}
}

// Start must be called once.
func (a *attaching) Start(contentType string) {
	close(a.started)
	a.Sink.Start(contentType)
}
