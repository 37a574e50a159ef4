package index

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// prompt returns the hashes of the prompt that takes the given branches: a
// binary tree of prefixes, whose root has the hash zero.
func prompt(branches uint16, n int) []uint64 {
	hashes := make([]uint64, n)
	for i := range hashes {
		prefix := uint64(i)<<32 | uint64(branches)&(1<<i-1)
		hashes[i] = prefix * 0x9e3779b97f4a7c15
	}
	return hashes
}

const depth = 12

// slowPredictor is the predictor as one would write it without a care for time:
// a list that is sorted whenever something has to go.
type slowPredictor struct {
	ttl     time.Duration // 0: none
	limit   int           // for each of those that have none
	ratio   float64       // of it that pruning leaves
	bounds  map[Owner]int // of those that have one
	met     map[Owner]bool
	now     time.Time
	blocks  []slowBlock // the least recent first
	pruning bool        // those that have none
}

type slowBlock struct {
	owner Owner
	hash  uint64
	seen  time.Time
	by    int // the insertion that named it last
}

func (s *slowPredictor) find(o Owner, hash uint64) int {
	return slices.IndexFunc(s.blocks, func(b slowBlock) bool { return b.owner == o && b.hash == hash })
}

func (s *slowPredictor) advance(now time.Time) {
	if now.After(s.now) {
		s.now = now
	}
}

func (s *slowPredictor) insert(o Owner, chain []uint64, now time.Time, by int) (added []uint64) {
	s.advance(now)
	s.met[o] = true
	chain = chain[:min(len(chain), s.bound(o))]
	for i := len(chain) - 1; i >= 0; i-- {
		if at := s.find(o, chain[i]); at >= 0 {
			s.blocks = slices.Delete(s.blocks, at, at+1)
		} else {
			added = append(added, chain[i])
		}
		s.blocks = append(s.blocks, slowBlock{o, chain[i], s.now, by})
	}
	s.sweep(o, max(sweep, 2*len(added)))
	return added
}

// bound is how many blocks of one prompt count for o.
func (s *slowPredictor) bound(o Owner) int {
	if n, ok := s.bounds[o]; ok {
		return n
	}
	return s.limit
}

// shared is how many blocks there may be of those that have no bound.
func (s *slowPredictor) shared() int { return s.limit * (len(s.met) - len(s.bounds)) }

// in are the places of the blocks in o's list: its own, or that of all who have none.
func (s *slowPredictor) in(o Owner) (places []int) {
	_, alone := s.bounds[o]
	for i, b := range s.blocks {
		if _, other := s.bounds[b.owner]; b.owner == o || !alone && !other {
			places = append(places, i)
		}
	}
	return places
}

// setBound moves o's blocks, as the newest, to the list that it is then in.
func (s *slowPredictor) setBound(o Owner, blocks int) {
	s.met[o] = true
	before, alone := s.bounds[o]
	if alone == (blocks > 0) && before == blocks {
		s.sweep(o, sweep)
		if alone {
			s.sweep(NoOwner, sweep)
		}
		return
	}
	if delete(s.bounds, o); blocks > 0 {
		s.bounds[o] = blocks
	}
	if alone != (blocks > 0) {
		var own []slowBlock
		s.blocks = slices.DeleteFunc(s.blocks, func(b slowBlock) bool {
			if b.owner == o {
				own = append(own, b)
			}
			return b.owner == o
		})
		s.blocks = append(s.blocks, own...)
	}
	s.sweep(o, sweep)
	if blocks > 0 {
		s.sweep(NoOwner, sweep)
	}
}

func (s *slowPredictor) withdraw(o Owner, added []uint64, by int) {
	for _, hash := range added {
		if at := s.find(o, hash); at >= 0 && s.blocks[at].by == by {
			s.blocks = slices.Delete(s.blocks, at, at+1)
		}
	}
}

func (s *slowPredictor) sweep(o Owner, most int) {
	bound, alone := s.bounds[o]
	for ; most > 0; most-- {
		list := s.in(o)
		if !alone {
			target := max(1, int(float64(s.shared())*s.ratio))
			s.pruning = s.pruning && len(list) > target || len(list) > s.shared()
		}
		over := alone && len(list) > bound || !alone && s.pruning
		if len(list) == 0 || !over && (s.ttl == 0 || s.now.Sub(s.blocks[list[0]].seen) < s.ttl) {
			return
		}
		s.blocks = slices.Delete(s.blocks, list[0], list[0]+1)
	}
}

func (s *slowPredictor) drop(owners ...Owner) {
	s.blocks = slices.DeleteFunc(s.blocks, func(b slowBlock) bool { return slices.Contains(owners, b.owner) })
	for _, o := range owners {
		delete(s.bounds, o)
		delete(s.met, o)
	}
	s.sweep(NoOwner, sweep)
}

// playPredictions reads operations from data, does them to a predictor and to
// its twin, and compares the two after each of them.
func playPredictions(t interface{ Fatalf(string, ...any) }, data []byte, limit int, lru bool) {
	next := func() int {
		if len(data) == 0 {
			return 0
		}
		b := data[0]
		data = data[1:]
		return int(b)
	}
	cfg := PredictorConfig{TTL: 100 * time.Second, MaxBlocks: limit, PruneRatio: 0.7, LRU: lru}
	idx := New(Config{shards: 1})
	p := NewPredictor(idx, cfg)
	s := &slowPredictor{ttl: cfg.TTL, limit: limit, ratio: cfg.PruneRatio, bounds: map[Owner]int{}, met: map[Owner]bool{}}
	if lru {
		s.ttl = 0
	}
	type booking struct {
		owner Owner
		chain []uint64
		made  Prediction
		added []uint64
		by    int
	}
	var made []booking
	var m Matches
	now := noon
	for ops := 1; len(data) > 0; ops++ {
		op, worker, rank := next()%16, string(rune('A'+next()%3)), next()%2
		o := idx.Owner(worker, rank)
		chain := prompt(uint16(next())|uint16(next())<<8, depth)[:next()%depth+1]
		now = now.Add(time.Duration(next()-10) * time.Second / 4) // a little back at times
		switch {
		default:
			b := booking{owner: o, chain: chain, by: ops}
			b.made, b.added = p.Insert(o, chain, now), s.insert(o, chain, now, ops)
			if added(b.made) != len(b.added) {
				t.Fatalf("%d blocks added, want %d", added(b.made), len(b.added))
			}
			made = append(made, b)
		case op >= 14:
			p.Expire(now)
			s.advance(now)
			s.sweep(NoOwner, sweep)
		case op == 12 && lru:
			bound := next() % 20 // 0: unknown
			p.Bound(o, bound)
			s.setBound(o, bound)
		case op == 13:
			first, _ := idx.Lookup(worker, 0)
			second, _ := idx.Lookup(worker, 1)
			p.Drop(worker)
			s.drop(first, second)
			if got := p.Insert(o, chain, now); added(got) != 0 {
				t.Fatalf("an owner that was dropped got %d blocks", added(got))
			}
		case op >= 11 && len(made) > 0:
			b := made[next()%len(made)]
			p.Invalidate(b.owner, b.chain, b.made)
			s.withdraw(b.owner, b.added, b.by)
		}
		if p.Len() != len(s.blocks) || len(s.in(NoOwner)) > s.shared() {
			t.Fatalf("%d blocks, want %d, at most %d for those without a bound", p.Len(), len(s.blocks), s.shared())
		}
		held := map[Owner]int{}
		for _, b := range s.blocks {
			held[b.owner]++
		}
		idx.Match(chain, &m)
		for k := range 6 {
			o, ok := idx.Lookup(string(rune('A'+k/2)), k%2)
			if !ok {
				continue
			}
			run := 0
			for run < len(chain) && s.find(o, chain[run]) >= 0 {
				run++
			}
			for _, h := range chain[run:] {
				if s.find(o, h) >= 0 {
					t.Fatalf("the twin holds a block behind a hole")
				}
			}
			if got := m.Leading(o); got != run {
				t.Fatalf("owner %d: %d leading blocks, want %d", k, got, run)
			}
			if bound, ok := s.bounds[o]; ok && held[o] > bound {
				t.Fatalf("owner %d: %d blocks, bound to %d", k, held[o], bound)
			}
			if got := idx.Blocks(o); got != held[o] {
				t.Fatalf("owner %d: %d blocks in the index, want %d", k, got, held[o])
			}
		}
	}
}

// TestPredictorTwin compares the predictor with its twin over histories that shrink, with a limit that is never, at times
// and always reached; by time, and with bounds that come, change and go.
func TestPredictorTwin(t *testing.T) {
	for _, lru := range []bool{false, true} {
		for _, limit := range []int{1 << 20, 40, 5} {
			t.Run(fmt.Sprint("lru=", lru, "/limit=", limit), func(t *testing.T) {
				rapid.Check(t, func(t *rapid.T) {
					playPredictions(t, rapid.SliceOfN(rapid.Byte(), 80, 1500).Draw(t, "history"), limit, lru)
				})
			})
		}
	}
}

// FuzzPredictor is TestPredictorTwin under the fuzzer's histories.
func FuzzPredictor(f *testing.F) {
	f.Add([]byte{0, 1, 0, 5, 5, 11, 10, 0, 1, 0, 5, 5, 3, 250, 14, 1, 0, 5, 5, 3, 250}, uint8(4), false)
	f.Add([]byte{0, 1, 0, 5, 5, 11, 10, 11, 1, 0, 5, 5, 3, 10, 0, 13, 1, 0, 5, 5, 3, 10}, uint8(40), false)
	f.Add([]byte{0, 1, 0, 5, 5, 11, 10, 12, 1, 0, 5, 5, 3, 10, 4, 0, 1, 0, 5, 5, 3, 10}, uint8(40), true)
	f.Fuzz(func(t *testing.T, history []byte, limit uint8, lru bool) {
		playPredictions(t, history[:min(len(history), 1000)], int(limit)%80+1, lru)
	})
}

// What is over goes in steps, so that the first request after a quiet hour does
// not wait for all of it; and the oldest prompts go first.
func TestPredictorExpiresInSteps(t *testing.T) {
	idx := New(Config{})
	p := NewPredictor(idx, PredictorConfig{TTL: time.Minute, MaxBlocks: 1 << 20, PruneRatio: 0.8})
	o := idx.Owner("w", 0)
	for i := range uint64(100) {
		p.Insert(o, chain(i, 50), noon.Add(time.Duration(i)))
	}
	later := noon.Add(time.Hour)
	var dropped []int
	for p.Len() > 0 {
		dropped = append(dropped, p.Expire(later))
	}
	if want := []int{1024, 1024, 1024, 1024, 904}; !slices.Equal(dropped, want) {
		t.Errorf("dropped %v, want %v", dropped, want)
	}
	assert.True(t, idx.Blocks(o) == 0 && p.Expire(later) == 0, "something is left")
}

func TestPredictorConfig(t *testing.T) {
	good := PredictorConfig{TTL: time.Second, MaxBlocks: 1, PruneRatio: 1}
	assert.NoError(t, good.Validate())
	for _, bad := range []PredictorConfig{
		{}, {TTL: -1, MaxBlocks: 1, PruneRatio: 1}, {TTL: 1, MaxBlocks: 0, PruneRatio: 1}, {TTL: 1, MaxBlocks: 1<<30 + 1, PruneRatio: 1},
		{TTL: 1, MaxBlocks: 1}, {TTL: 1, MaxBlocks: 1, PruneRatio: 1.1},
	} {
		assert.Error(t, bad.Validate(), "%+v is valid", bad)
	}
}

// added is how many blocks were not predicted before.
func added(p Prediction) int { return int(p.to - p.from) }

// Granules count for their blocks: where owners have bounds, where MaxBlocks bounds all of them, and in what is
// taken back, forgotten and moved from one bound to another.
func TestPredictorCountsBlocks(t *testing.T) {
	const each = 144 // blocks of 100 granules
	require.Equal(t, each, GranuleBlocks(100), "other granules")
	for _, lru := range []bool{false, true} {
		idx := New(Config{})
		p := NewPredictor(idx, PredictorConfig{TTL: time.Hour, MaxBlocks: 500, PruneRatio: 0.5, LRU: lru})
		o, other := idx.Owner("w", 0), idx.Owner("v", 0)
		p.Bound(o, 200)
		var m Matches
		run := func(o Owner, i uint64) int {
			idx.Match(chain(i, 100), &m)
			return GranuleBlocks(m.Leading(o))
		}
		check := func(what string, all int, runs ...int) {
			t.Helper()
			sum := 0
			for i, want := range runs {
				assert.Equal(t, want, run(o, uint64(i)), "lru %v, %s blocks of prompt %d", lru, what, i)
				sum += run(o, uint64(i))
			}
			if p.Len() != all || p.Blocks(o)+p.Blocks(other) != all || p.Blocks(o) != sum {
				t.Errorf("lru %v, %s: %d blocks, %d of the owner; want %d, and the %d of its prompts", lru, what, p.Len(), p.Blocks(o), all, sum)
			}
		}
		p.Insert(o, chain(0, 100), noon)
		check("one prompt", each, each)
		made := p.Insert(o, chain(1, 100), noon)
		if lru { // the end of the first makes way, in whole granules
			check("a bound of 200", 200, 200-each, each)
		} else {
			check("two prompts", 2*each, each, each)
		}
		assert.EqualValues(t, 100, made.to-made.from, "granules added")
		p.Invalidate(o, chain(1, 100), made)
		if lru {
			check("taken back", 200-each, 200-each, 0)
		} else {
			check("taken back", each, each, 0)
		}
		p.Drop("w")
		check("forgotten", 0)
		o = idx.Owner("w", 0)
		for i := range uint64(4) { // 576 blocks, which MaxBlocks cuts to 250
			p.Insert(other, chain(i, 100), noon)
		}
		if got := p.Len(); got > 250 || got < 250-4 || run(other, 3) != each {
			t.Errorf("lru %v: %d blocks are left of 576", lru, got)
		}
		if long := p.Insert(o, chain(9, 300), noon); GranuleBlocks(int(long.to)) > 500 || GranuleBlocks(int(long.to)+1) <= 500 {
			t.Errorf("lru %v: %d granules of a prompt longer than the limit", lru, long.to)
		}
		if !lru {
			p.Expire(noon.Add(2 * time.Hour))
			check("over", 0)
		}
	}
}
