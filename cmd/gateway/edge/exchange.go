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
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/valyala/fasthttp"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/lifetime"
	"github.com/tandem-pd/tandem/internal/loop"
	"github.com/tandem-pd/tandem/internal/openai"
)

// statusClientLeft stands in metrics and logs for a client that left before its answer was complete. It is never
// sent.
const statusClientLeft = 499

// errNoAnswer is a flow's that ended without an error and without an answer.
var errNoAnswer = errors.New("the flow ended without an answer")

// exchange is one call of the flow and its answer: the Sink that the flow writes to. The flow runs on the connection's
// goroutine. A JSON answer is collected and becomes the response; an event stream leaves as it comes, by the
// exchange's own writes. Others meet them here: the loop that relays a stream and sees the client leave, the heartbeat,
// and a shutdown.
type exchange struct {
	s      *Server
	conn   *conn
	ctx    *fasthttp.RequestCtx
	call   handoff.Call
	stream bool             // the client asked for events
	plain  bool             // no chunks: the answer ends with the connection
	life   lifetime.Context // of the call

	left   atomic.Bool // the client is gone
	active atomic.Bool // something was written since the heartbeat looked
	quiet  int         // how often it has looked since; its own

	mu          sync.Mutex
	started     bool // status 200 is committed
	begun       bool // by the flow, and not by the heartbeat
	contentType string
	body        []byte  // of a JSON answer
	long        bool    // it is one, and leaves piece by piece
	out         []byte  // of a stream, framed: what is to be sent
	lent        *[]byte // out's memory; nil while nothing is to be sent
	sent        int     // of out
	tail        [4]byte // the last bytes of the stream, to know where an event ends
	over        error   // why nothing more is taken
	cutBy       *openai.Error
}

// serve calls the flow and makes of its end the response, or the stream's end.
func (x *exchange) serve() {
	s, c := x.s, x.conn
	x.stream = x.call.Request.Stream
	x.call.Request.Memory = (*making)(x)
	x.life.Begin(context.Background())
	body := x.call.Request.Raw
	s.live.add(x)
	s.startBeats()
	c.onLeave(func() { x.leave(fault.ErrClientGone) })
	err, panicked := x.run()
	c.unwatch()
	s.live.remove(x)
	if s.bodies.release(&c.request); x.call.Alone {
		s.bodies.keep(body)
	}
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

// Start commits status 200 and the content type. A second call changes nothing.
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

// open begins an answer that leaves as it comes. The caller holds mu.
func (x *exchange) open() {
	x.conn.turn.shed()
	x.s.metrics.openStreams.Inc()
	x.borrow()
	x.out = x.head(x.out)
}

// streams reports whether the answer leaves as it comes. The caller holds mu.
func (x *exchange) streams() bool { return x.long || x.events() }

// The fields of every streamed answer: no cache keeps it, and nginx in front of us holds nothing back.
var (
	cacheControl, noCache = []byte("Cache-Control"), []byte("no-cache")
	accelBuffering, off   = []byte("X-Accel-Buffering"), []byte("no")
)

// head appends the head of a streamed answer.
func (x *exchange) head(dst []byte) []byte {
	h := &x.ctx.Response.Header
	h.SetContentType(x.contentType)
	h.SetCanonical(cacheControl, noCache)
	h.SetCanonical(accelBuffering, off)
	x.conn.request.streamed = true
	switch {
	case x.plain:
		h.SetContentLength(-2) // the connection's end
	default:
		h.SetContentLength(-1) // chunks
		if x.ctx.Request.Header.ConnectionClose() || x.conn.request.unread || x.conn.frontend.closing.Load() {
			h.SetConnectionClose()
		}
	}
	x.conn.request.next = !x.plain && !h.ConnectionClose()
	return append(dst, h.Header()...)
}

// Write sends a part of the answer; see handoff.Sink.
func (x *exchange) Write(p []byte) error { return x.take(p, true) }

// Last queues the last part of the answer, which leaves together with its end.
func (x *exchange) Last(p []byte) error { return x.take(p, false) }

func (x *exchange) take(p []byte, now bool) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if now && len(p) > pieceBytes && x.started && !x.streams() {
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

// pieceBytes is how much of a long answer is framed at a time; a JSON answer that is longer leaves while the flow holds it.
const pieceBytes = 256 << 10

// TryWrite queues p and sends what the client takes at once. Its error is loop.ErrWouldBlock while something of what
// was queued waits; TryFlush sends more of it.
func (x *exchange) TryWrite(p []byte) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.queue(p); err != nil {
		return err
	}
	return x.push()
}

// TryFlush sends what the client takes now; see TryWrite.
func (x *exchange) TryFlush() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.push()
}

// OnWritable has f called once the client may take more, or has taken nothing for too long; see loop.Socket.
func (x *exchange) OnWritable(f func()) bool { return x.conn.onWritable(f) }

// Polls reports whether TryWrite and OnWritable may be called: the client's connection is kept in a loop.
func (x *exchange) Polls() bool { return x.conn.socket != nil }

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
	case len(p) == 0:
		return nil
	case x.plain:
		x.borrow()
		x.out = append(x.out, p...)
	default:
		x.borrow()
		x.out = strconv.AppendInt(x.out, int64(len(p)), 16)
		x.out = append(x.out, "\r\n"...)
		x.out = append(x.out, p...)
		x.out = append(x.out, "\r\n"...)
	}
	x.active.Store(true)
	k := copy(x.tail[:], x.tail[min(len(p), len(x.tail)):])
	copy(x.tail[k:], p[max(0, len(p)-len(x.tail)):])
	return nil
}

// push sends what can be sent now. Without a loop that is everything, and may take long. Its error is
// loop.ErrWouldBlock if something is left. The caller holds mu.
func (x *exchange) push() error {
	if x.sent < len(x.out) {
		n, err := x.conn.trySend(x.out[x.sent:])
		x.sent += n
		if n > 0 {
			x.conn.progress()
		}
		if err == nil && x.sent < len(x.out) {
			err = loop.ErrWouldBlock
		}
		if err != nil {
			return err
		}
	}
	if x.lent != nil {
		if cap(x.out) <= keptOutBytes {
			*x.lent = x.out[:0]
			outs.Put(x.lent)
		}
		x.out, x.lent, x.sent = nil, nil, 0
	}
	return nil
}

// outs holds what streams are framed in. One that has nothing to send has none.
var outs = sync.Pool{New: func() any { b := make([]byte, 0, 2<<10); return &b }}

// keptOutBytes is the largest that is kept there.
const keptOutBytes = 64 << 10

// borrow makes room for what is to be sent. The caller holds mu.
func (x *exchange) borrow() {
	if x.lent == nil {
		x.lent = outs.Get().(*[]byte)
		x.out = (*x.lent)[:0]
	}
}

// flush sends what is queued, and waits while the client is slow. The caller holds mu, which others may have meanwhile.
func (x *exchange) flush() error {
	for {
		err := x.push()
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, loop.ErrWouldBlock):
			cause := leaveCause(err)
			x.leave(cause)
			return cause
		}
		x.mu.Unlock()
		x.conn.awaitRoom()
		x.mu.Lock()
	}
}

// end makes of the flow's end the response, or ends the stream.
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
		// No client needs the first half of a JSON answer early: a late failure has its own status.
		x.s.writeError(&ctx.Response, x.conn.request.id, x.explain(cmp.Or(err, errNoAnswer)))
	default:
		ctx.Response.Header.SetContentType(x.contentType)
		ctx.Response.SetBodyRaw(x.body)
	}
	x.over = io.ErrClosedPipe
}

// endStream ends an event stream. One that failed ends without its last chunk: clients that do not read error events
// (curl, load tools) see from HTTP that the body is incomplete. The caller holds mu.
func (x *exchange) endStream(err error, panicked bool) {
	if x.over == nil && !x.left.Load() {
		if !x.begun {
			err = cmp.Or(err, errNoAnswer)
		}
		if x.events() && (!x.begun || panicked) {
			_ = x.queue(x.errorEvent(x.explain(err)))
		}
		if err != nil {
			x.conn.request.next = false
		} else {
			x.finish()
		}
	}
	failed := x.flush()
	status := http.StatusOK
	if x.left.Load() || failed != nil {
		status = statusClientLeft
		x.conn.request.next = false
		if x.plain {
			x.conn.reset() // half an answer must not look whole
		}
	}
	x.s.metrics.openStreams.Dec()
	x.s.metrics.count(x.conn.request.endpoint, status)
}

// finish queues the end of a chunked body.
func (x *exchange) finish() {
	if !x.plain {
		x.borrow()
		x.out = append(x.out, "0\r\n\r\n"...)
	}
}

// leave gives the exchange up for a client that is gone: cause is fault.ErrClientGone or wraps it.
func (x *exchange) leave(cause error) {
	if !x.left.Swap(true) {
		x.s.metrics.disconnected.Inc()
		x.life.End(cause)
	}
}

// cut ends the exchange for a shutdown whose time is up. The client gets to know, as far as it reads.
func (x *exchange) cut() {
	defer x.life.End(fault.ErrShutdown)
	if !x.mu.TryLock() { // a write waits: the client does not read
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
			_ = x.queue(x.errorEvent(e))
		}
		_ = x.push()
		x.conn.request.next = false
		x.over = e
	}
}

// explain turns the flow's error into the one that is sent.
func (x *exchange) explain(err error) *openai.Error {
	if e := (*openai.Error)(nil); errors.As(err, &e) {
		return e
	}
	x.s.log.Error("request failed without a status", "request_id", x.conn.request.id, "error", err)
	return openai.Internal()
}

// leaveCause names why a client is given up whose connection failed with err.
func leaveCause(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%w: it stopped reading", fault.ErrClientGone)
	}
	return fault.ErrClientGone
}
