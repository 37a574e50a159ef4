package edge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"runtime/debug"
	"sync"
	"sync/atomic"

	"github.com/valyala/fasthttp"

	"github.com/tandem-pd/tandem/cmd/gateway/dialect"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/openai"
)

// statusClientLeft is the status, in metrics and logs, of a client that left early. It is never sent.
const statusClientLeft = 499

var errNoAnswer = errors.New("the flow ended without an answer")

// exchange is one call of the flow and its answer, the flow's Sink. The flow runs on the connection's goroutine. A
// JSON answer is collected and becomes the response; an event stream is written as it is produced. The loop that
// relays a stream, the heartbeat and a shutdown use it concurrently.
type exchange struct {
	s      *Server
	conn   *conn
	ctx    *fasthttp.RequestCtx
	call   handoff.Call
	stream bool           // the client requested events
	answer dialect.Answer // converts to the client's dialect; nil for a chat or a completion
	life   http1.Lifetime // of the call

	left   atomic.Bool // the client is gone
	active atomic.Bool // written since the heartbeat's last check
	quiet  int         // the heartbeat's checks since then; owned by it

	mu          sync.Mutex
	started     bool // status 200 is committed
	begun       bool // by the flow, not the heartbeat
	contentType string
	body        []byte       // of a JSON answer
	long        bool         // a long JSON answer, sent piece by piece
	out         http1.Answer // of a stream
	converted   []byte       // memory for the client's events
	tail        [4]byte      // the last bytes of the stream, to detect an event's end
	over        error        // why nothing more is accepted
	cutBy       *openai.Error
}

// serve calls the flow and turns its end into the response, or ends the stream.
func (x *exchange) serve() {
	s, c := x.s, x.conn
	x.stream = x.call.Request.Stream
	x.call.Request.Memory = (*making)(x)
	x.life.Begin(context.Background())
	s.live.Add(x)
	s.startBeats()
	c.OnLeave(func() { x.leave(fault.ErrClientGone) })
	err, panicked := x.run()
	c.Unwatch()
	s.live.Remove(x)
	s.bodies.release(&c.request)
	x.life.Close()
	x.end(err, panicked)
}

// run calls the flow and turns a panic into an error.
func (x *exchange) run() (err error, panicked bool) {
	defer func() {
		if v := recover(); v != nil {
			x.s.log.LogAttrs(&x.life, slog.LevelError, "panic in the flow",
				slog.String("request_id", x.conn.request.id), slog.Any("panic", v), slog.String("stack", string(debug.Stack())))
			err, panicked = openai.Internal(), true
		}
	}()
	return x.s.flow.Serve(&x.life, &x.call, x), false
}

// Start sets status 200 and the content type. A second call has no effect.
func (x *exchange) Start(contentType string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.begun = true
	x.start(contentType)
}

// start begins the answer. The caller holds mu.
func (x *exchange) start(contentType string) {
	if x.started {
		return
	}
	x.started, x.contentType = true, contentType
	if x.streams() {
		x.open()
	}
}

// open begins a streamed answer. The caller holds mu.
func (x *exchange) open() {
	x.s.metrics.openStreams.Add(1)
	h := &x.ctx.Response.Header
	h.SetContentType(x.contentType)
	h.SetCanonical(cacheControl, noCache)
	h.SetCanonical(accelBuffering, off)
	x.conn.state.releaseReader()
	r := &x.conn.request
	r.streamed = true
	if x.out.Plain {
		h.SetContentLength(-2) // until the connection's end
	} else {
		h.SetContentLength(-1) // chunks
		if x.ctx.Request.Header.ConnectionClose() || r.unread || x.conn.frontend.server.Closing() {
			h.SetConnectionClose()
		}
	}
	r.next = !x.out.Plain && !h.ConnectionClose()
	x.out.Begin(h.Header())
}

// streams reports whether the answer is streamed. The caller holds mu.
func (x *exchange) streams() bool { return x.long || x.events() }

// The fields of every streamed answer: no caching, and no buffering by nginx in front of us.
var (
	cacheControl, noCache = []byte("Cache-Control"), []byte("no-cache")
	accelBuffering, off   = []byte("X-Accel-Buffering"), []byte("no")
)

// Write sends a part of the answer; see handoff.Sink.
func (x *exchange) Write(p []byte) error { return x.take(p, true) }

// Last queues the last part of the answer, which is sent together with its end.
func (x *exchange) Last(p []byte) error { return x.take(p, false) }

func (x *exchange) take(p []byte, now bool) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if now && len(p) > pieceBytes && x.started && !x.streams() && x.answer == nil {
		x.long = true
		x.open()
	}
	for ; len(p) > pieceBytes && now; p = p[pieceBytes:] {
		err := x.queue(p[:pieceBytes])
		if err == nil {
			err = x.flush()
		}
		if err != nil {
			return err
		}
	}
	if err := x.queue(p); err != nil || !now {
		return err
	}
	return x.flush()
}

// pieceBytes is how much of a long answer is framed at a time. A longer JSON answer is streamed.
const pieceBytes = 256 << 10

// TryWrite queues p and sends what it can without waiting. Its error is [http1.ErrWouldBlock] while queued bytes remain;
// TryFlush sends more.
func (x *exchange) TryWrite(p []byte) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.queue(p); err != nil {
		return err
	}
	return x.out.Push()
}

// TryFlush sends what it can without waiting; see TryWrite.
func (x *exchange) TryFlush() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.out.Push()
}

// OnWritable calls f once the client can receive more, or has stalled; see [http1.Socket].
func (x *exchange) OnWritable(f func()) bool { return x.conn.OnWritable(f) }

// Polls reports whether TryWrite and OnWritable may be called: a loop polls the connection.
func (x *exchange) Polls() bool { return x.conn.Polls() }

// queue frames p. The caller holds mu.
func (x *exchange) queue(p []byte) error {
	switch {
	case x.left.Load():
		return fault.ErrClientGone
	case x.over != nil:
		return x.over
	case !x.streams():
		x.body = append(x.body, p...)
		return nil
	case x.answer != nil:
		x.converted = x.answer.Events(x.converted[:0], p)
		p = x.converted
	}
	x.put(p)
	return nil
}

// put frames bytes of a stream as they are. The caller holds mu.
func (x *exchange) put(p []byte) {
	if len(p) == 0 {
		return
	}
	x.out.Queue(p)
	x.active.Store(true)
	k := copy(x.tail[:], x.tail[min(len(p), len(x.tail)):])
	copy(x.tail[k:], p[max(0, len(p)-len(x.tail)):])
}

// flush sends what is queued, and waits for a slow client. The caller holds mu, which flush releases while waiting.
func (x *exchange) flush() error {
	err := x.out.Flush(&x.mu)
	if err != nil {
		err = leaveCause(err)
		x.leave(err)
	}
	return err
}

// end turns the flow's end into the response, or ends the stream.
func (x *exchange) end(err error, panicked bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	ctx := x.ctx
	if x.cutBy != nil && !x.started {
		err = x.cutBy
	}
	switch {
	case x.streams():
		x.endStream(err, panicked)
	case x.left.Load():
		ctx.SetStatusCode(statusClientLeft) // for the metrics: writes fail
		ctx.SetConnectionClose()
	case err != nil || !x.started:
		// No client needs half a JSON answer: a late failure has its own status.
		x.s.writeError(ctx, x.conn.request.id, x.explain(cmp.Or(err, errNoAnswer)))
	default:
		x.whole(ctx)
	}
	x.over = io.ErrClosedPipe
}

// prompt passes the prompt's length in tokens to the answer.
func (x *exchange) prompt(tokens int) {
	x.mu.Lock() // the heartbeat may use the answer, too
	defer x.mu.Unlock()
	x.answer.Prompt(tokens)
}

// whole makes the collected answer the response. The caller holds mu.
func (x *exchange) whole(ctx *fasthttp.RequestCtx) {
	body := x.body
	if x.answer != nil {
		var err error
		if body, err = x.answer.Whole(make([]byte, 0, len(body)+512), body); err != nil {
			x.s.writeError(ctx, x.conn.request.id, x.explain(err))
			return
		}
	}
	ctx.Response.Header.SetContentType(x.contentType)
	ctx.Response.SetBodyRaw(body)
}

// endStream ends a stream. A failed one lacks its last chunk, so that clients that ignore error events (curl, load
// tools) detect an incomplete body. The caller holds mu.
func (x *exchange) endStream(err error, panicked bool) {
	if x.over == nil && !x.left.Load() {
		if !x.begun {
			err = cmp.Or(err, errNoAnswer)
		}
		if x.events() && (!x.begun || panicked) {
			x.put(x.errorEvent(x.explain(err)))
		}
		if err != nil {
			x.conn.request.next = false
		} else {
			x.out.Finish()
		}
	}
	failed := x.flush()
	status := http.StatusOK
	if x.left.Load() || failed != nil {
		status = statusClientLeft
		x.conn.request.next = false
		if x.out.Plain {
			x.conn.Reset() // half an answer must not look complete
		}
	}
	x.s.metrics.openStreams.Add(-1)
	x.s.metrics.count(x.conn.request.endpoint, status)
}

// leave abandons the exchange when its client is gone: cause is fault.ErrClientGone or wraps it.
func (x *exchange) leave(cause error) {
	if !x.left.Swap(true) {
		x.s.metrics.disconnected.Inc()
		x.life.End(cause)
	}
}

// cut ends the exchange when a shutdown's time is up, with an error for a client that reads.
func (x *exchange) cut() {
	defer x.life.End(fault.ErrShutdown)
	if !x.mu.TryLock() { // a write is waiting: the client does not read
		return
	}
	defer x.mu.Unlock()
	if x.over != nil {
		return
	}
	e := openai.Unavailable("shutting_down", "the gateway is shutting down")
	x.cutBy = e
	if x.streams() {
		if x.events() {
			x.put(x.errorEvent(e))
		}
		_ = x.out.Push()
		x.conn.request.next = false
		x.over = e
	}
}

// explain returns the client's error for the flow's.
func (x *exchange) explain(err error) *openai.Error {
	if e := (*openai.Error)(nil); errors.As(err, &e) {
		return e
	}
	x.s.log.Error("internal error", "request_id", x.conn.request.id, "error", err)
	return openai.Internal()
}

// leaveCause returns why a client counts as gone when its connection failed with err.
func leaveCause(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%w: it stopped reading", fault.ErrClientGone)
	}
	return fault.ErrClientGone
}
