package http1

import (
	"sync"
	"time"
)

// servePool is a pool of goroutines that serve connections. Idle ones are kept for a while, with their grown stacks; the
// last one to finish is the first to be reused.
type servePool struct {
	serveConn func(*ServerConn)

	mu      sync.Mutex
	idle    []chan *ServerConn
	spare   int  // of idle, those unused since the last look
	looking bool // a look is due
	closed  bool // none is kept
}

// spareFor is how long an unused goroutine is kept, up to twice that.
const spareFor = time.Second

func (w *servePool) take(c *ServerConn) {
	w.mu.Lock()
	last := len(w.idle) - 1
	if last < 0 {
		w.mu.Unlock()
		go w.work(make(chan *ServerConn, 1), c)
		return
	}
	job := w.idle[last]
	w.idle = w.idle[:last]
	w.spare = min(w.spare, last)
	w.mu.Unlock()
	job <- c
}

// work runs one goroutine. It ends when it receives nil.
func (w *servePool) work(job chan *ServerConn, c *ServerConn) {
	for ; c != nil; c = <-job {
		w.serveConn(c)
		w.mu.Lock()
		if w.closed {
			w.mu.Unlock()
			return
		}
		w.idle = append(w.idle, job)
		if !w.looking {
			w.looking, w.spare = true, 0
			time.AfterFunc(spareFor, w.look)
		}
		w.mu.Unlock()
	}
}

// look ends the goroutines unused since the last look, the longest idle first.
func (w *servePool) look() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, job := range w.idle[:w.spare] {
		job <- nil
	}
	w.idle = append(w.idle[:0], w.idle[w.spare:]...)
	w.spare = len(w.idle)
	if w.looking = w.spare > 0; w.looking {
		time.AfterFunc(spareFor, w.look)
	}
}

// close ends idle goroutines now and the others when they finish.
func (w *servePool) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
	for _, job := range w.idle {
		job <- nil
	}
	w.idle, w.spare = nil, 0
}
