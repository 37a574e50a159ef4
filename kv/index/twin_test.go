package index

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
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
		if c == 0 {
			f.hashes[c][0] = 0 // a hash as any other
		}
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

// twin is what some workers hold of a forest, beside the index that gets the same events. Others may use the index as
// well, by other workers' names.
type twin struct {
	t      interface{ Fatalf(string, ...any) }
	x      *Index
	forest *forest
	names  []name
	held   [][Tiers]nodes
	gone   uint64 // evicted, as of the last look
	m      Matches
}

func newTwin(t interface{ Fatalf(string, ...any) }, x *Index, f *forest, prefix string, owners int) *twin {
	w := &twin{t: t, x: x, forest: f, held: make([][Tiers]nodes, owners)}
	for i := range owners {
		w.names = append(w.names, name{fmt.Sprint(prefix, i/2), i % 2})
	}
	return w
}

// step does one operation, which below says: a number below its argument.
func (w *twin) step(below func(int) int) {
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
	case op < 460: // nothing but a chain without a gap: its beginning on the device, the rest on another tier
		o := w.x.Owner(n.worker, n.rank)
		w.x.Clear(o)
		w.held[k] = [Tiers]nodes{}
		w.x.Store(o, Device, w.forest.hashes[c][:to])
		w.x.Extend(o, tier, w.forest.hashes[c][to-1], w.forest.hashes[c][to:])
		for i := range forestDepth {
			w.held[k][map[bool]Tier{true: Device, false: tier}[i < to]].set(node(c, i), true)
		}
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
		w.held[k] = [Tiers]nodes{}
	default:
		o, _ := w.x.Lookup(n.worker, n.rank)
		w.x.Drop(n.worker)
		w.x.Store(o, tier, part) // an owner that was dropped stores nothing
		w.held[k/2*2] = [Tiers]nodes{}
		if k/2*2+1 < len(w.held) {
			w.held[k/2*2+1] = [Tiers]nodes{}
		}
	}
}

// evicted takes over what the budget has evicted: it must have been held, be counted, and have left prefixes where there
// were such.
func (w *twin) evicted() {
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
		for t := range Tier(Tiers) {
			var left nodes
			for _, hash := range w.x.blocksOf(o, t) {
				if at, known := names[hash]; !known || !w.held[k][t].has(at) {
					w.t.Fatalf("%v holds %x on tier %d, which was not stored", n, hash, t)
				} else {
					left.set(at, true)
				}
			}
			before, after = before+w.held[k][t].len(), after+left.len()
			w.held[k][t] = left
		}
	}
	if got := int(s.Evicted - w.gone); got != before-after {
		w.t.Fatalf("%d pairs are counted as evicted, %d are missing", got, before-after)
	}
	w.gone = s.Evicted
}

// blocksOf is the blocks that o holds on tier t.
func (x *Index) blocksOf(o Owner, t Tier) (hashes []uint64) {
	w := x.owner(o)
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := unknown + 1; i < len(w.held[t].entries); i++ {
		if e := &w.held[t].entries[i]; e.held() {
			hashes = append(hashes, e.hash)
		}
	}
	return hashes
}

// compare asks for one prompt, or the beginning of one, and compares the answer for all workers.
func (w *twin) compare(below func(int) int) {
	c := below(forestChains)
	prompt := w.forest.hashes[c][:1+below(forestDepth)]
	w.x.Match(prompt, &w.m)
	for k, n := range w.names {
		o, _ := w.x.Lookup(n.worker, n.rank)
		at := 0
		for t := range Tier(Tiers) {
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

// end compares each owner's count.
func (w *twin) end() {
	for k, n := range w.names {
		o, _ := w.x.Lookup(n.worker, n.rank)
		if got, want := w.x.Blocks(o), w.held[k][Device].len(); got != want {
			w.t.Fatalf("%v: %d blocks, want %d", n, got, want)
		}
	}
}

// play does so many operations, or as many as below gives before it reports that there are no more, in an index that is the twin's alone.
// After each of them it takes over what was evicted, after one in every it compares, and at the end it compares the index's counts, too.
func (w *twin) play(more func(op int) bool, below func(int) int, every int) {
	for op := 0; more(op); op++ {
		w.step(below)
		w.evicted()
		if op%every == 0 {
			w.compare(below)
		}
	}
	w.end()
	var all [Tiers]nodes
	held, blocks := 0, 0
	for k := range w.held {
		for t := range all {
			held += w.held[k][t].len()
			for i, word := range w.held[k][t] {
				all[t][i] |= word
			}
		}
	}
	for t := range all {
		blocks += all[t].len()
	}
	if s := w.x.Stats(); s.Held != held || s.Blocks != blocks {
		w.t.Fatalf("stats say %d held of %d blocks, want %d of %d", s.Held, s.Blocks, held, blocks)
	}
}

// history is numbers out of bytes.
type history []byte

func (h *history) more(int) bool { return len(*h) > 0 }

func (h *history) below(n int) (b int) {
	for rest := n - 1; rest > 0 && len(*h) > 0; rest >>= 8 {
		b, *h = b<<8|int((*h)[0]), (*h)[1:]
	}
	return b % n
}

// TestTwin compares the index with its twin over histories that shrink: of a few owners, which fit into a slot, of more, which spill into
// bitsets, and of so many that the bitsets must widen.
func TestTwin(t *testing.T) {
	trees := newForest(0)
	for _, owners := range []int{3, 12, 150} {
		t.Run(fmt.Sprint("owners=", owners), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				h := history(rapid.SliceOfN(rapid.Byte(), 80, 1500).Draw(t, "history"))
				newTwin(t, New(Config{shards: 1}), trees, "w", owners).play(h.more, h.below, 1+owners/50)
			})
		})
	}
}

// longHistory is how many operations the long tests do.
const longHistory = 60_000

// TestTwinOverLongHistories compares the two over so many operations.
func TestTwinOverLongHistories(t *testing.T) {
	for seed, owners := range []int{3, 12, 150} {
		rng := rand.New(rand.NewPCG(uint64(seed), 7))
		t.Logf("seed %d, %d owners", seed, owners)
		w := newTwin(t, New(Config{shards: 2}), newForest(uint64(seed)), "w", owners)
		w.play(func(op int) bool { return op < longHistory/3 }, rng.IntN, 16)
	}
}

// TestTwinBudget is the same with a budget that a part of the forest fills.
func TestTwinBudget(t *testing.T) {
	for seed := range uint64(3) {
		const limit = 400
		rng := rand.New(rand.NewPCG(seed, 8))
		t.Logf("seed %d", seed)
		w := newTwin(t, New(Config{shards: 1, MaxBlocks: limit}), newForest(seed), "w", 6)
		w.play(func(op int) bool {
			require.LessOrEqual(t, w.x.Stats().Held, limit, "pairs are held after %d operations", op)
			return op < longHistory/30
		}, rng.IntN, 1)
		assert.NotZero(t, w.x.Stats().Evicted, "pairs were evicted")
	}
}

// TestTwinAmongOthers has several writers at work on one index and the same blocks, each for workers of its own, of
// which it knows what they hold: what is stored in between must be exact whatever the others do. Readers hold against
// that a worker that does not change.
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
			w := newTwin(failing{t}, x, f, fmt.Sprintf("w%d-", i), 8)
			filler := fmt.Sprint("filler", i) // makes tables grow, and shrink again
			for op := range ops {
				switch {
				case op%1000 == 999:
					x.Drop(filler)
				case op%10 == 0:
					x.Store(x.Owner(filler, 0), Device, chain(uint64(op+1)<<8|uint64(i), 200))
				}
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

// FuzzTwin is TestTwin and TestTwinBudget under the fuzzer's histories; a limit of 0 is none.
func FuzzTwin(f *testing.F) {
	f.Add([]byte("a forest of prompts, and what becomes of it"), uint16(0), uint8(3))
	f.Add([]byte("evicted before it was ever asked for, by others that were not either"), uint16(90), uint8(10))
	trees := newForest(1)
	f.Fuzz(func(t *testing.T, data []byte, limit uint16, owners uint8) {
		h := history(data[:min(len(data), 600)])
		newTwin(t, New(Config{shards: 1, MaxBlocks: int(limit)}), trees, "w", 1+int(owners)%150).play(h.more, h.below, 1)
	})
}
