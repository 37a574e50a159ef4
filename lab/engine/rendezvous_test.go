package engine

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Any order of everything that can happen ends in each guest answered once, each sequence ended once, and nothing held.
func TestRendezvousUnderRandomOperations(t *testing.T) {
	for seed := range uint64(20) {
		require.NoError(t, randomMeetings(t, seed, 3000), "seed %d", seed)
	}
}

func randomMeetings(t *testing.T, seed uint64, operations int) error {
	rng := rand.New(rand.NewPCG(seed, 2))
	cfg := smallConfig()
	cfg.Lease = 300 * time.Millisecond
	c := newTestCore(t, cfg)
	now, guests, ends, met, served := epoch, 0, map[string]int{}, map[uint64]int{}, 0
	accepted := 0
	var live []string
	step := func() (time.Time, error) {
		r := c.Step(now)
		for _, m := range r.Met {
			met[m.Guest]++
			if m.Err == nil {
				served++
			}
		}
		for _, o := range r.Outputs {
			if o.Reason != Unfinished {
				ends[o.ID]++
			}
		}
		return r.Next, audit(c)
	}
	for n := range operations {
		room := fmt.Sprint("room-", n/8+rng.IntN(4))
		switch k := rng.IntN(12); {
		case k < 4:
			r := Request{ID: fmt.Sprint(n), Prompt: prompt(uint32(rng.IntN(5)), 1+rng.IntN(40)), MaxTokens: 1 + rng.IntN(2), Pin: true, Hold: Hold{
				Shared: room, GuestFirst: time.Duration(rng.IntN(2)*rng.IntN(200)) * time.Millisecond,
				For: time.Duration(rng.IntN(100)) * time.Millisecond,
			}}
			switch err := c.Add(r); {
			case err == nil:
				accepted++
				live = append(live, r.ID)
			case !errors.Is(err, ErrTaken):
				return err
			}
		case k < 8:
			guests++
			c.Meet(room, rng.IntN(42), rng.IntN(42), uint64(guests), now.Add(time.Duration(rng.IntN(200))*time.Millisecond), now)
		case k < 9:
			c.Dismiss(room, now.Add(time.Duration(rng.IntN(100))*time.Millisecond), now)
		case k < 10 && len(live) > 0:
			c.Abort(live[rng.IntN(len(live))])
		default:
			now = now.Add(time.Duration(rng.IntN(30)) * time.Millisecond)
		}
		now = now.Add(time.Duration(rng.IntN(1000)) * time.Microsecond)
		if _, err := step(); err != nil {
			return fmt.Errorf("operation %d: %w", n, err)
		}
	}
	for {
		next, err := step()
		if err != nil {
			return fmt.Errorf("at the end: %w", err)
		}
		if next.IsZero() {
			break
		}
		now = next
	}
	for id, n := range ends {
		if n != 1 {
			return fmt.Errorf("%s ended %d times", id, n)
		}
	}
	for n := range guests {
		if met[uint64(n+1)] != 1 {
			return fmt.Errorf("guest %d was answered %d times", n+1, met[uint64(n+1)])
		}
	}
	if len(ends) != accepted || len(c.seqs)+len(c.pins)+len(c.meetings)+len(c.expecting)+c.cache.active() != 0 {
		return fmt.Errorf("%d of %d ended; %d live, %d pinned, %d meetings, %d blocks at rest", len(ends), accepted, len(c.seqs),
			len(c.pins), len(c.meetings), c.cache.active())
	}
	if served < operations/100 {
		return fmt.Errorf("%d guests served: the operations are too tame", served)
	}
	return nil
}
