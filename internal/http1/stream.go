package http1

import (
	"context"
	"io"
	"sync"
	"time"
)

// stream is one call on one connection: the request being sent, then the answer. It owns the connection from newStream
// to Close; after that, the end of its context leaves the connection alone.
type stream struct {
	Refs
	worker  string
	ctx     context.Context // the caller's
	parting time.Duration
	onSent  func() // when the request has been written; nil for none
	conn    *conn
	hook    Hook // the watch over ctx

	head  head
	wrote chan sent // the result of a request written by another goroutine; nil otherwise

	reading sync.Mutex // one read at a time; Close waits for it
	body    body

	mu     sync.Mutex
	ended  bool // the answer was read to its end
	left   bool // the caller's context ended before that: the connection is not kept
	closed bool
	timer  *time.Timer // of a parting
}

var streams Pool[stream, *stream]

// Reset implements [Pooled].
func (s *stream) Reset() { *s = stream{Refs: s.Refs} }

// End closes a stream and releases its memory. Unlike after Close, it must not be used any longer.
func End(s Stream) {
	_ = s.Close()
	if own, ok := s.(*stream); ok {
		own.Release()
	}
}

// sent is how writing a request went.
type sent struct {
	n   int64
	err error
}

var _ Stream = (*stream)(nil)

// newStream begins a call on c: from here on, the end of ctx ends c.
func newStream(ctx context.Context, leg *Leg, c *conn) *stream {
	s := streams.Take()
	s.Retain() // for the hook
	s.worker, s.ctx, s.parting, s.onSent, s.conn = leg.Worker, ctx, leg.Parting, leg.Sent, c
	s.body.open(c.Conn)
	if c.socket != nil {
		c.socket.Group(group(leg.Purpose))
	}
	After(ctx, &s.hook, s)
	return s
}

// group is the loop's group for calls of one purpose, whose answers run the same code. Client connections are in group
// 0; decode, which ends requests, precedes prefill, which begins them.
func group(purpose string) uint8 {
	switch purpose {
	case "decode":
		return 2
	case "prefill":
		return 1
	}
	return 0
}

// Ended ends the call because its context has ended: it closes the connection, or only its sending side. So the
// engine stops, and an answer that is already on its way can still be read.
func (s *stream) Ended() {
	defer s.Release()
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return // the connection may be another call's
	}
	s.left = true // and from here on no other call gets it
	if s.parting > 0 {
		s.timer = time.AfterFunc(s.parting, s.conn.cut)
	}
	s.mu.Unlock()
	if s.parting <= 0 || !s.conn.halfClose() {
		s.conn.cut()
	}
}

// afterWriteFailed bounds the reading of an answer that may have arrived before the connection broke.
const afterWriteFailed = time.Second

// send writes the request and reads the response header. untouched reports that not a byte of the request was sent. The
// request is released in any case.
func (s *stream) send(r *request) (untouched bool, err error) {
	var w sent
	if r.size > LeavesWhole {
		s.wrote = make(chan sent, 1)
		go func() { s.wrote <- s.put(r) }() // Close and a failed send wait for it; the connection is cut by then
	} else {
		w = s.put(r)
		if w.err != nil && w.n == 0 {
			return true, w.err
		}
	}
	s.head, err = s.body.head()
	if err == nil {
		if w.err != nil {
			s.head.keep = false // answered early, and closed
		}
		s.body.begin(s.head)
		s.ended = s.body.err != nil
		return false, nil
	}
	if s.wrote != nil {
		s.conn.cut()
		w = <-s.wrote
		s.wrote = nil
		if w.err != nil && w.n == 0 {
			return true, w.err
		}
	} else if w.err != nil {
		return false, w.err // which was the first
	}
	return false, err
}

// put writes the request. Where that fails, reads end soon.
func (s *stream) put(r *request) (w sent) {
	w.n, w.err = r.writeTo(s.conn.Conn)
	if w.err != nil {
		_ = s.conn.SetReadDeadline(time.Now().Add(afterWriteFailed)) // the write's error is the one that counts
	}
	r.Release()
	if w.err == nil && s.onSent != nil {
		s.onSent()
	}
	return w
}

// Status is the HTTP status.
func (s *stream) Status() int { return s.head.status }

// ContentType is the answer's content type as sent.
func (s *stream) ContentType() string { return s.head.contentType }

// Read reads the body as it arrives.
func (s *stream) Read(p []byte) (int, error) {
	s.reading.Lock()
	defer s.reading.Unlock()
	if s.body.over {
		return 0, &Error{Worker: s.worker, Op: OpBody, Err: errClosed}
	}
	return s.took(s.body.Read(p))
}

// TryRead is Read without waiting: its error is [ErrWouldBlock] if nothing has arrived. See OnReadable.
func (s *stream) TryRead(p []byte) (int, error) {
	s.reading.Lock()
	defer s.reading.Unlock()
	if s.body.over {
		return 0, &Error{Worker: s.worker, Op: OpBody, Err: errClosed}
	}
	return s.took(s.body.tryRead(s.conn.socket, p))
}

// OnReadable schedules one call of f, as soon as TryRead has a result. It reports false, and drops f, if it has one
// already. nil cancels f. See [Socket].
func (s *stream) OnReadable(f func()) bool { return s.conn.socket.OnReadable(f) }

// Polls reports whether TryRead and OnReadable may be called: the connection is in a loop.
func (s *stream) Polls() bool { return s.conn.socket != nil }

// took handles the result of a read of the body.
func (s *stream) took(n int, err error) (int, error) {
	switch {
	case err == nil:
		return n, nil
	case err == ErrWouldBlock: //nolint:errorlint // it is never wrapped
		return n, err
	case err == io.EOF: //nolint:errorlint // a wrapped one is no end of the body
		s.mu.Lock()
		s.ended = true
		s.mu.Unlock()
		return n, io.EOF
	}
	return n, &Error{Worker: s.worker, Op: OpBody, Err: cause(s.ctx, err)}
}

// Close gives the connection back when the answer was read to its end and the connection may carry another, and cuts
// it otherwise. It may be called while a Read waits, which then fails, and more than once.
func (s *stream) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true // a context that ends from here on is too late
	keep, timer := s.ended && !s.left && s.head.keep, s.timer
	s.mu.Unlock()
	if s.hook.Stop() {
		s.Release() // the hook's
	}
	if timer != nil {
		timer.Stop()
	}
	keep = keep && s.written()
	if !keep {
		s.conn.cut() // which ends a read or a write that waits
	}
	s.reading.Lock()
	defer s.reading.Unlock()
	spoke := len(s.body.buffered()) > 0 // an answer without a request
	s.body.release()
	if s.wrote != nil {
		<-s.wrote
	}
	if keep && !spoke {
		s.conn.pool.give(s.conn)
	} else {
		s.conn.cut()
	}
	return nil
}

// unwrittenFor is how long Close waits for the writing of a long request that
// is answered: the worker has read it, so it is a matter of microseconds.
const unwrittenFor = 50 * time.Millisecond

// written reports whether the request was written whole.
func (s *stream) written() bool {
	if s.wrote == nil {
		return true // before the answer was read
	}
	timer := time.NewTimer(unwrittenFor)
	defer timer.Stop()
	select {
	case w := <-s.wrote:
		s.wrote <- w // for Close, which waits for the writing's end
		return w.err == nil
	case <-timer.C:
		return false
	}
}
