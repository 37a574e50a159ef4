package http1

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// socket is a Socket on Linux. Its readiness is edge-triggered: an event means that bytes may have arrived since, and a
// call that found less than it had room for means that none are left. Both happen under mu, so that no event is lost.
type socket struct {
	fd            int
	serial        int32 // distinguishes it from earlier sockets of its descriptor
	poller        *poller
	local, remote net.Addr
	group         atomic.Uint32
	waiting       atomic.Int32 // posts of it in the outbox

	readBy, writeBy atomic.Int64 // deadlines; 0 for none

	mu         sync.Mutex
	readable   bool // a read may find something
	writable   bool // a write may find room
	hungUp     bool // the peer closed its side, or the connection broke
	urgent     bool // the peer sends urgent data, at whose mark a read stops
	readLate   bool // the read deadline has passed
	writeLate  bool
	closed     bool
	rest       []byte // of posts, not sent yet; writable is false meanwhile
	onReadable func()
	onWritable func()
	onHangup   func()

	reader, writer waiter // of a blocked Read, Write
}

// waiter wakes one goroutine at a time.
type waiter struct {
	woken chan struct{} // made when a goroutine first waits
	wake  func()
}

func (w *waiter) ready() {
	if w.woken == nil {
		woken := make(chan struct{}, 1)
		w.woken, w.wake = woken, func() { woken <- struct{}{} }
	}
}

var _ Socket = (*socket)(nil)

// happened handles an event of the loop.
func (s *socket) happened(is uint32) {
	var read, write, hangup func()
	s.mu.Lock()
	const broken = unix.EPOLLERR | unix.EPOLLHUP
	s.urgent = s.urgent || is&unix.EPOLLPRI != 0
	if is&(unix.EPOLLIN|unix.EPOLLPRI|unix.EPOLLRDHUP|broken) != 0 {
		s.readable = true
		read, s.onReadable = s.onReadable, nil
	}
	if is&(unix.EPOLLOUT|broken) != 0 && s.sendRest() {
		s.writable = true
		write, s.onWritable = s.onWritable, nil
	}
	if is&(unix.EPOLLRDHUP|broken) != 0 {
		s.hungUp = true
		hangup, s.onHangup = s.onHangup, nil
	}
	s.mu.Unlock()
	run(hangup, read, write)
}

// run calls those of fs that are not nil.
func run(fs ...func()) {
	for _, f := range fs {
		if f != nil {
			f()
		}
	}
}

// expire ends the waits whose deadline has passed.
func (s *socket) expire(at int64) {
	var read, write func()
	s.mu.Lock()
	if by := s.readBy.Load(); by != 0 && by <= at {
		s.readBy.Store(0)
		s.readLate = true
		read, s.onReadable = s.onReadable, nil
	}
	if by := s.writeBy.Load(); by != 0 && by <= at {
		s.writeBy.Store(0)
		s.writeLate = true
		write, s.onWritable = s.onWritable, nil
	}
	s.mu.Unlock()
	run(read, write)
}

// TryRead reads the bytes at hand.
func (s *socket) TryRead(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return 0, s.failed("read", net.ErrClosed)
	case s.readLate:
		return 0, s.failed("read", os.ErrDeadlineExceeded)
	case len(p) == 0:
		return 0, nil
	case !s.readable:
		return 0, ErrWouldBlock
	}
	for {
		n, errno := loopRead(s.fd, p)
		switch {
		case errno == unix.EINTR:
		case errno == unix.EAGAIN:
			s.readable = false
			return 0, ErrWouldBlock
		case errno != 0:
			return 0, s.failed("read", errno)
		case n == 0:
			return 0, io.EOF
		default:
			// A short read took all there was, but for bytes after an urgent mark. An announced end is still to be
			// read.
			s.readable = n == len(p) || s.hungUp || s.urgent
			return n, nil
		}
	}
}

// TryWrite writes as far as there is room.
func (s *socket) TryWrite(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	return s.try(len(p), func() (int, syscall.Errno) { return write(s.fd, p) })
}

// maxPieces is how many pieces one call writes.
const maxPieces = 64

// TryWritev writes as far as there is room.
func (s *socket) TryWritev(p [][]byte) (int, error) {
	var few [8][]byte
	pieces, size := few[:0], 0
	for _, b := range p {
		if len(b) > 0 && len(pieces) < maxPieces {
			pieces = append(pieces, b)
			size += len(b)
		}
	}
	if size == 0 {
		return 0, nil
	}
	return s.try(size, func() (int, syscall.Errno) { return writev(s.fd, pieces) })
}

// try calls write, which writes up to size bytes.
func (s *socket) try(size int, write func() (int, syscall.Errno)) (int, error) {
	if s.waiting.Load() > 0 {
		s.poller.outbox.flush()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return 0, s.failed("write", net.ErrClosed)
	case s.writeLate:
		return 0, s.failed("write", os.ErrDeadlineExceeded)
	case !s.writable:
		return 0, ErrWouldBlock
	}
	for {
		n, errno := write()
		switch {
		case errno == unix.EINTR:
		case errno == unix.EAGAIN:
			s.writable = false
			return 0, ErrWouldBlock
		case errno != 0:
			return 0, s.failed("write", errno)
		default:
			s.writable = n == size
			return n, nil
		}
	}
}

// failed gives err the form that package net gives it.
func (s *socket) failed(op string, err error) error {
	if errno, ok := err.(syscall.Errno); ok { //nolint:errorlint // it is the system's own
		err = os.NewSyscallError(op, errno)
	}
	return &net.OpError{Op: op, Net: "tcp", Source: s.local, Addr: s.remote, Err: err}
}

// OnReadable schedules one call of f.
func (s *socket) OnReadable(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f != nil && (s.readable || s.closed || s.readLate) {
		return false
	}
	s.onReadable = f
	return true
}

// OnWritable schedules one call of f.
func (s *socket) OnWritable(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f != nil && (s.writable || s.closed || s.writeLate) {
		return false
	}
	s.onWritable = f
	return true
}

// OnHangup schedules one call of f.
func (s *socket) OnHangup(f func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f != nil && (s.hungUp || s.closed) {
		return false
	}
	s.onHangup = f
	return true
}

// Group puts the socket into a group.
func (s *socket) Group(n uint8) { s.group.Store(uint32(min(n, Groups-1))) }

// Quiet reports that nothing has arrived.
func (s *socket) Quiet() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.hungUp {
		return false
	}
	if s.readable { // or the last read took everything and just filled its buffer
		var one [1]byte
		_, _, err := unix.Recvfrom(s.fd, one[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		s.readable = !errors.Is(err, unix.EAGAIN)
	}
	return !s.readable
}

// Read waits for bytes.
func (s *socket) Read(p []byte) (int, error) {
	for {
		n, err := s.TryRead(p)
		if err != ErrWouldBlock { //nolint:errorlint // it is never wrapped
			return n, err
		}
		s.reader.ready()
		if s.OnReadable(s.reader.wake) {
			<-s.reader.woken
		}
	}
}

// Write writes all of p, waiting for room.
func (s *socket) Write(p []byte) (int, error) {
	for sent := 0; ; {
		n, err := s.TryWrite(p[sent:])
		sent += n
		switch {
		case err == ErrWouldBlock: //nolint:errorlint // it is never wrapped
			s.awaitRoom()
		case err != nil || sent == len(p):
			return sent, err
		}
	}
}

// awaitRoom waits until a write has a result.
func (s *socket) awaitRoom() {
	s.writer.ready()
	if s.OnWritable(s.writer.wake) {
		<-s.writer.woken
	}
}

// Close closes the connection and ends every wait. The second call does nothing.
func (s *socket) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.poller.drop(s)
	err := unix.Close(s.fd)
	read, write, hangup := s.onReadable, s.onWritable, s.onHangup
	s.onReadable, s.onWritable, s.onHangup = nil, nil, nil
	s.mu.Unlock()
	run(hangup, read, write)
	return err
}

// CloseWrite ends the sending side.
func (s *socket) CloseWrite() error {
	if s.waiting.Load() > 0 {
		s.poller.outbox.flush()
	}
	return s.control("close", func() error { return unix.Shutdown(s.fd, unix.SHUT_WR) })
}

// SetLinger sets what Close does with unsent bytes.
func (s *socket) SetLinger(sec int) error {
	l := unix.Linger{}
	if sec >= 0 {
		l = unix.Linger{Onoff: 1, Linger: int32(sec)}
	}
	return s.control("set", func() error { return unix.SetsockoptLinger(s.fd, unix.SOL_SOCKET, unix.SO_LINGER, &l) })
}

func (s *socket) control(op string, call func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return s.failed(op, net.ErrClosed)
	}
	if err := call(); err != nil {
		return s.failed(op, err)
	}
	return nil
}

// LocalAddr is this side's address.
func (s *socket) LocalAddr() net.Addr { return s.local }

// RemoteAddr is the peer's address.
func (s *socket) RemoteAddr() net.Addr { return s.remote }

// SetDeadline sets both deadlines.
func (s *socket) SetDeadline(t time.Time) error {
	_ = s.SetReadDeadline(t)
	return s.SetWriteDeadline(t)
}

// SetReadDeadline ends reads that wait at t. Unlike package net's it leaves alone a read that need not wait. The
// exception is a t that had passed before the call, or that the loop has seen pass.
func (s *socket) SetReadDeadline(t time.Time) error {
	return s.setDeadline(t, &s.readBy, &s.readLate, &s.onReadable)
}

// SetWriteDeadline is SetReadDeadline for writes.
func (s *socket) SetWriteDeadline(t time.Time) error {
	return s.setDeadline(t, &s.writeBy, &s.writeLate, &s.onWritable)
}

func (s *socket) setDeadline(t time.Time, by *atomic.Int64, late *bool, waits *func()) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return s.failed("set", net.ErrClosed)
	}
	if t.IsZero() {
		by.Store(0)
		*late = false
		s.mu.Unlock()
		return nil
	}
	at := max(1, int64(t.Sub(began))+1)
	if at > now() {
		by.Store(at)
		*late = false
		s.mu.Unlock()
		s.poller.armDeadline(at)
		return nil
	}
	by.Store(0)
	*late = true
	var f func()
	f, *waits = *waits, nil
	s.mu.Unlock()
	run(f)
	return nil
}
