package upstream

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

// Idle connections are kept for less than engines keep them, uvicorn's 5 s, to the
// moment and not to the next sweep.
func TestIdleConnectionsAgeBeforeEngines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, h := network(t, answerEach)
		for _, c := range []struct {
			after time.Duration
			conns int
		}{{0, 1}, {3900 * time.Millisecond, 1}, {3900 * time.Millisecond, 1}, {4001 * time.Millisecond, 2}, {time.Minute, 3}} {
			time.Sleep(c.after)
			finish(t, called(t, h, leg("http://w")))
			assert.Len(t, f.conns, c.conns, "after %v idle", c.after)
		}
	})
}

// A connection that is never idle for long is replaced all the same: the worker's name may have moved.
func TestBusyConnectionsAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, h := network(t, answerEach)
		for range 150 {
			finish(t, called(t, h, leg("http://w")))
			time.Sleep(time.Second)
		}
		assert.Len(t, f.conns, 3, "connections in 150 s")
	})
}
