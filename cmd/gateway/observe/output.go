package observe

import (
	"io"
	"log/slog"
	"sync"
	"time"
)

const (
	// heldFor is how long lines of requests wait to be written together: a write costs a tenth of a short request,
	// and starts the scheduler's monitor.
	heldFor = 50 * time.Millisecond
	// heldBytes is how many of them wait at most.
	heldBytes = 32 << 10
)

// output receives whole lines, one at a time or several together.
type output struct {
	w       io.Writer
	colours bool           // w is a terminal that shows them
	holds   bool           // lines may wait: w is a file or a pipe, and each write a system call
	level   *slog.LevelVar // of the lines that are written

	mu    sync.Mutex
	held  []byte // lines that wait, in order
	timer *time.Timer
}

// Write writes a line, after those that wait.
func (o *output) Write(line []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.flush()
	return o.w.Write(line)
}

// line writes a line, at once unless it may wait.
func (o *output) line(line []byte, waits bool) {
	if !waits || !o.holds {
		_, _ = o.Write(line)
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.held = append(o.held, line...)
	switch {
	case len(o.held) >= heldBytes:
		o.flush()
	case len(o.held) > len(line): // the timer runs
	case o.timer == nil:
		o.timer = time.AfterFunc(heldFor, func() {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.flush()
		})
	default:
		o.timer.Reset(heldFor)
	}
}

// flush writes the lines that wait. The caller holds mu.
func (o *output) flush() {
	if len(o.held) == 0 {
		return
	}
	_, _ = o.w.Write(o.held)
	o.held = o.held[:0]
	if cap(o.held) > 2*heldBytes { // a line may be long
		o.held = nil
	}
}

// Flush writes the held lines of a log that NewLogger made. Call it before the program ends.
func Flush(log *slog.Logger) {
	if h, ok := log.Handler().(*handler); ok {
		h.out.mu.Lock()
		defer h.out.mu.Unlock()
		h.out.flush()
	}
}
