package edge

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
)

// body is a streamed answer as fasthttp reads it.
type body struct {
	x      *exchange
	ended  bool  // the flow's end was read
	broke  error // why reading failed
	closed bool
}

// Read gives the next batch, waiting for it, and lets the connection keep the
// write that follows when more lies ready: fasthttp moves at most 4 KiB at a
// time and writes the end of a chunked body in two more pieces. What lies ready
// together leaves together.
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

// CloseWithError ends the exchange on the connection's side. fasthttp calls it
// after the last chunk, whatever happened; err is what reading or writing
// failed with. (A Close method beside it would be called first, without err.)
func (b *body) CloseWithError(err error) error {
	if b.closed {
		return nil
	}
	b.closed = true
	x := b.x
	if b.ended && err == nil {
		err = x.conn.finish()
	}
	status := http.StatusOK
	switch {
	case b.ended && err == nil:
	case b.broke != nil && !errors.Is(b.broke, ErrClientLeft):
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

// leaveCause names why a client is given up whose connection failed with err.
func leaveCause(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%w: it stopped reading", ErrClientLeft)
	}
	return ErrClientLeft
}
