package index

import (
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// twin is the index as one would write it without a care for time: a set of
// hashes for every owner and tier.
type twin struct {
	held map[name]*[tiers]map[uint64]bool
}

func (w *twin) of(n name) *[tiers]map[uint64]bool {
	if w.held[n] == nil {
		w.held[n] = &[tiers]map[uint64]bool{{}, {}, {}, {}}
	}
	return w.held[n]
}

// runs returns how many blocks each tier adds to n's run over the prompt.
func (w *twin) runs(n name, prompt []uint64) (runs [tiers]int) {
	held := w.held[n]
	if held == nil {
		return runs
	}
	at := 0
	for t := range held {
		begin := at
		for at < len(prompt) && held[t][prompt[at]] {
			at++
		}
		runs[t] = at - begin
	}
	return runs
}

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

// depths are the lengths of prompts: one that is followed block by block, and one
// that is followed in jumps and ends between them.
var depths = []int{depth, 75}

// play reads operations from data, does them to an index and to its twin, and
// compares the two after each of them.
func play(t interface{ Fatalf(string, ...any) }, data []byte, workers, depth int) {
	next := func() int {
		if len(data) == 0 {
			return 0
		}
		b := data[0]
		data = data[1:]
		return int(b)
	}
	x, w := New(Config{shards: 1}), &twin{held: map[name]*[tiers]map[uint64]bool{}}
	var m Matches
	names := make([]name, workers)
	for i := range names {
		names[i] = name{worker: string(rune('A' + i/2)), rank: i % 2}
	}
	for ops := 0; len(data) > 0; ops++ {
		op, n := next(), names[next()%workers]
		tier := Tier(next() % 8)
		if tier >= tiers {
			tier = Device // the usual one
		}
		hashes := prompt(uint16(next())|uint16(next())<<8, depth)
		from := next() % depth
		to := from + next()%(depth-from) + 1
		part := hashes[from:to]
		switch op % 16 {
		default:
			o := x.Owner(n.worker, n.rank)
			switch {
			case from == 0:
				x.Store(o, tier, part)
			case op >= 240:
				x.Place(o, tier, part)
			default:
				x.Extend(o, tier, hashes[from-1], part)
			}
			for _, h := range part {
				w.of(n)[tier][h] = true
			}
		case 8, 9, 10, 11, 12:
			o, _ := x.Lookup(n.worker, n.rank)
			x.Remove(o, tier, part)
			for _, h := range part {
				delete(w.of(n)[tier], h)
			}
		case 13:
			o, _ := x.Lookup(n.worker, n.rank)
			x.Clear(o)
			delete(w.held, n)
		case 14:
			o, _ := x.Lookup(n.worker, n.rank)
			x.Drop(n.worker)
			delete(w.held, name{n.worker, 0})
			delete(w.held, name{n.worker, 1})
			x.Store(o, tier, part) // an owner that was dropped stores nothing
		}
		x.Match(hashes, &m)
		for k, n := range names {
			if len(data) > 0 && len(names) > 16 && (k+ops)%16 != 0 {
				continue // of many owners a sixteenth in turn, and all at the end
			}
			o, ok := x.Lookup(n.worker, n.rank)
			want := w.runs(n, hashes)
			for tier := range Tier(tiers) {
				if got := m.Tier(o, tier); got != want[tier] {
					t.Fatalf("%v (known: %v), tier %d: run of %d, want %d", n, ok, tier, got, want[tier])
				}
			}
			if got := m.Leading(o); got != want[Device] {
				t.Fatalf("%v: %d leading blocks, want %d", n, got, want[Device])
			}
			if got := x.Blocks(o); got != len(w.of(n)[Device]) {
				t.Fatalf("%v: %d blocks, want %d", n, got, len(w.of(n)[Device]))
			}
		}
	}
	distinct := [tiers]map[uint64]bool{{}, {}, {}, {}}
	held := 0
	for _, tierSets := range w.held {
		for tier, set := range tierSets {
			held += len(set)
			for h := range set {
				distinct[tier][h] = true
			}
		}
	}
	blocks := 0
	for _, set := range distinct {
		blocks += len(set)
	}
	if s := x.Stats(); s.Held != held || s.Blocks != blocks {
		t.Fatalf("stats say %d held of %d blocks, want %d of %d", s.Held, s.Blocks, held, blocks)
	}
}

// crowds are numbers of owners: a few, which fit into a slot, more, which spill
// into bitsets, and so many that the bitsets must widen.
var crowds = []struct {
	name    string
	workers int
}{{"few", 3}, {"some", 10}, {"many", 150}}

// TestTwin compares the index with its twin over histories that shrink.
func TestTwin(t *testing.T) {
	for _, c := range crowds {
		t.Run(c.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				depth := rapid.SampledFrom(depths).Draw(t, "depth")
				play(t, rapid.SliceOfN(rapid.Byte(), 80, 1500).Draw(t, "history"), c.workers, depth)
			})
		})
	}
}

// TestTwinLong compares the two over histories of thousands of operations, in
// which tables are rebuilt many times.
func TestTwinLong(t *testing.T) {
	for _, c := range crowds {
		t.Run(c.name, func(t *testing.T) {
			for seed := range uint64(4) {
				rng := rand.NewChaCha8([32]byte{byte(seed)})
				history := make([]byte, 20_000)
				_, _ = rng.Read(history)
				t.Logf("seed %d", seed)
				for _, depth := range depths {
					play(t, history, c.workers, depth)
				}
			}
		})
	}
}

// FuzzTwin is TestTwin under the fuzzer's histories.
func FuzzTwin(f *testing.F) {
	f.Add([]byte{0, 1, 0, 5, 5, 0, 11, 0, 2, 0, 5, 5, 0, 11, 8, 1, 0, 5, 5, 3, 1}, uint8(4))
	f.Add([]byte{0, 1, 1, 5, 5, 0, 11, 0, 1, 0, 5, 5, 0, 3, 14, 1, 0, 5, 5, 3, 1}, uint8(90))
	f.Fuzz(func(t *testing.T, history []byte, workers uint8) {
		play(t, history[:min(len(history), 1000)], int(workers)%80+1, depths[int(workers)%len(depths)])
	})
}
