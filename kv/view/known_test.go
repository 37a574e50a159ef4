package view

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/lab/testkit"
)

// telling are events that fill a worker's view with so many blocks, each one of the router's too.
func telling(worker, blocks int) (events []wire.Event) {
	for from := 0; from < blocks; from += 125 {
		events = append(events, testkit.Chain(uint32(worker<<12+from/125), min(125, blocks-from)))
	}
	return events
}

// filled are views of workers that stored as much, without an index: no owner's part is kept.
func filled(workers, blocks int) (views []*View) {
	for w := range workers {
		v := New(none{}, 16)
		v.Apply(telling(w, blocks))
		views = append(views, v)
	}
	return views
}

// TestKnownBytes holds a block to 24 bytes, by the arrays' sizes while a view grows, and at a worker's usual sizes by
// what the heap says.
func TestKnownBytes(t *testing.T) {
	var k known
	for n := range 50_000 {
		k.add(wire.Hash(n), block{seq: uint64(n), seed: 1337, own: ownOne | hasSeq, held: 1}, nil, nil, 1)
		require.LessOrEqual(t, k.bytes(), 24*(n+1)+18*(behind+10), "bytes for %d blocks at most", n+1)
	}
	for n := 50_000; n > 0; n-- {
		if at, ok := k.find(wire.Hash(n - 1)); !ok || k.at(at).seq != uint64(n-1) {
			t.Fatalf("block %d is lost", n-1)
		} else {
			k.drop(at)
		}
		require.LessOrEqual(t, k.bytes(), 2*24*n+18*(behind*3+10), "bytes when %d blocks are left at most", n-1)
	}
	for _, blocks := range []int{5_000, 20_000, 83_000} {
		workers := 200_000 / blocks
		before := heapInUse()
		views := filled(workers, blocks)
		per := float64(heapInUse()-before) / float64(workers*blocks)
		if slack := 16e3 / float64(blocks); per > 24+slack { // what a view keeps between calls
			t.Errorf("%d blocks a worker take %.1f bytes each", blocks, per)
		}
		runtime.KeepAlive(views)
	}
}

// heapInUse is the size of what lives on the heap.
func heapInUse() uint64 {
	var s runtime.MemStats
	runtime.GC()
	runtime.GC() // what the first has found unused is swept
	runtime.ReadMemStats(&s)
	return s.HeapAlloc
}

// TestOddsArePacked has records come and go at random, of all sizes: their room must be used again, and given back.
func TestOddsArePacked(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var k known
	words := 0 // that the records need
	size := map[wire.Hash]int{}
	for round := range 60_000 {
		h := wire.Hash(rng.Uint64N(400))
		if at, ok := k.find(h); ok {
			words -= size[h]
			k.drop(at)
		} else if round%20_000 < 15_000 || len(size) < 40 {
			run, tail := make([]uint64, rng.IntN(30)), make([]uint32, 1+rng.IntN(20))
			size[h] = recordSize(len(run), len(tail))
			if len(run) < 2 {
				size[h] = recordSize(0, len(tail))
			}
			own := ownership(min(len(run), int(ownMany)))
			k.add(h, block{own: own, held: 1, tail: uint16(len(tail))}, run, tail, 1)
			words += size[h]
		}
		require.Equal(t, words, len(k.odds.words)-k.odds.spare, "round %d words are used", round)
		require.LessOrEqual(t, len(k.odds.words), 2*words+1024, "round %d words for %d", round, words)
	}
}

// BenchmarkView has one of many views, of 10,000 blocks each, hear at random that 125 of them have gone and have come
// again, so that the processor's caches have nothing of them; without an index. B/block is what the heap says.
func BenchmarkView(b *testing.B) {
	const blocks = 10_000
	for _, workers := range []int{1, 100} {
		b.Run(fmt.Sprintf("workers=%d/blocks=%d", workers, blocks), func(b *testing.B) {
			before := heapInUse()
			views := filled(workers, blocks)
			per := float64(heapInUse()-before) / float64(workers*blocks)
			var events [][]wire.Event
			for w := range views {
				events = append(events, telling(w, blocks))
			}
			rng := rand.New(rand.NewPCG(3, 4))
			b.ReportAllocs()
			for b.Loop() {
				w, i := rng.IntN(workers), rng.IntN(blocks/125)
				come := events[w][i]
				views[w].Apply([]wire.Event{{Kind: wire.Removed, Hashes: come.Hashes, Medium: come.Medium}, come})
			}
			b.ReportMetric(per, "B/block")
			b.ReportMetric(2*125*float64(b.N)/b.Elapsed().Seconds()/1e6, "Mblocks/s")
		})
	}
}

// none is no part of an index.
type none struct{}

func (none) Store(index.Tier, []uint64)                     {}
func (none) Extend(index.Tier, uint64, []uint64)            {}
func (none) Parent(index.Tier, uint64) (uint64, bool, bool) { return 0, false, false }
func (none) Place(index.Tier, []uint64)                     {}
func (none) Remove(index.Tier, []uint64)                    {}
func (none) Clear()                                         {}

// bytes is the size of the arrays.
func (k *known) bytes() int { return 16*cap(k.slots) + 2*cap(k.marks) + 8*cap(k.odds.words) }

// BenchmarkSnapshot tells a full cache of 671,000 tokens: first the copying, which holds the publisher up, then the
// encoding, which does not.
func BenchmarkSnapshot(b *testing.B) {
	const chains, blocks = 82, 512
	before := heapInUse()
	m := NewRecord()
	for i := range chains {
		m.Apply([]wire.Event{testkit.Chain(uint32(i), blocks)})
	}
	perBlock := float64(heapInUse()-before) / (chains * blocks)
	b.Run("copy", func(b *testing.B) {
		for b.Loop() {
			m.Image()
		}
		b.ReportMetric(perBlock, "mirror-B/block")
	})
	b.Run("encode", func(b *testing.B) {
		bytes := 0
		for b.Loop() {
			bytes = 0
			for _, page := range m.Image().Batches(512<<10, time.Now(), 0) {
				bytes += len(page)
			}
		}
		b.ReportMetric(float64(bytes), "snapshot-B")
	})
	runtime.KeepAlive(m)
}
