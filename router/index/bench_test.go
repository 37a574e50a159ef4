package index

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"
)

// fleet is an index of prompts as a fleet of workers would hold them: all
// prompts of a family begin with the same system prompt, which every worker
// holds, and go on with blocks of their own, which up to three workers hold.
type fleet struct {
	*Index
	prompts [][]uint64
}

// newFleet stores prompts of n blocks, system of which are shared by all, until
// the index holds about blocks distinct ones.
func newFleet(blocks, workers, n, system int) *fleet {
	f := &fleet{Index: New(Config{})}
	rng := rand.New(rand.NewPCG(1, 2))
	owners := make([]Owner, workers)
	shared := chain(7, system)
	for i := range owners {
		owners[i] = f.Owner(fmt.Sprintf("worker-%d", i), 0)
		f.Store(owners[i], Device, shared)
	}
	for i := range max(1, (blocks-system)/(n-system)) {
		p := slices.Concat(shared, chain(uint64(1000+i), n-system))
		for range 1 + rng.IntN(3) {
			f.Store(owners[rng.IntN(workers)], Device, p)
		}
		f.prompts = append(f.prompts, p)
	}
	return f
}

// BenchmarkMatch looks up chains of 512 blocks, 64 of them a system prompt that
// every worker holds. hot: a full hit among 32 prompts; cold: among all; half:
// the prompt's second half is new; miss: all of it is; holes: every worker lost
// one block in 64.
func BenchmarkMatch(b *testing.B) {
	for _, size := range []struct {
		label           string
		blocks, workers int
	}{{"1M", 1 << 20, 64}, {"1M", 1 << 20, 1000}} {
		const n, system = 512, 64
		f := newFleet(size.blocks, size.workers, n, system)
		half, miss := make([][]uint64, 32), make([][]uint64, 32)
		for i := range half {
			half[i] = slices.Concat(f.prompts[i][:n/2], chain(uint64(9_000_000+i), n/2))
			miss[i] = chain(uint64(9_100_000+i), n)
		}
		run := func(shape string, prompts [][]uint64) {
			name := fmt.Sprintf("blocks=%s/workers=%d/chain=%d/%s", size.label, size.workers, n, shape)
			b.Run(name, func(b *testing.B) { benchmarkMatch(b, f, prompts) })
		}
		run("hot", f.prompts[:32])
		run("cold", f.prompts)
		run("half", half)
		run("miss", miss)
		b.Run(fmt.Sprintf("blocks=%s/workers=%d/chain=%d/hot-writer", size.label, size.workers, n), func(b *testing.B) {
			stop := churn(f.Index)
			defer stop()
			benchmarkMatch(b, f, f.prompts[:32])
		})
		for i, w := range f.dir.Load().owners {
			if w == nil {
				continue // the churning one has left
			}
			var lost []uint64
			w.held[Device].each(func(h uint64) {
				if (h+uint64(i))%64 == 0 {
					lost = append(lost, h)
				}
			})
			f.Remove(w.id, Device, lost)
		}
		run("holes", f.prompts[:32])
	}
}

func benchmarkMatch(b *testing.B, f *fleet, prompts [][]uint64) {
	var m Matches
	f.Match(prompts[0], &m)
	took := make([]time.Duration, 0, 1<<16)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		p := prompts[i%len(prompts)]
		if i%16 != 0 || len(took) == cap(took) {
			f.Match(p, &m)
			continue
		}
		begin := time.Now()
		f.Match(p, &m)
		took = append(took, time.Since(begin))
	}
	b.StopTimer()
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)*99/100]), "p99-ns")
	s := f.Stats()
	b.ReportMetric(float64(s.Bytes)/float64(s.Blocks), "B/block")
}

// churn stores and removes blocks in a new owner until the returned func is
// called.
func churn(x *Index) (stop func()) {
	var wg sync.WaitGroup
	done := make(chan struct{})
	wg.Go(func() {
		o, p := x.Owner("churn", 0), chain(77, 4096)
		for {
			select {
			case <-done:
				return
			default:
				x.Store(o, Device, p)
				x.Remove(o, Device, p)
			}
		}
	})
	return func() { close(done); wg.Wait(); x.Drop("churn") }
}

// BenchmarkApply stores and removes blocks of own hashes in an index of a
// million, 16 blocks an event batch, with and without a reader on the other
// core. An op is one block stored or removed.
func BenchmarkApply(b *testing.B) {
	for _, c := range []struct {
		name    string
		readers int
	}{{"alone", 0}, {"reader", 1}} {
		b.Run(c.name, func(b *testing.B) {
			f := newFleet(1<<20, 64, 512, 64)
			var wg sync.WaitGroup
			done := make(chan struct{})
			for range c.readers {
				wg.Go(func() {
					var m Matches
					for i := 0; ; i++ {
						select {
						case <-done:
							return
						default:
							f.Match(f.prompts[i%len(f.prompts)], &m)
						}
					}
				})
			}
			owners := make([]Owner, 64)
			for i := range owners {
				owners[i] = f.Owner(fmt.Sprintf("worker-%d", i), 0)
			}
			const batch, window = 16, 1 << 14
			ring := chain(55, 4*window)
			b.ReportAllocs()
			n := 0
			for i := 0; b.Loop(); i++ {
				// One op a loop: a batch is applied when it is full.
				if n++; n < batch {
					continue
				}
				n = 0
				at := (i / batch / 2 * batch) % len(ring)
				if i/batch%2 == 0 {
					f.Store(owners[at/batch%64], Device, ring[at:at+batch])
				} else {
					old := (at + len(ring) - window) % len(ring)
					f.Remove(owners[old/batch%64], Device, ring[old:old+batch])
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds()/1e6, "Mevents/s")
			close(done)
			wg.Wait()
		})
	}
}
