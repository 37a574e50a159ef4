package guard

import (
	"sync"
	"time"
)

// maxKinds bounds the memory; kinds beyond it share one count.
const maxKinds = 256

// LogLimiter counts lines by kind. Its methods may be called concurrently.
type LogLimiter struct {
	// Burst is how many lines of one kind are written within Window.
	Burst  int
	Window time.Duration

	mu    sync.Mutex
	kinds map[string]*count
}

type count struct {
	since      time.Time // the window's beginning
	written    int       // lines in the window
	suppressed int       // lines since the last one written
}

// Allow reports whether a line of that kind may be written at now, and how many were suppressed since the last one.
// Kinds are a fixed set of names, never a request's text.
func (l *LogLimiter) Allow(kind string, now time.Time) (suppressed int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.kinds[kind]
	if c == nil {
		if l.kinds == nil {
			l.kinds = make(map[string]*count)
		}
		if len(l.kinds) >= maxKinds {
			kind = ""
		}
		if c = l.kinds[kind]; c == nil {
			c = &count{since: now}
			l.kinds[kind] = c
		}
	}
	if now.Sub(c.since) >= l.Window {
		c.since, c.written = now, 0
	}
	if c.written >= l.Burst {
		c.suppressed++
		return 0, false
	}
	c.written++
	suppressed, c.suppressed = c.suppressed, 0
	return suppressed, true
}
