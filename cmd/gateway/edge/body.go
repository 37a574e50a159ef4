package edge

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"

	"github.com/tandem-pd/tandem/fault"
	"github.com/valyala/fasthttp"
)

// body is a streamed answer as fasthttp reads it.
type body struct {
	x      *exchange
	plain  bool  // it ends with its connection: no chunks
	ended  bool  // the flow's end was read
	broke  error // why reading failed
	closed bool
}

// Read gives the next batch, waiting for it, and lets the connection keep the write that follows when more lies
// ready: fasthttp moves at most 4 KiB at a time and writes the end of a chunked body in two more pieces. What lies
// ready together leaves together.
func (b *body) Read(p []byte) (int, error) {
	n, more, err := b.x.ring.Read(p)
	switch {
	case err == nil:
		b.x.conn.hold(more)
	case errors.Is(err, io.EOF):
		b.ended = true
		b.x.conn.hold(true) // for finish
	default:
		b.broke = err
	}
	return n, err
}

// CloseWithError ends the exchange on the connection's side. fasthttp calls it after the last chunk, whatever
// happened; err is what reading or writing failed with. (fasthttp would call a Close method first, without err.)
func (b *body) CloseWithError(err error) error {
	if b.closed {
		return nil
	}
	b.closed = true
	x := b.x
	switch {
	case !b.ended || err != nil:
	case b.plain:
		err = x.conn.flush()
	default:
		err = x.conn.finish()
	}
	status := http.StatusOK
	switch {
	case b.ended && err == nil:
	case b.broke != nil && !errors.Is(b.broke, fault.ErrClientGone):
		status = http.StatusInternalServerError // half an answer, broken off by us
	default:
		x.leave(leaveCause(err))
		status = statusClientLeft
	}
	x.close()
	x.s.metrics.openStreams.Dec()
	x.s.metrics.count(x.endpoint, status)
	return err
}

// streamUntilClose sends the answer as HTTP/1.0 takes it: without chunks, and with the connection's end for its own.
// fasthttp knows chunks only, so the connection is taken from it.
func (x *exchange) streamUntilClose(ctx *fasthttp.RequestCtx) {
	ctx.Response.Header.SetContentLength(-2) // the connection's end
	head := append([]byte(nil), ctx.Response.Header.Header()...)
	ctx.HijackSetNoResponse(true)
	ctx.Hijack(func(net.Conn) {
		b := &body{x: x, plain: true}
		x.conn.hold(true) // the head leaves with the first bytes
		_, err := x.conn.Write(head)
		for buf := make([]byte, minRingBytes); err == nil; {
			var n int
			if n, err = b.Read(buf); n > 0 {
				_, err = x.conn.Write(buf[:n])
			}
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		if err = b.CloseWithError(err); err != nil || b.broke != nil {
			x.conn.reset() // half an answer must not look whole
		}
		_ = x.conn.Close()
	})
}

// leaveCause names why a client is given up whose connection failed with err.
func leaveCause(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%w: it stopped reading", fault.ErrClientGone)
	}
	return fault.ErrClientGone
}
