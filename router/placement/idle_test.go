package placement

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/router"
)

// Workers are expected to be idle for as long as prompts are apart: in a steady stream, after a burst at once, and the
// longer after it the more.
func TestIdle(t *testing.T) {
	start := time.Unix(1, 0)
	var steady Idle
	now := start
	for range 1000 {
		now = now.Add(250 * time.Millisecond)
		steady.Arrived(now)
	}
	assert.InDelta(t, 0.25, steady.Expect(1, 1, now).Seconds(), .03)
	assert.InDelta(t, 1, steady.Expect(4, 1, now).Seconds(), .12, "four workers")
	assert.InDelta(t, .5, steady.Expect(4, 2, now).Seconds(), .06, "two gateways")
	assert.Greater(t, steady.Expect(1, 1, now.Add(time.Minute)), 30*time.Second, "prompts have ended")

	var burst Idle
	assert.Equal(t, time.Hour, burst.Expect(1, 0, start), "no prompt yet")
	for range 50 {
		burst.Arrived(start)
	}
	assert.Equal(t, 20*time.Millisecond, burst.Expect(1, 0, start))
	assert.Less(t, burst.Expect(1, 0, start.Add(10*time.Second)), time.Second)
}

// A prompt that nobody waits for is computed only where that is free.
func TestSpare(t *testing.T) {
	for _, c := range []struct {
		name      string
		waiting   int
		load      router.WorkerLoad
		generates bool
		uncached  int
		forecast  time.Duration
		known     bool
		want      bool
	}{
		{"idle", 0, router.WorkerLoad{}, false, 100, time.Second, true, true},
		{"a request waits", 1, router.WorkerLoad{}, false, 100, time.Second, true, false},
		{"a prompt is computed", 0, router.WorkerLoad{Requests: 1, PrefillTokens: 1}, false, 100, time.Second, true, false},
		{"prefill's answers are not its load", 0, router.WorkerLoad{Requests: 1}, false, 100, time.Second, true, true},
		{"streams would stutter", 0, router.WorkerLoad{Requests: 1}, true, 100, time.Second, true, false},
		{"the next prompt comes sooner", 0, router.WorkerLoad{}, false, 100, time.Second + 1, true, false},
		{"a step is no shorter", 0, router.WorkerLoad{}, false, 1, time.Millisecond, true, true},
		{"an unknown worker is taken for slow", 0, router.WorkerLoad{}, false, 1001, 0, false, false},
		{"and computes short prompts", 0, router.WorkerLoad{}, true, 1000, 0, false, true},
	} {
		assert.False(t, Spare(c.waiting, c.load, c.generates, 99*time.Millisecond, c.uncached, c.forecast, c.known), c.name)
		assert.Equal(t, c.want, Spare(c.waiting, c.load, c.generates, 4*time.Second, c.uncached, c.forecast, c.known), c.name)
	}
}
