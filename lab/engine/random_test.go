package engine

import (
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// randomRun does so many random operations on a small, crowded core and checks after each that every block is accounted
// for and every event makes sense. It returns a hash of everything that came out.
func randomRun(seed uint64, operations int) (trace uint64, seen Stats, err error) {
	rng := rand.New(rand.NewPCG(seed, 1))
	cfg := smallConfig()
	cfg.TotalKVBlocks, cfg.ContextLength = 40+rng.IntN(30), 150
	if seed%2 == 1 {
		cfg.Engine = "vllm" // blocks of one content are all kept
	}
	cfg.Lease, cfg.LeaseExtension = 300*time.Millisecond, 200*time.Millisecond
	c, err := NewCore(cfg, testVocabulary())
	if err != nil {
		return 0, seen, err
	}
	var (
		out      = fnv.New64a()
		index    = mirror{}
		now      = epoch
		ends     = map[string]int{}
		accepted = 0
		fetches  []Fetch
		pinned   []*Pinned
		next     time.Time
	)
	step := func() error {
		r := c.Step(now)
		next = r.Next
		fetches = append(fetches, r.Fetches...)
		for _, o := range r.Outputs {
			fmt.Fprintln(out, now.Sub(epoch), o.ID, o.Token, o.Generated, o.Cached, o.Reason)
			if o.Reason != Unfinished {
				ends[o.ID]++
			}
			if o.Pinned != nil {
				pinned = append(pinned, o.Pinned)
			}
		}
		for _, e := range r.Events {
			fmt.Fprintln(out, e.Kind, e.Parent, e.Hashes, e.TokenIDs)
		}
		return index.apply(r.Events)
	}
	for n := range operations {
		switch k := rng.IntN(20); {
		case k < 5:
			shared := prompt(uint32(rng.IntN(3)), rng.IntN(60))
			r := Request{
				ID: fmt.Sprint(n), Prompt: append(shared, prompt(uint32(n), 1+rng.IntN(30))...),
				MaxTokens: 1 + rng.IntN(40), Choice: rng.IntN(2),
			}
			switch rng.IntN(4) {
			case 0:
				r.Pin, r.MaxTokens, r.IgnoreEOS = true, 1, true
			case 1:
				r.Remote = &Remote{RequestID: fmt.Sprint("remote-", n)}
			}
			if err := c.Add(r); err != nil {
				return 0, seen, fmt.Errorf("operation %d: %w", n, err)
			}
			accepted++
		case k < 7:
			ids := slices.Sorted(maps.Keys(c.seqs))
			if len(ids) > 0 {
				c.Abort(ids[rng.IntN(len(ids))])
			}
		case k < 9 && len(fetches) > 0:
			f := fetches[0]
			fetches = fetches[1:]
			if rng.IntN(4) == 0 {
				c.FetchFailed(f.ID, errors.New("lost"))
			} else {
				c.Fetched(f.ID, time.Duration(rng.IntN(5))*time.Millisecond, now)
			}
		case k < 10 && len(pinned) > 0:
			p := pinned[0]
			pinned = pinned[1:]
			_, _ = c.Fetch(Remote{RequestID: p.RequestID, BlockIDs: [][]int32{p.BlockIDs}}, p.Tokens, p.Tokens, now)
			if rng.IntN(2) == 0 {
				c.Heartbeat(p.RequestID, now)
			}
			if rng.IntN(2) == 0 {
				c.Release(p.RequestID)
			}
		case k < 11 && rng.IntN(50) == 0:
			c.ClearCache()
		default:
			if next.After(now) {
				now = next
			}
		}
		now = now.Add(time.Duration(rng.IntN(100)) * time.Microsecond)
		if err := errors.Join(step(), audit(c)); err != nil {
			return 0, seen, fmt.Errorf("operation %d: %w", n, err)
		}
	}
	for _, f := range fetches {
		c.Fetched(f.ID, 0, now)
	}
	fetches = nil
	for {
		if err := errors.Join(step(), audit(c)); err != nil {
			return 0, seen, fmt.Errorf("at the end: %w", err)
		}
		for _, f := range fetches {
			c.Fetched(f.ID, 0, now)
		}
		answered := len(fetches) > 0
		fetches = nil
		if next.IsZero() && !answered {
			break
		}
		if next.After(now) {
			now = next
		}
	}
	for id, n := range ends {
		if n != 1 {
			return 0, seen, fmt.Errorf("%s ended %d times", id, n)
		}
	}
	if len(ends) != accepted || len(c.seqs) != 0 || len(c.pins) != 0 || c.cache.active() != 0 {
		return 0, seen, fmt.Errorf("%d of %d ended; %d live, %d pinned, %d blocks active at rest", len(ends), accepted, len(c.seqs),
			len(c.pins), c.cache.active())
	}
	whole := mirror{}
	if err := whole.apply(c.Snapshot()); err != nil || !maps.Equal(whole, index) {
		return 0, seen, fmt.Errorf("snapshot of %d blocks, events say %d: %w", len(whole), len(index), err)
	}
	for _, b := range whole {
		if b.copies > 1 && cfg.Engine != "vllm" {
			return 0, seen, fmt.Errorf("a block is stored %d times", b.copies)
		}
	}
	return out.Sum64(), c.Stats(), nil
}

func TestBlocksAreConservedUnderRandomOperations(t *testing.T) {
	var seen Stats
	for seed := range uint64(4) {
		_, stats, err := randomRun(seed, 2000)
		require.NoError(t, err, "seed %d", seed)
		seen.PrefixHits += stats.PrefixHits
		seen.Preemptions += stats.Preemptions
		seen.LapsedLeases += stats.LapsedLeases
		seen.FailedLoads += stats.FailedLoads
	}
	assert.True(t, seen.PrefixHits != 0 && seen.Preemptions != 0 && seen.LapsedLeases != 0 && seen.FailedLoads != 0,
		"the operations are too tame: %+v", seen)
}

// The golden trace shows that the same calls give the same results, run after run and on every machine.
func TestTraceIsAlwaysTheSame(t *testing.T) {
	const want = 0x2e40c8ba8649cb6f
	for range 2 {
		if got, _, err := randomRun(42, 2000); err != nil || got != want {
			t.Errorf("seed 42: trace %#x, want %#x (%v)", got, uint64(want), err)
		}
	}
}
