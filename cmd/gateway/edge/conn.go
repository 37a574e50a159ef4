package edge

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/internal/listen"
	"github.com/tandem-pd/tandem/internal/loop"
)

const (
	// stashBytes is how much of a pipelined request the watcher takes in. From there on it asks the kernel whether
	// the client has left, which not every system can say.
	stashBytes = 64
)

// errGone is what a write gets once the client was seen to leave.
var errGone = errors.New("the client has left")

// longAgo is a deadline that has passed on any clock.
var longAgo = time.Unix(1, 0)

// conn is a client's connection. It adds to net.Conn what a server for streams needs: it notices that the client left
// while no handler reads (onLeave), it gives a client up that takes nothing of an answer for too long, and it drains
// what the client still sends before it closes (linger).
//
// Read and Write belong to the goroutine that serves the connection; onLeave and unwatch bracket the time in which the
// watcher reads in its place. Close and leave may be called from anywhere. In a loop there is no watcher, and while no
// request is in hand no goroutine either: park gives the connection to the loop.
type conn struct {
	net.Conn
	socket   loop.Socket  // the same, where it is kept in a loop; nil otherwise
	secure   *tls.Conn    // the same, where there is TLS; nil otherwise
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
	idles   bool // no request is in hand: in a loop, Read does not wait
	served  bool // a request was answered
	limited bool // the socket has a read deadline
	request request
	turn    *turn         // while requests are served
	client  string        // see ends
	own     string        // likewise
	resume  func()        // has the connection attended again; made once
	room    chan struct{} // wakes a write that waits; made once, holds one

	drain  atomic.Int64 // bytes to drain at Close; 0: close at once
	stalls atomic.Bool  // the socket has a write deadline
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
		n, err = c.read(p)
		c.late = errors.Is(err, os.ErrDeadlineExceeded)
	}
	if n > 0 && c.from.IsZero() {
		c.from = time.Now()
		c.arriving()
	}
	return n, err
}

// read reads from the socket. In a loop a read that need not wait needs no deadline.
func (c *conn) read(p []byte) (int, error) {
	if c.socket == nil {
		return c.Conn.Read(p)
	}
	n, err := c.socket.TryRead(p)
	if c.idles || !errors.Is(err, loop.ErrWouldBlock) {
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

// waitBy bounds how long the next request is waited for, where reads wait for it.
func (c *conn) waitBy() error {
	if c.socket != nil {
		return nil
	}
	return c.Conn.SetReadDeadline(time.Now().Add(c.patience()))
}

// readBy bounds how long the request that begins to come may take.
func (c *conn) readBy() error {
	if c.socket != nil {
		return c.unlimit() // see read
	}
	return c.Conn.SetReadDeadline(time.Now().Add(c.frontend.s.cfg.ReadTimeout))
}

// unlimit takes the socket's read deadline back.
func (c *conn) unlimit() error {
	if !c.limited {
		return nil
	}
	c.limited = false
	return c.socket.SetReadDeadline(time.Time{})
}

// patience is how long a connection may be silent without a request.
func (c *conn) patience() time.Duration {
	if c.served {
		return c.frontend.s.cfg.IdleTimeout
	}
	return c.frontend.s.cfg.ReadTimeout
}

// park leaves the connection to its loop until the next request begins to come, or the connection ends. It reports
// false if that is so already. Otherwise the connection is another goroutine's from here on.
func (c *conn) park() bool {
	if c.resume == nil {
		c.resume = func() { c.frontend.crew.take(c) }
	}
	c.limited = true
	_ = c.socket.SetReadDeadline(time.Now().Add(c.patience())) // what fails shows when it is attended
	return c.socket.OnReadable(c.resume)
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
	c.served = true
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
	if c.socket != nil {
		_ = c.unlimit() // it fails where the connection is closed, which is seen now
		c.watching = true
		gone := func() { c.leave(); leave() }
		if !c.socket.OnHangup(gone) {
			gone()
		}
		return
	}
	// The request's read deadline stands; with it the watch would quietly end when that passes.
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
		err = awaitHangup(c.raw())
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
	if c.socket != nil {
		c.socket.OnHangup(nil)
		return
	}
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

// Write sends p. It fails when the client takes nothing for the stall time, or has left.
func (c *conn) Write(p []byte) (int, error) {
	for sent := 0; ; {
		n, err := c.trySend(p[sent:])
		if sent += n; n > 0 {
			c.progress()
		}
		switch {
		case err == nil && sent == len(p):
			return sent, nil
		case err == nil || errors.Is(err, loop.ErrWouldBlock):
			c.awaitRoom()
		default:
			return sent, err
		}
	}
}

// trySend sends what there is room for, in a loop, and otherwise p whole.
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

// progress notes that a write got through: the stall time counts from the next one that waits.
func (c *conn) progress() {
	if c.stalls.Swap(false) && !c.gone.Load() {
		_ = c.socket.SetWriteDeadline(time.Time{})
	}
}

// awaitRoom waits until the socket takes more, or for the stall time: then writes fail from there on.
func (c *conn) awaitRoom() {
	if c.room == nil {
		c.room = make(chan struct{}, 1)
	}
	if c.onWritable(func() { c.room <- struct{}{} }) {
		<-c.room
	}
}

// onWritable is the socket's OnWritable, within the stall time.
func (c *conn) onWritable(f func()) bool {
	if f == nil {
		return c.socket.OnWritable(nil)
	}
	if c.gone.Load() {
		return false
	}
	c.stalls.Store(true)
	_ = c.socket.SetWriteDeadline(time.Now().Add(c.stall)) // what fails shows at the next write
	if c.gone.Load() {                                     // leave may have come before the deadline above
		_ = c.socket.SetWriteDeadline(longAgo)
	}
	return c.socket.OnWritable(f)
}

// peer is the client's address.
func (c *conn) peer() string {
	client, _ := c.ends()
	return client
}

// ends are the addresses of both ends.
func (c *conn) ends() (client, own string) {
	if c.client == "" {
		c.client, c.own = c.RemoteAddr().String(), c.LocalAddr().String()
	}
	return c.client, c.own
}

// reset makes Close break the connection off, where it is one of TCP.
func (c *conn) reset() {
	if tcp, ok := c.raw().(interface{ SetLinger(sec int) error }); ok {
		_ = tcp.SetLinger(0) // an error means that it has ended already
	}
}

// send writes p whole. Only a client that takes nothing at all is given up, for which the stall time is looked at in
// eighths: after one of them in which a part of p got through, it counts from there.
func (c *conn) send(p []byte) error {
	if c.secure != nil {
		return c.sendSecure(p)
	}
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

// Close closes the connection, after draining it where lingerFor asked for that. The second call only makes sure.
func (c *conn) Close() error {
	if !c.closed.CompareAndSwap(false, true) {
		return c.raw().Close()
	}
	over := c.Conn
	if c.gone.Load() {
		over = c.raw() // without a farewell, for which TLS might have to wait
	} else if n := c.drain.Load(); n > 0 {
		c.linger(n)
	}
	err := over.Close()
	c.forget(c)
	return err
}

// cut closes the socket, whatever is going on there; the serving goroutine finds out and closes c.
func (c *conn) cut() { _ = c.raw().Close() }

// raw is what lies below TLS, where there is TLS.
func (c *conn) raw() net.Conn {
	if c.secure != nil {
		return c.secure.NetConn()
	}
	return c.Conn
}
