package edge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/openai"
)

// statusClientLeft stands in metrics and logs for a client that left before its answer was complete. It is never
// sent.
const statusClientLeft = 499

// eventStream is the content type of an answer that is streamed.
const eventStream = "text/event-stream"

// errNoAnswer is a flow's that ended without an error and without an answer.
var errNoAnswer = errors.New("the flow ended without an answer")

// exchange is one call of the flow and its answer: the Sink that the flow writes to, and what fasthttp reads from.
// Three goroutines meet here: the flow's (Start, Write, run), the connection's (answer and the body), and the
// watcher's (leave).
type exchange struct {
	s        *Server
	conn     *conn
	endpoint string
	id       string
	ring     *ring
	held     int // bytes that the body takes of the budget
	cancel   context.CancelCauseFunc

	mu          sync.Mutex
	decided     chan struct{} // closed when answer can go on: started, over or left
	isDecided   bool
	started     bool // status 200 is committed
	begun       bool // by the flow, and not by the first heartbeat
	left        bool
	contentType string
	err         error       // why there is no answer
	beat        *time.Timer // of a call for an event stream; nil without heartbeat
}

func newExchange(s *Server, c *conn) *exchange {
	return &exchange{
		s: s, conn: c, endpoint: c.request.endpoint, id: c.request.id,
		ring: newRing(s.cfg.RingBytes), decided: make(chan struct{}),
	}
}

// begin runs the flow on a goroutine of its own and watches the client.
func (x *exchange) begin(call handoff.Call) {
	ctx, cancel := context.WithCancelCause(context.Background())
	x.cancel = cancel
	x.held = cap(call.Request.Raw)
	x.s.live.add(x)
	if every := x.s.cfg.Heartbeat; every > 0 && call.Request.Stream {
		x.beat = time.AfterFunc(every, x.startEarly)
	}
	x.conn.onLeave(func() { x.leave(fault.ErrClientGone) })
	go x.run(ctx, call)
}

// startEarly begins an event stream before the flow does, with a comment: what waits in the queue or for its prefill
// is kept alive too. From here on a failure is an event of the stream.
func (x *exchange) startEarly() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.isDecided {
		return
	}
	x.started, x.contentType = true, eventStream
	x.ring.ping()
	x.decide()
}

// Start commits status 200 and the content type. A second call changes nothing.
func (x *exchange) Start(contentType string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.begun = true
	if x.started {
		return
	}
	x.started, x.contentType = true, contentType
	x.decide()
}

// Write queues a part of the body; see handoff.Sink.
func (x *exchange) Write(p []byte) error { return x.ring.Write(p) }

// answer waits for the flow's decision and fills in the response. It returns while the flow may still run, but never
// while the watcher reads, unless the body that it left in ctx sees to that.
func (x *exchange) answer(ctx *fasthttp.RequestCtx) {
	<-x.decided
	x.mu.Lock()
	started, left, contentType, err := x.started, x.left, x.contentType, x.err
	x.mu.Unlock()

	whole := false
	if started && !left && !isEventStream(contentType) {
		// No client needs the first half of a JSON answer early. Waiting for the end gives it a length, and a late
		// failure its own status.
		whole, err = x.ring.settle()
		left = errors.Is(err, fault.ErrClientGone)
	}
	switch {
	case left:
		x.close()
		ctx.SetStatusCode(statusClientLeft) // for the metrics: writes fail
		ctx.SetConnectionClose()
	case err != nil || !started:
		x.close()
		x.s.writeError(ctx, x.id, x.explain(err))
	case whole:
		ctx.Response.Header.SetContentType(contentType)
		x.ring.drainTo(ctx.Response.BodyWriter())
		x.close()
	default:
		x.stream(ctx, contentType)
	}
}

// stream leaves the rest to a body that fasthttp pulls.
func (x *exchange) stream(ctx *fasthttp.RequestCtx, contentType string) {
	ctx.Response.Header.SetContentType(contentType)
	if isEventStream(contentType) {
		ctx.Response.Header.Set("Cache-Control", "no-cache")
		ctx.Response.Header.Set("X-Accel-Buffering", "no") // nginx in front of us
		x.startBeat()
	}
	x.s.metrics.openStreams.Inc()
	if !ctx.Request.Header.IsHTTP11() {
		x.streamUntilClose(ctx)
		return
	}
	ctx.Response.SetBodyStream(&body{x: x}, -1)
}

// leave gives the exchange up for a client that is gone: cause is fault.ErrClientGone or wraps it.
func (x *exchange) leave(cause error) {
	x.mu.Lock()
	first := !x.left
	x.left = true
	x.decide()
	x.mu.Unlock()
	x.cancel(cause)
	x.ring.abort(cause)
	if first {
		x.s.metrics.disconnected.Inc()
	}
}

// cut ends the exchange for a shutdown whose time is up. An event stream gets to know; anything else that has begun
// breaks off.
func (x *exchange) cut() {
	e := openai.Unavailable("shutting_down", "the gateway is shutting down")
	x.mu.Lock()
	if !x.started {
		x.err = e
	}
	if x.started && isEventStream(x.contentType) {
		x.ring.end(x.errorEvent(e))
	} else {
		x.ring.abort(e)
	}
	x.decide()
	x.mu.Unlock()
	x.cancel(fault.ErrShutdown)
}

// close releases the connection's side. Bookings and workers are the flow's.
func (x *exchange) close() {
	x.mu.Lock()
	if x.beat != nil {
		x.beat.Stop()
	}
	x.mu.Unlock()
	x.conn.unwatch()
	x.ring.Close()
}

// decide lets answer go on. The caller holds mu.
func (x *exchange) decide() {
	if !x.isDecided {
		x.isDecided = true
		close(x.decided)
	}
}

// run is the flow's goroutine.
func (x *exchange) run(ctx context.Context, call handoff.Call) {
	defer x.s.live.remove(x)
	defer x.s.bodies.give(x.held)
	defer x.cancel(nil)
	err, panicked := x.serve(ctx, call)

	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case !x.started && x.err == nil:
		x.err = cmp.Or(err, errNoAnswer)
		x.ring.abort(x.err)
	case x.left: // leave aborts the ring with its own cause, which may be a moment from now
	case !x.begun && isEventStream(x.contentType):
		x.ring.end(x.errorEvent(x.explain(cmp.Or(err, errNoAnswer))))
	case err == nil:
		x.ring.end(nil)
	case !isEventStream(x.contentType):
		// The client must not take half an answer for a whole one.
		x.ring.abort(err)
	case panicked:
		x.ring.end(x.errorEvent(x.explain(err)))
	default:
		x.ring.end(nil) // the flow has written the error event
	}
	x.decide()
}

// serve calls the flow and turns a panic into an error.
func (x *exchange) serve(ctx context.Context, call handoff.Call) (err error, panicked bool) {
	defer func() {
		if v := recover(); v != nil {
			x.s.log.LogAttrs(ctx, slog.LevelError, "panic in the flow",
				slog.String("request_id", x.id), slog.Any("panic", v), slog.String("stack", string(debug.Stack())))
			err, panicked = openai.Internal(), true
		}
	}()
	return x.s.flow.Serve(ctx, call, x), false
}

// explain turns the flow's error into the one that is sent.
func (x *exchange) explain(err error) *openai.Error {
	if e := (*openai.Error)(nil); errors.As(err, &e) {
		return e
	}
	x.s.log.Error("the flow failed without a status", "request_id", x.id, "error", err)
	return openai.Internal()
}

// errorEvent is e as the last event of a stream, set off from whatever half event may stand before it.
func (x *exchange) errorEvent(e *openai.Error) []byte {
	return fmt.Appendf(nil, "\n\ndata: %s\n\n", e.Append(nil, x.id))
}

// startBeat begins to look for silence in an event stream.
func (x *exchange) startBeat() {
	every := x.s.cfg.Heartbeat
	if every <= 0 {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.beat != nil {
		x.beat.Stop()
	}
	x.beat = time.AfterFunc(every, func() {
		if next := x.ring.beat(every); next > 0 {
			x.mu.Lock()
			x.beat.Reset(next)
			x.mu.Unlock()
		}
	})
}

func isEventStream(contentType string) bool {
	return strings.HasPrefix(contentType, eventStream)
}
