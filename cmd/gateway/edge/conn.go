package edge

import (
	"bytes"
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/internal/listen"
)

const (
	// holdLimit bounds what a connection keeps back to let it leave in one write with what follows, in bytes.
	holdLimit = 64 << 10

	// keptHeldBytes is the largest buffer for that which a connection keeps.
	keptHeldBytes = 4 << 10

	// stashBytes is how much of a pipelined request the watcher takes in. From there on it asks the kernel whether
	// the client has left, which not every system can say.
	stashBytes = 64

	// lingerTime bounds how long a connection closed by the server is drained, so that a client that is still sending
	// can read the answer.
	lingerTime = 5 * time.Second
)

// errGone is what a write gets once the client was seen to leave.
var errGone = errors.New("the client has left")

var crlf = []byte("\r\n")

// longAgo is a deadline that has passed on any clock.
var longAgo = time.Unix(1, 0)

// conn is a client's connection. It adds to net.Conn what fasthttp lacks: it notices that the client left while no
// handler reads (onLeave), it gives each write a deadline of its own, it can keep a write back to join it with the
// next (hold, finish), and it drains what the client still sends before it closes (linger).
//
// Read, Write, hold and finish belong to the goroutine that serves the connection; onLeave and unwatch bracket the
// time in which the watcher reads in its place. Close and leave may be called from anywhere.
type conn struct {
	net.Conn
	slot     *listen.Conn // its place among the listener's connections; nil without a listener
	frontend *frontend
	stall    time.Duration // longest time without progress of a write
	forget   func(*conn)   // takes it off the listener's list

	// The serving goroutine's, or the watcher's between onLeave and unwatch.
	stash    [stashBytes]byte
	stashed  int       // bytes in stash
	late     bool      // the latest read ran out of time
	from     time.Time // when the first byte of the request in hand came
	watching bool
	watched  chan struct{} // the watcher's farewell; made once, holds one

	// The serving goroutine's.
	holding  bool
	held     []byte
	finished bool // the end of a chunked body was sent by finish
	request  request

	drain  atomic.Int64 // bytes to drain at Close; 0: close at once
	busy   atomic.Bool  // a request began to arrive and is not yet answered
	gone   atomic.Bool  // the client left: writes fail
	closed atomic.Bool
}

// Read gives what the watcher stashed, then what the socket brings, and notes when the request in hand began to
// arrive.
func (c *conn) Read(p []byte) (n int, err error) {
	if c.stashed > 0 {
		n = copy(p, c.stash[:c.stashed])
		c.stashed = copy(c.stash[:], c.stash[n:c.stashed])
	} else {
		n, err = c.Conn.Read(p)
		c.late = errors.Is(err, os.ErrDeadlineExceeded)
	}
	if n > 0 && c.from.IsZero() {
		c.from = time.Now()
		c.arriving()
	}
	return n, err
}

// arriving notes that a request begins to arrive. Until begin its connection gives way like an idle one, as the
// youngest of them: half a head must not keep other clients out.
func (c *conn) arriving() {
	if !c.busy.Swap(true) && c.slot != nil {
		c.slot.Idle()
	}
}

// begin notes that a request's head has come: it is in hand. A pipelined one comes without a Read.
func (c *conn) begin() {
	c.busy.Store(true)
	if c.slot != nil {
		c.slot.Busy()
	}
}

// rest notes that no request is in hand.
func (c *conn) rest() {
	c.busy.Store(false)
	if c.slot != nil {
		c.slot.Idle()
	}
}

// arrival returns when the first byte of the request in hand came and starts over. It is zero for a request that came
// along with the one before it.
func (c *conn) arrival() time.Time {
	t := c.from
	c.from = time.Time{}
	return t
}

// onLeave calls leave, once and on a goroutine of its own, as soon as the client closes its side, whole or half, or
// the connection breaks. Until unwatch returns, no other code may read from c.
func (c *conn) onLeave(leave func()) {
	// fasthttp leaves its read deadline standing; with it the watch would quietly end when that passes.
	if c.Conn.SetReadDeadline(time.Time{}) != nil {
		c.leave()
		leave()
		return
	}
	if c.watched == nil {
		c.watched = make(chan struct{}, 1)
	}
	c.watching = true
	go c.watch(leave)
}

// watch reads until the client leaves or unwatch stops it. Once the stash is full it reads no more and waits for the
// end of the connection alone.
func (c *conn) watch(leave func()) {
	defer func() { c.watched <- struct{}{} }()
	var err error
	for err == nil && c.stashed < len(c.stash) {
		var n int
		n, err = c.Conn.Read(c.stash[c.stashed:])
		c.stashed += n
	}
	if err == nil {
		err = awaitHangup(c.Conn)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, errors.ErrUnsupported) {
		return
	}
	c.leave()
	leave()
}

// unwatch ends the watch and returns when the watcher reads no more. Without a watch it does nothing.
func (c *conn) unwatch() {
	if !c.watching {
		return
	}
	c.watching = false
	// On an error the connection is closed and the watcher ends by itself.
	_ = c.Conn.SetReadDeadline(longAgo)
	<-c.watched
	_ = c.Conn.SetReadDeadline(time.Time{})
}

// leave marks the client as gone: a write in progress ends, later ones fail.
func (c *conn) leave() {
	c.gone.Store(true)
	_ = c.Conn.SetWriteDeadline(longAgo)
}

// hold makes the next writes wait in memory for one that is not held.
func (c *conn) hold(on bool) { c.holding = on }

// Write sends p and what was held before it in one write. It fails when the client takes nothing for the stall time,
// or has left. A held write always succeeds; what is wrong shows at the next.
func (c *conn) Write(p []byte) (int, error) {
	n := len(p)
	if c.finished {
		c.finished = false
		p = bytes.TrimPrefix(p, crlf)
	}
	switch {
	case len(p) == 0:
		return n, nil
	case c.holding && len(c.held)+len(p) <= holdLimit:
		c.held = append(c.held, p...)
		return n, nil
	}
	var err error
	if len(c.held) > 0 {
		c.held = append(c.held, p...)
		err = c.sendHeld()
	} else {
		err = c.send(p)
	}
	if err != nil {
		return 0, err
	}
	return n, nil
}

// finish sends what is held with the line end that completes a chunked body. fasthttp writes that line end last, in a
// write of its own or, when the next request is there already, together with the next answer, however late that is;
// Write drops it then.
func (c *conn) finish() error {
	c.holding, c.finished = false, true
	c.held = append(c.held, crlf...)
	return c.sendHeld()
}

// flush sends what is held.
func (c *conn) flush() error {
	c.holding = false
	if len(c.held) == 0 {
		return nil
	}
	return c.sendHeld()
}

// sendHeld sends what is held, empties the buffer, and lets go of a large one.
func (c *conn) sendHeld() error {
	err := c.send(c.held)
	c.held = c.held[:0]
	if cap(c.held) > keptHeldBytes {
		c.held = nil
	}
	return err
}

// reset makes Close break the connection off, where it is one of TCP.
func (c *conn) reset() {
	if tcp, ok := c.Conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // an error means that it has ended already
	}
}

// send writes p whole. Only a client that takes nothing at all is given up, for which the stall time is looked at in
// eighths: after one of them in which a part of p got through, it counts from there.
func (c *conn) send(p []byte) error {
	const looks = 8
	for idle := 0; idle < looks; idle++ {
		if err := c.Conn.SetWriteDeadline(time.Now().Add(c.stall / looks)); err != nil {
			return err
		}
		if c.gone.Load() { // leave may have come before the deadline above
			return errGone
		}
		n, err := c.Conn.Write(p)
		if err == nil {
			return nil
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
		if n > 0 {
			p, idle = p[n:], -1
		}
	}
	return os.ErrDeadlineExceeded
}

// lingerFor makes Close drain up to n bytes of what the client still sends, within lingerTime: a socket closed with
// unread bytes resets the connection, and the client may lose the answer it was sent.
func (c *conn) lingerFor(n int64) { c.drain.Store(n) }

// Close closes the connection, after draining it where lingerFor asked for that. The second call only makes sure.
func (c *conn) Close() error {
	if !c.closed.CompareAndSwap(false, true) {
		return c.Conn.Close()
	}
	if n := c.drain.Load(); n > 0 && !c.gone.Load() {
		c.linger(n)
	}
	err := c.Conn.Close()
	c.forget(c)
	return err
}

// cut closes the socket, whatever is going on there; the serving goroutine finds out and closes c.
func (c *conn) cut() { _ = c.Conn.Close() }

// linger says that no more is coming and reads up to n bytes of the client's rest.
func (c *conn) linger(n int64) {
	if h, ok := c.Conn.(interface{ CloseWrite() error }); ok && h.CloseWrite() != nil {
		return
	}
	if c.Conn.SetReadDeadline(time.Now().Add(lingerTime)) != nil {
		return
	}
	b := sinks.Get().(*[]byte)
	defer sinks.Put(b)
	for n > 0 {
		m, err := c.Conn.Read(*b)
		if err != nil {
			return
		}
		n -= int64(m)
	}
}

// sinks holds the buffers linger reads into.
var sinks = sync.Pool{New: func() any { b := make([]byte, 32<<10); return &b }}
