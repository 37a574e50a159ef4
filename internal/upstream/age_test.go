package upstream

import (
	"testing"
	"testing/synctest"
	"time"
)

// Idle connections are kept for less than engines keep them, uvicorn's 5 s, to the
// moment and not to the next sweep.
func TestIdleConnectionsAgeBeforeEngines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &flaky{serve: answerEach}
		h := newHTTP(Config{Dial: f.dial})
		defer h.CloseIdle()
		for _, c := range []struct {
			after time.Duration
			conns int
		}{{0, 1}, {3900 * time.Millisecond, 1}, {3900 * time.Millisecond, 1}, {4001 * time.Millisecond, 2}, {time.Minute, 3}} {
			time.Sleep(c.after)
			s, err := h.Call(t.Context(), leg("http://w"))
			finish(t, s, err)
			if len(f.conns) != c.conns {
				t.Errorf("after %v idle: %d connections, want %d", c.after, len(f.conns), c.conns)
			}
		}
	})
}

// A connection that is never idle for long is replaced all the same: the worker's name may have moved.
func TestBusyConnectionsAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &flaky{serve: answerEach}
		h := newHTTP(Config{Dial: f.dial})
		defer h.CloseIdle()
		for range 150 {
			s, err := h.Call(t.Context(), leg("http://w"))
			finish(t, s, err)
			time.Sleep(time.Second)
		}
		if len(f.conns) != 3 {
			t.Errorf("%d connections in 150 s", len(f.conns))
		}
	})
}
