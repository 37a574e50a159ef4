package edge

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/internal/http1"
)

// stashBytes is how much of a pipelined request the watcher reads. Beyond that it polls the kernel for the client's
// hangup, which not every system supports.
const stashBytes = 64

// errGone fails writes after the client has left.
var errGone = errors.New("the client has left")

// longAgo is a deadline in the past.
var longAgo = time.Unix(1, 0)

// conn is a client's connection. It adds to net.Conn what a streaming server needs: it detects that the client left
// while no handler reads (onLeave), drops a client that reads nothing for too long, and drains the client's rest
// before it closes (linger).
//
// Read and Write belong to the serving goroutine; between onLeave and unwatch the watcher reads instead. Close and
// leave may be called from anywhere. In a loop there is no watcher and, between requests, no goroutine: park gives
// the connection to the loop.
type conn struct {
	net.Conn
	socket   http1.Socket // the same, if a loop polls it; else nil
	secure   *tls.Conn    // the same, with TLS; else nil
	slot     *http1.Conn  // its place in the listener's limit; nil without a listener
	frontend *frontend
	stall    time.Duration // longest time without progress of a write
	forget   func(*conn)   // removes it from the frontend's set

	// Owned by the serving goroutine, or by the watcher between onLeave and unwatch.
	stash    [stashBytes]byte
	stashed  int       // bytes in stash
	late     bool      // the latest read timed out
	from     time.Time // when the current request's first byte arrived
	watching bool
	watched  chan struct{} // signals the watcher's end; buffered, made once

	// Owned by the serving goroutine.
	idles   bool // between requests: in a loop, Read does not wait
	served  bool // a request was answered
	limited bool // the socket has a read deadline
	request request
	state   *connState    // while requests are served
	client  string        // see ends
	own     string        // see ends
	resume  func()        // resumes serving; bound once
	room    chan struct{} // wakes a waiting write; buffered, made once

	drain  atomic.Int64 // bytes to drain at Close; 0: close at once
	stalls atomic.Bool  // the socket has a write deadline
	busy   atomic.Bool  // a request has begun to arrive and is not answered
	gone   atomic.Bool  // the client left: writes fail
	closed atomic.Bool
}

// Read returns the stash, then reads the socket, and records when the current request began to arrive.
func (c *conn) Read(p []byte) (n int, err error) {
	if c.stashed > 0 {
		n = copy(p, c.stash[:c.stashed])
		c.stashed = copy(c.stash[:], c.stash[n:c.stashed])
	} else {
		n, err = c.read(p)
		c.late = errors.Is(err, os.ErrDeadlineExceeded)
	}
	if n > 0 && c.from.IsZero() {
		c.from = time.Now()
		c.arriving()
	}
	return n, err
}

// read reads from the socket. In a loop, a read without waiting needs no deadline.
func (c *conn) read(p []byte) (int, error) {
	if c.socket == nil {
		return c.Conn.Read(p)
	}
	n, err := c.socket.TryRead(p)
	if c.idles || !errors.Is(err, http1.ErrWouldBlock) {
		return n, err
	}
	if !c.limited {
		c.limited = true
		if err := c.socket.SetReadDeadline(time.Now().Add(c.frontend.s.cfg.ReadTimeout)); err != nil {
			return 0, err
		}
	}
	return c.socket.Read(p)
}

// waitBy bounds the wait for the next request, where reads wait for it.
func (c *conn) waitBy() error {
	if c.socket != nil {
		return nil
	}
	return c.Conn.SetReadDeadline(time.Now().Add(c.idleTimeout()))
}

// readBy bounds how long the current request may take to arrive.
func (c *conn) readBy() error {
	if c.socket != nil {
		return c.unlimit() // see read
	}
	return c.Conn.SetReadDeadline(time.Now().Add(c.frontend.s.cfg.ReadTimeout))
}

// unlimit clears the socket's read deadline.
func (c *conn) unlimit() error {
	if !c.limited {
		return nil
	}
	c.limited = false
	return c.socket.SetReadDeadline(time.Time{})
}

// idleTimeout returns how long a connection may be silent between requests.
func (c *conn) idleTimeout() time.Duration {
	if c.served {
		return c.frontend.s.cfg.IdleTimeout
	}
	return c.frontend.s.cfg.ReadTimeout
}

// park leaves the connection to its loop until the next request arrives or the connection ends. It reports false if
// that has happened already. Otherwise the caller gives up ownership.
func (c *conn) park() bool {
	if c.resume == nil {
		c.resume = func() { c.frontend.pool.take(c) }
	}
	c.limited = true
	_ = c.socket.SetReadDeadline(time.Now().Add(c.idleTimeout())) // an error shows when it is served
	return c.socket.OnReadable(c.resume)
}

// arriving records that a request begins to arrive. Until begin its connection may be evicted like an idle one: half
// a head must not block other clients.
func (c *conn) arriving() {
	if !c.busy.Swap(true) && c.slot != nil {
		c.slot.Idle()
	}
}

// begin records that a request's head has arrived. A pipelined one arrives without a Read.
func (c *conn) begin() {
	c.busy.Store(true)
	if c.slot != nil {
		c.slot.Busy()
	}
}

// markIdle records that the connection is between requests.
func (c *conn) markIdle() {
	c.busy.Store(false)
	c.served = true
	if c.slot != nil {
		c.slot.Idle()
	}
}

// arrival returns and clears when the current request's first byte arrived: zero if together with the previous
// request.
func (c *conn) arrival() time.Time {
	t := c.from
	c.from = time.Time{}
	return t
}

// onLeave calls leave once, on its own goroutine, when the client closes its side, whole or half, or the connection
// breaks. Until unwatch returns, no other code may read from c.
func (c *conn) onLeave(leave func()) {
	if c.socket != nil {
		_ = c.unlimit() // fails on a closed connection, which OnHangup detects
		c.watching = true
		gone := func() { c.leave(); leave() }
		if !c.socket.OnHangup(gone) {
			gone()
		}
		return
	}
	// The request's read deadline is still set and would end the watch.
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

// watch reads until the client leaves or unwatch stops it. With a full stash it only waits for the connection's end.
func (c *conn) watch(leave func()) {
	defer func() { c.watched <- struct{}{} }()
	var err error
	for err == nil && c.stashed < len(c.stash) {
		var n int
		n, err = c.Conn.Read(c.stash[c.stashed:])
		c.stashed += n
	}
	if err == nil {
		err = awaitHangup(c.raw())
	}
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, errors.ErrUnsupported) {
		return
	}
	c.leave()
	leave()
}

// unwatch ends the watch and returns when the watcher has stopped reading. It may be called without a watch.
func (c *conn) unwatch() {
	if !c.watching {
		return
	}
	c.watching = false
	if c.socket != nil {
		c.socket.OnHangup(nil)
		return
	}
	// On an error the connection is closed and the watcher ends by itself.
	_ = c.Conn.SetReadDeadline(longAgo)
	<-c.watched
	_ = c.Conn.SetReadDeadline(time.Time{})
}

// leave marks the client as gone: writes fail from now on.
func (c *conn) leave() {
	c.gone.Store(true)
	_ = c.Conn.SetWriteDeadline(longAgo)
}

// Write sends p. It fails when the client reads nothing for the stall time, or has left.
func (c *conn) Write(p []byte) (int, error) {
	for sent := 0; ; {
		n, err := c.trySend(p[sent:])
		if sent += n; n > 0 {
			c.progress()
		}
		switch {
		case err == nil && sent == len(p):
			return sent, nil
		case err == nil || errors.Is(err, http1.ErrWouldBlock):
			c.awaitRoom()
		default:
			return sent, err
		}
	}
}

// trySend sends without waiting in a loop, and otherwise all of p.
func (c *conn) trySend(p []byte) (int, error) {
	if c.gone.Load() {
		return 0, errGone
	}
	if c.socket == nil {
		if err := c.send(p); err != nil {
			return 0, err
		}
		return len(p), nil
	}
	return c.socket.TryWrite(p)
}

// progress restarts the stall time after a write.
func (c *conn) progress() {
	if c.stalls.Swap(false) && !c.gone.Load() {
		_ = c.socket.SetWriteDeadline(time.Time{})
	}
}

// awaitRoom waits until the socket is writable, or for the stall time, after which writes fail.
func (c *conn) awaitRoom() {
	if c.room == nil {
		c.room = make(chan struct{}, 1)
	}
	if c.onWritable(func() { c.room <- struct{}{} }) {
		<-c.room
	}
}

// onWritable is the socket's OnWritable with the stall time.
func (c *conn) onWritable(f func()) bool {
	if f == nil {
		return c.socket.OnWritable(nil)
	}
	if c.gone.Load() {
		return false
	}
	c.stalls.Store(true)
	_ = c.socket.SetWriteDeadline(time.Now().Add(c.stall)) // an error shows at the next write
	if c.gone.Load() {                                     // leave may have set its deadline before
		_ = c.socket.SetWriteDeadline(longAgo)
	}
	return c.socket.OnWritable(f)
}

// peer returns the client's address.
func (c *conn) peer() string {
	client, _ := c.ends()
	return client
}

// ends returns the addresses of both ends.
func (c *conn) ends() (client, own string) {
	if c.client == "" {
		c.client, c.own = c.RemoteAddr().String(), c.LocalAddr().String()
	}
	return c.client, c.own
}

// reset makes Close reset a TCP connection.
func (c *conn) reset() {
	if tcp, ok := c.raw().(interface{ SetLinger(sec int) error }); ok {
		_ = tcp.SetLinger(0) // an error means that it has ended
	}
}

// send writes all of p. It fails only when the client reads nothing for the stall time, measured in eighths since the
// last progress.
func (c *conn) send(p []byte) error {
	if c.secure != nil {
		return c.sendSecure(p)
	}
	const looks = 8
	for idle := 0; idle < looks; idle++ {
		if err := c.Conn.SetWriteDeadline(time.Now().Add(c.stall / looks)); err != nil {
			return err
		}
		if c.gone.Load() { // leave may have set its deadline before
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

// Close closes the connection, after draining it if lingerFor was called. A second call closes the raw connection.
func (c *conn) Close() error {
	if !c.closed.CompareAndSwap(false, true) {
		return c.raw().Close()
	}
	over := c.Conn
	if c.gone.Load() {
		over = c.raw() // without a close-notify, for which TLS might wait
	} else if n := c.drain.Load(); n > 0 {
		c.linger(n)
	}
	err := over.Close()
	c.forget(c)
	return err
}

// cut closes the socket; the serving goroutine then closes c.
func (c *conn) cut() { _ = c.raw().Close() }

// raw returns the connection below TLS.
func (c *conn) raw() net.Conn {
	if c.secure != nil {
		return c.secure.NetConn()
	}
	return c.Conn
}
