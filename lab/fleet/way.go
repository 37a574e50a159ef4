package fleet

import (
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// way is one direction of a connection.
type way struct {
	mu       sync.Mutex
	changed  chan struct{} // closed, and replaced, at every change
	parts    []part        // on their way, in order
	size     int           // of all parts, in bytes
	ended    bool          // nothing follows parts
	left     bool          // its reader has gone
	hole     bool          // what is written is lost
	answered bool          // it has carried something since asked
	turn     time.Duration // what it takes in addition to the hop
	latest   time.Time     // no part arrives before the one before it
	read0    time.Time     // deadlines
	write0   time.Time
}

// window is how much a way carries unread: as much as the buffers of two sockets on loopback.
const window = 1 << 20

// part is bytes that arrive at a time.
type part struct {
	at   time.Time
	data []byte
}

func newWay() *way { return &way{changed: make(chan struct{}), answered: true} }

// change signals a change. The caller holds w.mu.
func (w *way) change() {
	close(w.changed)
	w.changed = make(chan struct{})
}

// asked records that a request, or more of it, went the other way.
func (w *way) asked(turn func() time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.answered {
		w.answered, w.turn = false, turn()
	}
}

func (w *way) write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	var now time.Time
	for {
		now = time.Now()
		switch {
		case w.ended:
			return 0, net.ErrClosed
		case w.left:
			return 0, syscall.EPIPE
		case !w.write0.IsZero() && !w.write0.After(now):
			return 0, os.ErrDeadlineExceeded
		}
		if w.size < window {
			break
		}
		w.wait(w.write0, now)
	}
	w.answered = true
	if w.hole {
		return len(p), nil
	}
	w.parts = append(w.parts, part{w.arrival(now), append([]byte(nil), p...)})
	w.size += len(p)
	w.change()
	return len(p), nil
}

// arrival returns when bytes sent now can be read. The caller holds w.mu.
func (w *way) arrival(now time.Time) time.Time {
	if at := now.Add(hop + w.turn); at.After(w.latest) {
		w.latest = at
	}
	return w.latest
}

func (w *way) read(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		now := time.Now()
		due := w.read0
		switch {
		case w.left:
			return 0, net.ErrClosed
		case !due.IsZero() && !due.After(now):
			return 0, os.ErrDeadlineExceeded
		case len(p) == 0:
			return 0, nil
		case len(w.parts) > 0 && !w.parts[0].at.After(now):
			n := copy(p, w.parts[0].data)
			if w.size -= n; w.size < window && w.size+n >= window {
				w.change()
			}
			if w.parts[0].data = w.parts[0].data[n:]; len(w.parts[0].data) == 0 {
				w.parts = w.parts[1:]
			}
			return n, nil
		case len(w.parts) > 0:
			if at := w.parts[0].at; due.IsZero() || at.Before(due) {
				due = at
			}
		case w.ended && !w.latest.After(now):
			return 0, io.EOF
		case w.ended && (due.IsZero() || w.latest.Before(due)):
			due = w.latest
		}
		w.wait(due, now)
	}
}

// wait waits for a change, or until due. The caller holds w.mu.
func (w *way) wait(due, now time.Time) {
	changed := w.changed
	w.mu.Unlock()
	defer w.mu.Lock()
	if due.IsZero() {
		<-changed
		return
	}
	timer := time.NewTimer(due.Sub(now))
	defer timer.Stop()
	select {
	case <-changed:
	case <-timer.C:
	}
}

// lose has nothing more arrive, the end included.
func (w *way) lose() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hole, w.parts, w.size = true, nil, 0
}

// end is the writer's: nothing follows.
func (w *way) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.ended && !w.hole {
		w.ended = true
		w.arrival(time.Now())
		w.change()
	}
}

// leave ends the reading.
func (w *way) leave() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.left = true
	w.change()
}

func (w *way) setRead(t time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.left {
		return net.ErrClosed
	}
	w.read0 = t
	w.change()
	return nil
}

func (w *way) setWrite(t time.Time) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return net.ErrClosed
	}
	w.write0 = t
	return nil
}
