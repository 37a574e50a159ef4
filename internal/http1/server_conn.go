package http1

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"sync/atomic"
	"time"
)

// stashBytes is how much of a pipelined request the watcher reads. Beyond that it polls the kernel for the client's
// hangup, which not every system supports.
const stashBytes = 64

// errClientLeft fails writes after the client has left.
var errClientLeft = errors.New("the client has left")

// longAgo is a deadline in the past.
var longAgo = time.Unix(1, 0)

// ServerConn is a client's connection. It adds to net.Conn what a streaming server needs: it detects that the client left
// while no handler reads (OnLeave), drops a client that reads nothing for too long, and drains the client's rest
// before it closes (linger).
//
// Read and Write belong to the serving goroutine; between OnLeave and Unwatch the watcher reads instead. Close and
// Leave may be called from anywhere. In a loop there is no watcher and, between requests, no goroutine: park gives
// the connection to the loop.
type ServerConn struct {
	net.Conn
	User   any       // the handler's
	socket Socket    // the same, if a loop polls it; else nil
	secure *tls.Conn // the same, with TLS; else nil
	slot   *Conn     // its place in the listener's limit; nil without a listener
	server *Server
	stall  time.Duration // longest time without progress of a write
	forget func()        // removes it from the server's set

	// Owned by the serving goroutine, or by the watcher between OnLeave and Unwatch.
	stash    [stashBytes]byte
	stashed  int       // bytes in stash
	late     bool      // the latest read timed out
	from     time.Time // when the current request's first byte arrived
	watching bool
	watched  chan struct{} // signals the watcher's end; buffered, made once

	// Owned by the serving goroutine.
	idles   bool          // between requests: in a loop, Read does not wait
	served  bool          // a request was answered
	limited bool          // the socket has a read deadline
	client  string        // see Ends
	own     string        // see Ends
	resume  func()        // resumes serving; bound once
	room    chan struct{} // wakes a waiting write; buffered, made once

	drain  atomic.Int64 // bytes to drain at Close; 0: close at once
	stalls atomic.Bool  // the socket has a write deadline
	busy   atomic.Bool  // a request has begun to arrive and is not answered
	gone   atomic.Bool  // the client left: writes fail
	closed atomic.Bool
}

// Read returns the stash, then reads the socket, and records when the current request began to arrive.
func (c *ServerConn) Read(p []byte) (n int, err error) {
	if c.stashed > 0 {
		n = copy(p, c.stash[:c.stashed])
		c.stashed = copy(c.stash[:], c.stash[n:c.stashed])
	} else {
		n, err = c.read(p)
		c.late = errors.Is(err, os.ErrDeadlineExceeded)
	}
	if n > 0 && c.from.IsZero() {
		c.from = time.Now()
		if !c.busy.Swap(true) && c.slot != nil {
			c.slot.Idle() // until BeginServe it may be evicted: half a head must not block other clients
		}
	}
	return n, err
}

// Polls reports whether a loop polls the connection: then OnWritable and writes that do not wait are available.
func (c *ServerConn) Polls() bool { return c.socket != nil }

// read reads from the socket. In a loop, a read without waiting needs no deadline.
func (c *ServerConn) read(p []byte) (int, error) {
	if c.socket == nil {
		return c.Conn.Read(p)
	}
	n, err := c.socket.TryRead(p)
	if c.idles || !errors.Is(err, ErrWouldBlock) {
		return n, err
	}
	if !c.limited {
		c.limited = true
		if err := c.socket.SetReadDeadline(time.Now().Add(c.server.ReadTimeout)); err != nil {
			return 0, err
		}
	}
	return c.socket.Read(p)
}

// Await calls read to wait for the next request's first byte. In a loop it does not wait: Read's error is
// [ErrWouldBlock].
func (c *ServerConn) Await(read func() error) error {
	if c.socket == nil {
		if err := c.Conn.SetReadDeadline(time.Now().Add(c.idleTimeout())); err != nil {
			return err
		}
	}
	c.idles = true
	defer func() { c.idles = false }()
	return read()
}

// BeginRead bounds how long the current request may take to arrive.
func (c *ServerConn) BeginRead() error {
	if c.socket != nil {
		return c.unlimit() // see read
	}
	return c.Conn.SetReadDeadline(time.Now().Add(c.server.ReadTimeout))
}

// unlimit clears the socket's read deadline.
func (c *ServerConn) unlimit() error {
	if !c.limited {
		return nil
	}
	c.limited = false
	return c.socket.SetReadDeadline(time.Time{})
}

// idleTimeout returns how long a connection may be silent between requests.
func (c *ServerConn) idleTimeout() time.Duration {
	if c.served {
		return c.server.IdleTimeout
	}
	return c.server.ReadTimeout
}

// park leaves the connection to its loop until the next request arrives or the connection ends. It reports false if
// that has happened already. Otherwise the caller gives up ownership.
func (c *ServerConn) park() bool {
	if c.resume == nil {
		c.resume = func() { c.server.pool.take(c) }
	}
	c.limited = true
	_ = c.socket.SetReadDeadline(time.Now().Add(c.idleTimeout())) // an error shows when it is served
	return c.socket.OnReadable(c.resume)
}

// BeginServe records that a request's head has arrived. A pipelined one arrives without a Read.
func (c *ServerConn) BeginServe() {
	c.busy.Store(true)
	if c.slot != nil {
		c.slot.Busy()
	}
}

// Busy reports whether a request has begun to arrive and is not answered.
func (c *ServerConn) Busy() bool { return c.busy.Load() }

// MarkIdle records that the connection is between requests.
func (c *ServerConn) MarkIdle() {
	c.busy.Store(false)
	c.served = true
	if c.slot != nil {
		c.slot.Idle()
	}
}

// Silent reports whether no byte of the current request has arrived.
func (c *ServerConn) Silent() bool { return c.from.IsZero() }

// Late reports whether the latest read timed out.
func (c *ServerConn) Late() bool { return c.late }

// Arrival returns and clears when the current request's first byte arrived: zero if together with the previous
// request.
func (c *ServerConn) Arrival() time.Time {
	t := c.from
	c.from = time.Time{}
	return t
}

// OnLeave calls leave once, on its own goroutine, when the client closes its side, whole or half, or the connection
// breaks. Until Unwatch returns, no other code may read from c.
func (c *ServerConn) OnLeave(leave func()) {
	if c.socket != nil {
		_ = c.unlimit() // fails on a closed connection, which OnHangup detects
		c.watching = true
		gone := func() { c.Leave(); leave() }
		if !c.socket.OnHangup(gone) {
			gone()
		}
		return
	}
	// The request's read deadline is still set and would end the watch.
	if c.Conn.SetReadDeadline(time.Time{}) != nil {
		c.Leave()
		leave()
		return
	}
	if c.watched == nil {
		c.watched = make(chan struct{}, 1)
	}
	c.watching = true
	go c.watch(leave)
}

// watch reads until the client leaves or Unwatch stops it. With a full stash it only waits for the connection's end.
func (c *ServerConn) watch(leave func()) {
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
	c.Leave()
	leave()
}

// Unwatch ends the watch and returns when the watcher has stopped reading. It may be called without a watch.
func (c *ServerConn) Unwatch() {
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

// Leave marks the client as gone: writes fail from now on.
func (c *ServerConn) Leave() {
	c.gone.Store(true)
	_ = c.Conn.SetWriteDeadline(longAgo)
}

// Write sends p. It fails when the client reads nothing for the stall time, or has left.
func (c *ServerConn) Write(p []byte) (int, error) {
	for sent := 0; ; {
		n, err := c.trySend(p[sent:])
		if sent += n; n > 0 {
			c.progress()
		}
		switch {
		case err == nil && sent == len(p):
			return sent, nil
		case err == nil || errors.Is(err, ErrWouldBlock):
			c.awaitRoom()
		default:
			return sent, err
		}
	}
}

// trySend sends without waiting in a loop, and otherwise all of p.
func (c *ServerConn) trySend(p []byte) (int, error) {
	if c.gone.Load() {
		return 0, errClientLeft
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
func (c *ServerConn) progress() {
	if c.stalls.Swap(false) && !c.gone.Load() {
		_ = c.socket.SetWriteDeadline(time.Time{})
	}
}

// awaitRoom waits until the socket is writable, or for the stall time, after which writes fail.
func (c *ServerConn) awaitRoom() {
	if c.room == nil {
		c.room = make(chan struct{}, 1)
	}
	if c.OnWritable(func() { c.room <- struct{}{} }) {
		<-c.room
	}
}

// OnWritable is the socket's OnWritable with the stall time.
func (c *ServerConn) OnWritable(f func()) bool {
	if f == nil {
		return c.socket.OnWritable(nil)
	}
	if c.gone.Load() {
		return false
	}
	c.stalls.Store(true)
	_ = c.socket.SetWriteDeadline(time.Now().Add(c.stall)) // an error shows at the next write
	if c.gone.Load() {                                     // Leave may have set its deadline before
		_ = c.socket.SetWriteDeadline(longAgo)
	}
	return c.socket.OnWritable(f)
}

// Ends returns the addresses of both ends.
func (c *ServerConn) Ends() (client, own string) {
	if c.client == "" {
		c.client, c.own = c.RemoteAddr().String(), c.LocalAddr().String()
	}
	return c.client, c.own
}

// Reset makes Close reset a TCP connection.
func (c *ServerConn) Reset() {
	if tcp, ok := c.raw().(interface{ SetLinger(sec int) error }); ok {
		_ = tcp.SetLinger(0) // an error means that it has ended
	}
}

// send writes all of p. It fails only when the client reads nothing for the stall time, measured in eighths since the
// last progress.
func (c *ServerConn) send(p []byte) error {
	if c.secure != nil {
		return c.sendSecure(p)
	}
	const looks = 8
	for idle := 0; idle < looks; idle++ {
		if err := c.Conn.SetWriteDeadline(time.Now().Add(c.stall / looks)); err != nil {
			return err
		}
		if c.gone.Load() { // Leave may have set its deadline before
			return errClientLeft
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

// Close closes the connection, after draining it if LingerFor was called. A second call closes the raw connection.
func (c *ServerConn) Close() error {
	if !c.closed.CompareAndSwap(false, true) {
		return c.raw().Close()
	}
	over := c.Conn
	if c.gone.Load() {
		over = c.raw() // without a close-notify, for which TLS might wait
	} else if n := c.drain.Load(); n > 0 && c.Conn.SetReadDeadline(time.Now().Add(LingerTime)) == nil {
		Drain(c.Conn, n)
	}
	err := over.Close()
	c.forget()
	return err
}

// Cut closes the socket; the serving goroutine then closes c.
func (c *ServerConn) Cut() { _ = c.raw().Close() }

// raw returns the connection below TLS.
func (c *ServerConn) raw() net.Conn {
	if c.secure != nil {
		return c.secure.NetConn()
	}
	return c.Conn
}

// LingerTime bounds how long a connection closed by the server is drained, so that a client that is still sending can
// read the answer.
const LingerTime = 5 * time.Second

// LingerFor makes Close drain up to n bytes within LingerTime: closing a socket with unread bytes resets the
// connection, and the client may lose the answer.
func (c *ServerConn) LingerFor(n int64) { c.drain.Store(n) }

// drainBytes is the size of one read that drains.
const drainBytes = 32 << 10

// Drain closes the sending side and reads up to n bytes.
func Drain(nc net.Conn, n int64) {
	if h, ok := nc.(interface{ CloseWrite() error }); ok && h.CloseWrite() != nil {
		return
	}
	b := Take(drainBytes)
	defer b.Release()
	for n > 0 {
		m, err := nc.Read(b.B[:drainBytes])
		if err != nil {
			return
		}
		n -= int64(m)
	}
}

// handshake performs the TLS handshake with a new client, if there is TLS, within limit.
func (c *ServerConn) handshake(limit time.Duration) error {
	if c.secure == nil || c.secure.ConnectionState().HandshakeComplete {
		return nil
	}
	_ = c.secure.SetDeadline(time.Now().Add(limit)) // an error means that it has ended
	if err := c.secure.Handshake(); err != nil {
		return err
	}
	return c.secure.SetDeadline(time.Time{})
}

// secureBytes is the size of one TLS write: a record.
const secureBytes = 16 << 10

// sendSecure is send over TLS. A TLS write that times out breaks the connection, so each record has the whole stall
// time.
func (c *ServerConn) sendSecure(p []byte) error {
	for len(p) > 0 {
		if err := c.secure.SetWriteDeadline(time.Now().Add(c.stall)); err != nil {
			return err
		}
		if c.gone.Load() { // Leave may have set its deadline before
			return errClientLeft
		}
		n, err := c.secure.Write(p[:min(len(p), secureBytes)])
		if err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}
