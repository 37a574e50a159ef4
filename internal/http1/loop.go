package http1

import (
	"errors"
	"net"
)

// ErrWouldBlock is the error of a Try that found nothing to read, or no room to write.
var ErrWouldBlock = errors.New("the socket is not ready")

// Groups is how many groups of sockets a loop has; see [Socket].
const Groups = 3

// Socket is a connection of a loop. One goroutine may read while another one writes; Close and the deadlines may be
// called from anywhere.
//
// The functions given to OnReadable, OnWritable and OnHangup run on the loop's goroutine, or on that of Close. They
// hold up every other socket of the loop: they must not wait. No lock of the socket is held while they run.
type Socket interface {
	net.Conn

	// TryRead is Read without waiting. Its error is [ErrWouldBlock] if nothing has arrived.
	TryRead(p []byte) (int, error)
	// TryWrite is Write without waiting: it may write a part of p without an error. Its error is [ErrWouldBlock] if
	// nothing could be sent.
	TryWrite(p []byte) (int, error)
	// Post is Write of a short p, sent together with other posts once the present events are handled. It copies p. Its
	// error shows in reads, and Close drops what was not sent. It reports false, and does nothing, if p is better
	// written at once.
	Post(p []byte) bool
	// TryWritev is TryWrite of several pieces in one call to the system.
	TryWritev(p [][]byte) (int, error)

	// OnReadable schedules one call of f, as soon as TryRead has a result: bytes, an end, an error, a passed deadline.
	// It reports false, and drops f, if it has one already. nil cancels f.
	OnReadable(f func()) bool
	// OnWritable is OnReadable for TryWrite.
	OnWritable(f func()) bool
	// OnHangup schedules one call of f for when the peer has closed its side, fully or half, or the connection has
	// broken, even while bytes wait to be read. It reports false, and drops f, if that has happened. nil cancels f.
	OnHangup(f func()) bool

	// Group puts the socket into a group, below [Groups]; the first one is 0. Of simultaneous events the loop delivers
	// those of the highest group first, and those of one group together: they run the same code, which stays in the
	// processor's caches.
	Group(n uint8)
	// Quiet reports that, as far as the loop has seen, the peer has neither sent anything nor closed its side.
	Quiet() bool
	// CloseWrite ends the sending side.
	CloseWrite() error
	// SetLinger is net.TCPConn's.
	SetLinger(sec int) error
}
