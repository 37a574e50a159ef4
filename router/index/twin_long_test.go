package index

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"sync"
	"testing"
)

// forest is all prompts of a long history: families of chains that share their first blocks. Chain c's block i is node
// c*forestDepth+i, or that of the family's first chain where it is shared.
type forest struct{ hashes [forestChains][]uint64 }

const (
	forestChains = 24
	forestFamily = 6 // chains that share
	forestShared = 40
	forestDepth  = 110 // three leaps and something
	forestNodes  = forestChains * forestDepth
)

func newForest(seed uint64) *forest {
	f := &forest{}
	for c := range forestChains {
		f.hashes[c] = chain(seed<<32+uint64(c), forestDepth)
		copy(f.hashes[c][:forestShared], f.hashes[c/forestFamily*forestFamily])
	}
	return f
}

func node(c, i int) int {
	if i < forestShared {
		c = c / forestFamily * forestFamily
	}
	return c*forestDepth + i
}

// nodes is a set of blocks of a forest.
type nodes [(forestNodes + 63) / 64]uint64

func (s *nodes) set(n int, held bool) {
	s[n/64] &^= 1 << (n % 64)
	if held {
		s[n/64] |= 1 << (n % 64)
	}
}
func (s *nodes) has(n int) bool { return s[n/64]>>(n%64)&1 != 0 }

func (s *nodes) len() (n int) {
	for _, word := range s {
		n += bits.OnesCount64(word)
	}
	return n
}

// longTwin is what some workers hold of a forest, beside the index that is told the same. Others may use the index as
// well, by other workers' names.
type longTwin struct {
	t      interface{ Fatalf(string, ...any) }
	x      *Index
	forest *forest
	names  []name
	held   [][tiers]nodes
	gone   uint64 // evicted, as of the last look
	m      Matches
}

func newLongTwin(t interface{ Fatalf(string, ...any) }, x *Index, f *forest, prefix string, owners int) *longTwin {
	w := &longTwin{t: t, x: x, forest: f, held: make([][tiers]nodes, owners)}
	for i := range owners {
		w.names = append(w.names, name{fmt.Sprint(prefix, i/2), i % 2})
	}
	return w
}

// step does one operation, which below says: a number below its argument.
func (w *longTwin) step(below func(int) int) {
	k, c, tier := below(len(w.names)), below(forestChains), Tier(max(0, below(8)-4))
	from := below(forestDepth)
	if below(2) == 0 {
		from = 0
	}
	to := min(forestDepth, from+1+below(12)*(1+below(3)))
	part := w.forest.hashes[c][from:to]
	n := w.names[k]
	put := func(held bool) {
		for i := from; i < to; i++ {
			w.held[k][tier].set(node(c, i), held)
		}
	}
	switch op := below(1000); {
	case op < 400:
		o := w.x.Owner(n.worker, n.rank)
		switch {
		case op < 60:
			w.x.Place(o, tier, part)
		case from == 0:
			w.x.Store(o, tier, part)
		default:
			w.x.Extend(o, tier, w.forest.hashes[c][from-1], part)
		}
		put(true)
	case op < 420: // what is missing before the chain's blocks comes, so that gaps go
		o := w.x.Owner(n.worker, n.rank)
		from, to = 0, forestDepth
		w.x.Store(o, tier, w.forest.hashes[c])
		put(true)
	case op < 940: // out of the middle
		o, _ := w.x.Lookup(n.worker, n.rank)
		w.x.Remove(o, tier, part)
		put(false)
	case op < 990: // from the end, leaves first
		o, _ := w.x.Lookup(n.worker, n.rank)
		back := make([]uint64, 0, forestDepth)
		for i := forestDepth - 1; i >= max(from, forestShared); i-- {
			back = append(back, w.forest.hashes[c][i])
		}
		w.x.Remove(o, tier, back)
		from, to = max(from, forestShared), forestDepth
		put(false)
	case op < 997:
		o, _ := w.x.Lookup(n.worker, n.rank)
		w.x.Clear(o)
		w.held[k] = [tiers]nodes{}
	default:
		w.x.Drop(n.worker)
		w.held[k/2*2] = [tiers]nodes{}
		if k/2*2+1 < len(w.held) {
			w.held[k/2*2+1] = [tiers]nodes{}
		}
	}
}

// evicted takes over what the budget has evicted: it must have been held, be counted, and have left prefixes where there
// were such.
func (w *longTwin) evicted() {
	s := w.x.Stats()
	if s.Evicted == w.gone {
		return
	}
	names := map[uint64]int{}
	for c, hashes := range w.forest.hashes {
		for i, h := range hashes {
			names[h] = node(c, i)
		}
	}
	before, after := 0, 0
	for k, n := range w.names {
		o, _ := w.x.Lookup(n.worker, n.rank)
		for t := range Tier(tiers) {
			var left nodes
			w.x.Each(o, t, func(b Block) bool {
				if at, known := names[b.Hash]; !known || !w.held[k][t].has(at) {
					w.t.Fatalf("%v holds %x on tier %d, which it was not told", n, b.Hash, t)
				} else {
					left.set(at, true)
				}
				return true
			})
			before, after = before+w.held[k][t].len(), after+left.len()
			w.held[k][t] = left
		}
	}
	if got := int(s.Evicted - w.gone); got != before-after {
		w.t.Fatalf("%d pairs are counted as evicted, %d are missing", got, before-after)
	}
	w.gone = s.Evicted
}

// compare asks for one prompt, or the beginning of one, and compares the answer for all workers.
func (w *longTwin) compare(below func(int) int) {
	c := below(forestChains)
	prompt := w.forest.hashes[c][:1+below(forestDepth)]
	w.x.Match(prompt, &w.m)
	for k, n := range w.names {
		o, _ := w.x.Lookup(n.worker, n.rank)
		at := 0
		for t := range Tier(tiers) {
			begin := at
			for at < len(prompt) && w.held[k][t].has(node(c, at)) {
				at++
			}
			if got := w.m.Tier(o, t); got != at-begin {
				w.t.Fatalf("%v, prompt %d of %d blocks, tier %d: run of %d, want %d", n, c, len(prompt), t, got, at-begin)
			}
		}
	}
}

// end compares the counts.
func (w *longTwin) end() {
	for k, n := range w.names {
		o, _ := w.x.Lookup(n.worker, n.rank)
		if got, want := w.x.Blocks(o), w.held[k][Device].len(); got != want {
			w.t.Fatalf("%v: %d blocks, want %d", n, got, want)
		}
	}
}

// longHistory is how many operations the long tests do; FuzzTwinLong does more.
const longHistory = 60_000

// TestTwinOverLongHistories compares the index with its twin over so many operations.
func TestTwinOverLongHistories(t *testing.T) {
	for seed, owners := range []int{3, 12, 80} {
		rng := rand.New(rand.NewPCG(uint64(seed), 7))
		t.Logf("seed %d, %d owners", seed, owners)
		w := newLongTwin(t, New(Config{shards: 2}), newForest(uint64(seed)), "w", owners)
		for op := range longHistory / 3 {
			w.step(rng.IntN)
			if op%16 == 0 {
				w.compare(rng.IntN)
			}
		}
		w.end()
	}
}

// TestTwinBudget is the same with a budget that a part of the forest fills.
func TestTwinBudget(t *testing.T) {
	for seed := range uint64(3) {
		const limit = 400
		rng := rand.New(rand.NewPCG(seed, 8))
		t.Logf("seed %d", seed)
		w := newLongTwin(t, New(Config{shards: 1, MaxBlocks: limit}), newForest(seed), "w", 6)
		for range longHistory / 30 {
			w.step(rng.IntN)
			w.evicted()
			w.compare(rng.IntN)
		}
		w.end()
		if s := w.x.Stats(); s.Evicted == 0 || s.Held > limit {
			t.Errorf("%d pairs are held of %d, %d were evicted", s.Held, limit, s.Evicted)
		}
	}
}

// TestTwinAmongOthers has several writers at work on one index and the same blocks, each for workers of its own, of
// which it knows what they hold: what it is told in between must be exact whatever the others do. Readers hold against
// that a worker that nobody changes.
func TestTwinAmongOthers(t *testing.T) {
	const writers, ops = 3, longHistory / 10
	f := newForest(99)
	x := New(Config{shards: 2})
	still := x.Owner("still", 0)
	x.Store(still, Device, f.hashes[0][:70])
	x.Extend(still, Device, f.hashes[0][79], f.hashes[0][80:])
	x.Extend(still, Host, f.hashes[0][69], f.hashes[0][70:100])
	var writing, reading sync.WaitGroup
	done := make(chan struct{})
	for i := range writers {
		writing.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 9))
			w := newLongTwin(failing{t}, x, f, fmt.Sprintf("w%d-", i), 8)
			for op := range ops {
				w.step(rng.IntN)
				if op%4 == 0 {
					w.compare(rng.IntN)
				}
			}
			w.end()
		})
	}
	for range 2 {
		reading.Go(func() {
			var m Matches
			for {
				x.Match(f.hashes[0], &m)
				if m.Leading(still) != 70 || m.Tier(still, Host) != 30 {
					t.Errorf("a reader saw %d and %d blocks, want 70 and 30", m.Leading(still), m.Tier(still, Host))
					return
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	writing.Wait()
	close(done)
	reading.Wait()
}

// failing reports from other goroutines than the test's.
type failing struct{ t *testing.T }

func (f failing) Fatalf(format string, args ...any) { f.t.Errorf(format, args...) }

// FuzzTwinLong is TestTwinOverLongHistories and TestTwinBudget under the fuzzer's histories; a limit of 0 is none.
func FuzzTwinLong(f *testing.F) {
	f.Add([]byte("a forest of prompts, and what becomes of it"), uint16(0), uint8(3))
	f.Add([]byte("evicted before it was ever asked for, by others that were not either"), uint16(90), uint8(10))
	trees := newForest(1)
	f.Fuzz(func(t *testing.T, history []byte, limit uint16, owners uint8) {
		w := newLongTwin(t, New(Config{shards: 1, MaxBlocks: int(limit)}), trees, "w", 1+int(owners)%70)
		history = history[:min(len(history), 600)]
		below := func(n int) int {
			if len(history) == 0 {
				return 0
			}
			b := int(history[0])
			if history = history[1:]; n > 256 && len(history) > 0 {
				b = b<<8 | int(history[0])
				history = history[1:]
			}
			return b % n
		}
		for len(history) > 0 {
			w.step(below)
			w.evicted()
			w.compare(below)
		}
		w.end()
	})
}
