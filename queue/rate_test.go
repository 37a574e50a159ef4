package queue

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// TestRetryAfter: those that wait over the observed drain rate, whose memory is about ten seconds long.
func TestRetryAfter(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Limit, cfg.Timeout = 10, time.Hour
	core := newCore(t, cfg, func(*Ticket[int], error) {})
	now, places := start, 0
	fill := func(waiting int) {
		for core.Len() < waiting {
			push(t, core, now, &Ticket[int]{})
		}
		core.Drain(now, func(_ *Ticket[int], d Drain[int]) error {
			if places == 0 {
				return ErrWait
			}
			places--
			return nil
		})
	}
	for i, c := range []struct {
		after           time.Duration
		grants, waiting int // then
		want            string
	}{
		{0, 0, 10, "0.00/s, retry after 1s"},               // nothing was observed
		{7 * time.Second, 0, 10, "0.00/s, retry after 7s"}, // nothing was granted: as long again
		{time.Second, 1, 9, "0.18/s, retry after 50s"},     // one in 8 s, of which the first count for less than the last
		{500 * time.Millisecond, 1, 8, "0.34/s, retry after 24s"},
		{500 * time.Millisecond, 1, 7, "0.48/s, retry after 15s"},
		{500 * time.Millisecond, 1, 6, "0.61/s, retry after 10s"},
		{500 * time.Millisecond, 1, 10, "0.72/s, retry after 14s"},
		{10 * time.Second, 0, 10, "0.19/s, retry after 52s"}, // a stall shows as a longer and longer time
		{30 * time.Second, 0, 10, "0.01/s, retry after 1m0s"},
		{time.Minute, 0, 10, "0.00/s, retry after 1m0s"},
		{0, 10, 0, "1.00/s, retry after 1s"},
		{time.Hour, 3, 0, "1.00/s, retry after 1s"}, // while no request waits, nothing is learnt and nothing forgotten
	} {
		now, places = now.Add(c.after), c.grants
		fill(c.grants)
		fill(c.waiting)
		rate := core.Stats(now).GrantedPerSecond
		assert.Equal(t, c.want, fmt.Sprintf("%.2f/s, retry after %v", rate, core.retryAfter(now)), "step %d", i)
		if c.waiting == cfg.Limit {
			assert.EqualError(t, core.Push(&Ticket[int]{}, now), fmt.Sprint("queue: full (--queue-limit), retry after ", core.retryAfter(now)))
		}
	}
}
