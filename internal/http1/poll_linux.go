package http1

import (
	"math"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Loops are the event loops of one process. A loop's goroutine runs while the loop has sockets.
type Loops struct {
	all     []*poller
	next    atomic.Uint32
	alone   bool // Go has one thread, which a waiting loop would block
	outside outside
}

// NewLoops makes one loop for every two threads of Go, and at least one, so that woken goroutines find a thread of their
// own.
func NewLoops() *Loops {
	l := &Loops{alone: runtime.GOMAXPROCS(0) == 1}
	for range max(1, runtime.GOMAXPROCS(0)/2) {
		l.all = append(l.all, &poller{outside: &l.outside, posts: l.alone})
	}
	l.all[0].listeners = true
	return l
}

// Take moves c's descriptor into a loop, and gives c back as it is where that cannot be: it is no TCP socket, l is nil,
// or the system refuses.
func (l *Loops) Take(c net.Conn) net.Conn {
	tcp, ok := c.(*net.TCPConn)
	if !ok || l == nil {
		return c
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return c
	}
	fd := -1
	// Go's poller drops a descriptor only when it is closed, so the loop gets a duplicate.
	if raw.Control(func(of uintptr) { fd, err = unix.FcntlInt(of, unix.F_DUPFD_CLOEXEC, 0) }) != nil || err != nil {
		return c
	}
	s := &socket{fd: fd, local: tcp.LocalAddr(), remote: tcp.RemoteAddr()}
	if !l.all[int(l.next.Add(1))%len(l.all)].add(s) {
		_ = unix.Close(fd)
		return c
	}
	_ = tcp.Close()
	return s
}

const (
	// lookEvery is how often deadlines are checked, at least, while there are sockets. An earlier one schedules an
	// earlier check.
	lookEvery = time.Second
	// pollTime is how long the loop waits for the next event before it sleeps in Go's poller. Until
	// then the next event finds the loop awake: neither the scheduler nor its monitor has to be woken. Where Go has one
	// thread, timers may have to wait for as long. A collection does not: its signal ends the wait.
	pollTime = time.Millisecond
	// sleepEvery is how often the loop, however busy, sleeps in Go's poller, so that connections outside the loops are
	// looked after.
	sleepEvery = 5 * time.Millisecond
	// batch is the maximum of events of one wait.
	batch = 256
)

type poller struct {
	outside   *outside
	listeners bool // it watches those outside, for all loops
	posts     bool // during turns of many events posts wait for the end
	outbox    outbox

	look atomic.Int64 // when to look at the deadlines; 0 for never

	// The loop's own, while it runs.
	ready  []ready         // the present events
	file   *os.File        // the epoll descriptor, as Go's poller has it
	events syscall.RawConn // the same
	slept  int64           // when it last slept in Go's poller
	wakeBy int64           // when that is to wake it at the latest

	mu            sync.Mutex
	epoll, wakeup int       // descriptors, while it runs
	sockets       []*socket // by descriptor
	serial        int32     // of the next socket
	open          int       // sockets: it runs while there are any
	running       bool
}

// ready is an event of a socket.
type ready struct {
	s     *socket
	is    uint32
	group uint8
}

// start starts the loop. The caller holds mu.
func (p *poller) start() error {
	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return err
	}
	wakeup, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err == nil {
		if err = unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, wakeup, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(wakeup)}); err != nil {
			_ = unix.Close(wakeup)
		}
	}
	if err == nil {
		err = unix.SetNonblock(epoll, true) // so that Go's poller takes it
	}
	if err != nil {
		_ = unix.Close(epoll)
		return err
	}
	file := os.NewFile(uintptr(epoll), "epoll")
	ready, err := file.SyscallConn()
	if err != nil {
		_ = file.Close()
		_ = unix.Close(wakeup)
		return err
	}
	p.epoll, p.file, p.events, p.wakeup, p.running = epoll, file, ready, wakeup, true
	p.look.Store(now() + int64(lookEvery))
	if p.listeners {
		p.outside.watched(epoll)
	}
	go p.run()
	return nil
}

// wake ends the loop's wait, if it runs. The caller holds mu, or is the loop.
func (p *poller) wake() {
	if !p.running {
		return
	}
	one := [8]byte{1}
	_, _ = write(p.wakeup, one[:]) // it can only be full, and wakes the loop then
}

// add has the loop watch s from now on. It reports false if the system refuses.
func (p *poller) add(s *socket) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.running && p.start() != nil {
		return false
	}
	p.serial = (p.serial + 1) & math.MaxInt32 // never listens
	s.poller, s.serial = p, p.serial
	const all = unix.EPOLLIN | unix.EPOLLPRI | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET&0xffffffff
	event := unix.EpollEvent{Events: all, Fd: int32(s.fd), Pad: s.serial}
	if unix.EpollCtl(p.epoll, unix.EPOLL_CTL_ADD, s.fd, &event) != nil {
		p.wake() // it may have been started for nothing
		return false
	}
	if s.fd >= len(p.sockets) {
		p.sockets = append(p.sockets, make([]*socket, s.fd+64-len(p.sockets))...)
	}
	p.sockets[s.fd] = s
	p.open++
	return true
}

// drop forgets s, whose descriptor is about to be closed.
func (p *poller) drop(s *socket) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sockets[s.fd] = nil
	if p.open--; p.open == 0 {
		p.wake()
	}
}

// over ends the loop if it has no sockets.
func (p *poller) over() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open > 0 {
		return false
	}
	p.running, p.sockets = false, nil
	_ = p.file.Close() // the epoll descriptor
	_ = unix.Close(p.wakeup)
	return true
}

// armDeadline has the loop look at the deadlines at t, unless it will do so before.
func (p *poller) armDeadline(t int64) {
	if p.bring(t) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.wake()
	}
}

// bring schedules a check of the deadlines at t, and reports false if one is scheduled before.
func (p *poller) bring(t int64) bool {
	for {
		at := p.look.Load()
		if at != 0 && at <= t {
			return false
		}
		if p.look.CompareAndSwap(at, t) {
			return true
		}
	}
}

// run is the loop. It looks whether it is over when it was woken, and now and then.
func (p *poller) run() {
	var events [batch]unix.EpollEvent
	for {
		n := p.wait(&events)
		if p.take(events[:n]) && p.over() {
			return
		}
		if p.posts && len(p.ready) >= postFrom {
			p.outbox.begin()
		}
		p.handOn()
		if at := p.look.Load(); at != 0 && at <= now() {
			p.lookAtDeadlines(at)
		}
	}
}

// handOn delivers the present events, group by group.
func (p *poller) handOn() {
	for group := Groups; group > 0; {
		group--
		for i := range p.ready {
			if r := &p.ready[i]; r.s != nil && int(r.group) == group {
				r.s.happened(r.is)
				r.s = nil
			}
		}
	}
}

// wait returns the next events. Goroutines that the last ones woke run first, and those that these wake. Events that
// arrive meanwhile end pollFor at once.
func (p *poller) wait(events *[batch]unix.EpollEvent) int {
	runtime.Gosched()
	runtime.Gosched()
	if p.posts {
		p.outbox.end()
	}
	n, every := 0, p.outside.every()
	if every < sleepEvery {
		n = peek(p.epoll, events)
	} else {
		n = pollFor(p.epoll, events)
	}
	if n == 0 {
		return p.sleep(events)
	}
	if at := now(); at-p.slept >= int64(every) {
		p.yieldToNetpoll(at)
	}
	return n
}

// sleep waits for the next events in Go's poller, so that the thread is free.
func (p *poller) sleep(events *[batch]unix.EpollEvent) (n int) {
	if at := p.look.Load(); at != p.wakeBy {
		p.wakeBy = at
		_ = p.file.SetReadDeadline(began.Add(time.Duration(at)))
	}
	_ = p.events.Read(func(uintptr) bool { // it fails at the deadline only
		n = peek(p.epoll, events)
		return n > 0
	})
	p.slept = now()
	return n
}

// yieldToNetpoll sleeps in Go's poller although there are events, so that connections there are served: Go polls only when it has
// nothing to run.
func (p *poller) yieldToNetpoll(at int64) {
	p.slept = at
	slept := false
	_ = p.events.Read(func(uintptr) bool {
		if slept {
			return true
		}
		slept = true
		p.wake()
		return false
	})
}

// peek returns the events at hand.
func peek(epoll int, events *[batch]unix.EpollEvent) int {
	n, _, errno := syscall.RawSyscall6(unix.SYS_EPOLL_PWAIT, uintptr(epoll), uintptr(unsafe.Pointer(events)), batch, 0, 0, 0)
	if errno != 0 {
		return 0
	}
	return int(n)
}

// noPwait2 is set on systems without a wait of less than a millisecond (before Linux 5.11).
var noPwait2 atomic.Bool

// pollFor waits for pollTime at most and keeps the thread. As a system call, it is no synchronisation for the race
// detector.
func pollFor(epoll int, events *[batch]unix.EpollEvent) int {
	if noPwait2.Load() {
		return 0
	}
	short := unix.Timespec{Nsec: int64(pollTime)}
	n, _, errno := syscall.RawSyscall6(unix.SYS_EPOLL_PWAIT2, uintptr(epoll), uintptr(unsafe.Pointer(events)), batch,
		uintptr(unsafe.Pointer(&short)), 0, 0)
	switch {
	case errno == unix.ENOSYS || errno == unix.EPERM:
		noPwait2.Store(true)
		return 0
	case errno != 0:
		return 0
	}
	return int(n)
}

// take finds the sockets of events, and reports whether the loop may be over.
func (p *poller) take(events []unix.EpollEvent) (idle bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ready = p.ready[:0]
	for i := range events {
		e := &events[i]
		if int(e.Fd) == p.wakeup {
			var drained [8]byte
			_, _ = loopRead(p.wakeup, drained[:])
			continue
		}
		if e.Pad == listens {
			p.outside.expect()
			continue
		}
		if s := p.sockets[e.Fd]; s != nil && s.serial == e.Pad {
			p.ready = append(p.ready, ready{s, e.Events, uint8(s.group.Load())})
		}
	}
	return p.open == 0
}

// lookAtDeadlines ends the waits whose deadline has passed, and notes when to look again. was is when it was to look.
func (p *poller) lookAtDeadlines(was int64) {
	p.look.CompareAndSwap(was, 0) // a deadline that is set from here on is looked at by itself
	at := now()
	next := at + int64(lookEvery)
	p.mu.Lock()
	p.ready = p.ready[:0]
	for _, s := range p.sockets {
		if s == nil {
			continue
		}
		for _, deadline := range []int64{s.readBy.Load(), s.writeBy.Load()} {
			switch {
			case deadline == 0:
			case deadline <= at:
				p.ready = append(p.ready, ready{s: s})
			default:
				next = min(next, deadline)
			}
		}
	}
	some := p.open > 0
	p.mu.Unlock()
	for i := range p.ready {
		p.ready[i].s.expire(at)
		p.ready[i].s = nil
	}
	if some {
		p.bring(next)
	}
}

var began = time.Now()

// now is the time in nanoseconds since the process began, and never 0.
func now() int64 { return int64(time.Since(began)) + 1 }
