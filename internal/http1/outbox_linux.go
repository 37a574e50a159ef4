package http1

import (
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// postFrom is how many events a turn begins with if posts wait for its end.
	postFrom = 8
	// postedBytes is how much of them waits at most.
	postedBytes = 128 << 10
	// postedFor is how long the first of them waits at most, unless a goroutine runs for longer without posting.
	postedFor = 2 * time.Millisecond
)

// outbox holds sockets' posts during a loop's turn until the goroutines that its events woke have run. Sent in a row,
// posts find the kernel's code in the processor's caches, and a worker wakes once instead of sleeping between two. It
// is open during turns of many events if Go has one thread: with more, the turn ends while others still run.
type outbox struct {
	open atomic.Bool // a turn that posts; closed under mu

	mu    sync.Mutex
	until int64 // when the first of posts leaves at the latest; see postedFor
	bytes []byte
	posts []post
}

// post is one socket's post: its bytes begin at the end of the previous one's.
type post struct {
	s   *socket
	end int
}

// take takes p in, for the end of the turn.
func (o *outbox) take(s *socket, p []byte) bool {
	if !o.open.Load() || len(p) > postedBytes {
		return false
	}
	var broken []*socket
	o.mu.Lock()
	if len(o.posts) > 0 && (now() > o.until || len(o.bytes)+len(p) > postedBytes) {
		broken = o.send()
	}
	taken := o.open.Load() && s.posts()
	if taken {
		if len(o.posts) == 0 {
			o.until = now() + int64(postedFor)
		}
		o.bytes = append(o.bytes, p...)
		o.posts = append(o.posts, post{s, len(o.bytes)})
	}
	o.mu.Unlock()
	broke(broken)
	return taken
}

// begin opens the outbox, for a turn.
func (o *outbox) begin() { o.open.Store(true) }

// end closes the outbox and sends its posts.
func (o *outbox) end() {
	if !o.open.Load() {
		return
	}
	o.mu.Lock()
	o.open.Store(false)
	broken := o.send()
	o.mu.Unlock()
	broke(broken)
}

// flush sends the posts.
func (o *outbox) flush() {
	o.mu.Lock()
	broken := o.send()
	o.mu.Unlock()
	broke(broken)
}

// send sends the posts, and returns the sockets whose connections have broken. The caller holds mu.
func (o *outbox) send() (broken []*socket) {
	begin := 0
	for i, p := range o.posts {
		if !p.s.posted(o.bytes[begin:p.end]) {
			broken = append(broken, p.s)
		}
		begin = p.end
		o.posts[i].s = nil
	}
	o.bytes, o.posts = o.bytes[:0], o.posts[:0]
	return broken
}

// broke has those that wait for a socket see that its connection has broken. No lock is held.
func broke(broken []*socket) {
	for _, s := range broken {
		s.happened(unix.EPOLLERR)
	}
}

// Post takes p for the end of the loop's turn.
func (s *socket) Post(p []byte) bool { return s.poller.outbox.take(s, p) }

// posts reports whether the socket takes a post, and counts it.
func (s *socket) posts() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.writeLate || !s.writable {
		return false
	}
	s.waiting.Add(1)
	return true
}

// posted sends a post. It reports false if the connection has broken.
func (s *socket) posted(p []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting.Add(-1)
	if s.closed {
		return true
	}
	if len(s.rest) > 0 {
		s.rest = append(s.rest, p...)
		return true
	}
	left, errno := s.send(p)
	s.rest = append(s.rest, left...)
	return errno == 0
}

// sendRest sends the rest of posts, and reports whether all was sent. The caller holds mu.
func (s *socket) sendRest() bool {
	if len(s.rest) > 0 {
		s.rest, _ = s.send(s.rest) // its error shows in reads
	}
	if len(s.rest) > 0 {
		return false
	}
	s.rest = nil
	return true
}

// send sends p as far as there is room and returns the rest, none if the connection has broken. The caller holds mu.
func (s *socket) send(p []byte) (left []byte, errno syscall.Errno) {
	for len(p) > 0 {
		var n int
		switch n, errno = write(s.fd, p); errno {
		case 0:
			p = p[n:]
		case unix.EINTR:
		case unix.EAGAIN:
			s.writable = false
			return p, 0
		default:
			return nil, errno
		}
	}
	return nil, 0
}
