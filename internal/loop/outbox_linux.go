package loop

import (
	"sync"
	"sync/atomic"
)

const (
	// postFrom is how many events a turn begins with if posts wait for its end.
	postFrom = 8
	// postedBytes is how much of them waits at most.
	postedBytes = 128 << 10
)

// outbox holds what sockets post during a loop's turn until those that its events woke have run. Posts that leave in a row
// find the kernel's code in the processor's caches, and wake a worker once that would go back to sleep between two. It is
// open during turns of many events where Go has one thread: with more, the turn ends while others still run.
type outbox struct {
	open atomic.Bool // as of mu

	mu    sync.Mutex
	bytes []byte
	posts []post
}

// post is what a socket posted: the bytes from where those of the post before end.
type post struct {
	s   *socket
	end int
}

// take takes p in, for the end of the turn.
func (o *outbox) take(s *socket, p []byte) bool {
	if !o.open.Load() {
		return false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.open.Load() || len(o.bytes)+len(p) > postedBytes || !s.posts() {
		return false
	}
	o.bytes = append(o.bytes, p...)
	o.posts = append(o.posts, post{s, len(o.bytes)})
	return true
}

// begin opens the outbox, for a turn.
func (o *outbox) begin() { o.open.Store(true) }

// end closes the outbox and sends what waits.
func (o *outbox) end() {
	if !o.open.Load() {
		return
	}
	o.mu.Lock()
	o.open.Store(false)
	o.mu.Unlock()
	o.flush()
}

// flush sends what waits.
func (o *outbox) flush() {
	var broken []*socket
	o.mu.Lock()
	begin := 0
	for i, p := range o.posts {
		if !p.s.posted(o.bytes[begin:p.end]) {
			broken = append(broken, p.s)
		}
		begin = p.end
		o.posts[i].s = nil
	}
	o.bytes, o.posts = o.bytes[:0], o.posts[:0]
	o.mu.Unlock()
	for _, s := range broken {
		s.broke()
	}
}
