package handoff

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/decode"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff/connector"
	"github.com/tandem-pd/tandem/internal/openai"
)

// takes reports whether decode's engine has the KV in hand although its call ended before its first token was seen:
// one that reports a failed transfer has, and so has one whose call was cut. Where it was given time to ask for the KV,
// only an answer that is not streamed leaves open whether it has. sent is set when a call has left that may ask once; nil if it may
// ask again.
func takes(plan *connector.Plan, r *request, failed *fault.Error, sent *atomic.Bool) bool {
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

// letAttach is a context for a decode call that goes on for a while after ctx has ended, or until the answer begins,
// and the sink that tells it; end ends it.
func letAttach(ctx context.Context, limit time.Duration, out Sink) (_ context.Context, _ Sink, end func()) {
	if limit == 0 {
		return ctx, out, func() {}
	}
	call, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	begun := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		timer := time.NewTimer(limit)
		defer timer.Stop()
		select {
		case <-begun:
		case <-timer.C:
		case <-call.Done():
		}
		cancel(context.Cause(ctx))
	})
	return call, &attaching{Front: decode.Front{Sink: out}, begun: begun}, func() { stop(); cancel(nil) }
}

// attaching is a client's sink that reports the beginning of the answer.
type attaching struct {
	decode.Front
	begun chan struct{}
}

// Start is called once.
func (a *attaching) Start(contentType string) {
	close(a.begun)
	a.Sink.Start(contentType)
}
