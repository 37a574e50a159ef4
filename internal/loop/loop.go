// Package loop keeps sockets in epoll loops of the gateway's own, where Go's runtime would keep them in its poller. A
// [Socket] is a net.Conn that can also be asked without waiting, and calls a function when there is something to ask
// for: a stream that is only passed on then needs no goroutine, and a chunk of it costs one wait, one read and one
// write (docs/performance.md has the figures). Where the system has no epoll, and for connections that are more than a
// TCP socket, everything stays as Go has it: [Loops.Take] gives the connection back as it came.
package loop

import (
	"errors"
	"net"
)

// ErrWouldBlock is the error of a Try that found nothing to do: nothing has come, or nothing can be sent.
var ErrWouldBlock = errors.New("the socket is not ready")

// Groups is how many groups of sockets a loop has; see [Socket].
const Groups = 3

// Socket is a connection of a loop. One goroutine may read while another one writes; Close and the deadlines may be
// called from anywhere.
//
// The functions given to OnReadable, OnWritable and OnHangup run on the loop's goroutine, or on that of Close, and hold
// up every other socket of the loop: they must not wait. No lock of the socket is held while they run.
type Socket interface {
	net.Conn

	// TryRead is Read without waiting. Its error is [ErrWouldBlock] if nothing has come.
	TryRead(p []byte) (int, error)
	// TryWrite is Write without waiting: it may write a part of p without an error. Its error is [ErrWouldBlock] if
	// nothing could be sent.
	TryWrite(p []byte) (int, error)
	// Post is Write of a short p, which leaves when what the events that came at one time lead to is done, together with
	// what was posted meanwhile. It keeps a copy. Its error shows in what is read, and Close drops what has not left. It
	// reports false, and has taken nothing, if p is better written at once.
	Post(p []byte) bool
	// TryWritev is TryWrite of several pieces in one call to the system.
	TryWritev(p [][]byte) (int, error)

	// OnReadable has f called once, as soon as TryRead has something to say: bytes, an end, an error, a deadline that has
	// passed. It reports false, and forgets f, if that is so already. nil takes f back.
	OnReadable(f func()) bool
	// OnWritable is OnReadable for TryWrite.
	OnWritable(f func()) bool
	// OnHangup has f called once the peer has closed its side, whole or half, or the connection has broken, even while
	// bytes wait to be read. It reports false, and forgets f, if that is so already. nil takes f back.
	OnHangup(f func()) bool

	// Group puts the socket into a group, below [Groups]; it begins in group 0. Of the events that come at one time the loop
	// hands on those of the highest group first, and those of one group one after another: what they lead to runs the same
	// code, which the processor's caches then hold.
	Group(n uint8)
	// Quiet reports that, as far as the loop has seen, the peer has neither sent anything nor closed its side.
	Quiet() bool
	// CloseWrite ends the sending side.
	CloseWrite() error
	// SetLinger is net.TCPConn's.
	SetLinger(sec int) error
}
