package http1

import (
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// outsideFor is how long the loop sleeps in Go's poller instead of polling when a connection outside is about to
	// be ready.
	outsideFor = time.Millisecond
	// outsideEvery is how often the loop sleeps in Go's poller while Go has one thread and connections outside are
	// open. Their bytes wait for so long at most; the loop spends a twentieth of a busy thread on it.
	outsideEvery = 200 * time.Microsecond
)

// Expect has the loops sleep in Go's poller for the next outsideFor, since a connection outside them, which that poller
// watches, will soon be ready. l may be nil.
func (l *Loops) Expect() {
	if l != nil {
		l.outside.expect()
	}
}

// Watch makes a loop notice connections to the listener, which stays in Go's poller, and yield to that poller. It does
// nothing if ln is no TCP listener, or l is nil.
func (l *Loops) Watch(ln net.Listener) {
	tcp, ok := ln.(*net.TCPListener)
	if !ok || l == nil {
		return
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return
	}
	l.outside.mu.Lock()
	l.outside.listeners = append(l.outside.listeners, raw)
	l.outside.mu.Unlock()
	p := l.all[0]
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.running {
		watch(p.epoll, raw)
	}
}

// Outside counts a connection that stays in Go's poller, since it has TLS, until gone is called. l may be nil.
func (l *Loops) Outside() (gone func()) {
	if l == nil || !l.alone {
		return func() {}
	}
	l.outside.conns.Add(1)
	return sync.OnceFunc(func() { l.outside.conns.Add(-1) })
}

// outside is the state of connections that Go's poller watches.
type outside struct {
	until atomic.Int64 // one will soon be ready, until then
	conns atomic.Int64 // that are open, where the loop has the only thread

	mu        sync.Mutex
	listeners []syscall.RawConn // that are open
}

func (o *outside) expect() { o.until.Store(now() + int64(outsideFor)) }

// every is how often a loop with events has to sleep in Go's poller. Below sleepEvery it does not poll.
func (o *outside) every() time.Duration {
	switch {
	case o.until.Load() > now():
		return 0
	case o.conns.Load() > 0:
		return outsideEvery
	}
	return sleepEvery
}

// watched has an epoll watch every listener that is open.
func (o *outside) watched(epoll int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.listeners = slices.DeleteFunc(o.listeners, func(l syscall.RawConn) bool { return !watch(epoll, l) })
}

// listens is the serial of a listener in an epoll: no socket has it.
const listens = -1

// watch reports false if the listener is closed.
func watch(epoll int, l syscall.RawConn) bool {
	return l.Control(func(fd uintptr) {
		event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET&0xffffffff, Fd: int32(fd), Pad: listens}
		_ = unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, int(fd), &event) // without it a client waits for sleepEvery at most
	}) == nil
}
