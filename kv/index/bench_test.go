package index

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fleet is an index of prompts as a thousand workers would hold them: prompts of 256 blocks begin with one of 16 system
// prompts of 64 blocks, which every worker holds, and go on with blocks of their own, which one worker holds in three of
// four cases, and else two to four.
type fleet struct {
	*Index
	label   string
	owners  []Owner
	systems [][]uint64 // the system prompts
	prompts []question
}

// question is a prompt of the fleet and one of those who hold it.
type question struct {
	system int
	own    []uint64
	owner  Owner
}

const (
	benchWorkers  = 1000
	benchChain    = 256
	benchSystem   = 64
	benchFamilies = 16
)

// theFleet is made once for all benchmarks: that takes seconds.
var theFleet struct {
	sync.Once
	*fleet
}

func newFleet(b *testing.B) *fleet {
	theFleet.Do(func() {
		blocks, label := 10_000_000, "10M"
		if testing.Short() {
			blocks, label = 1_000_000, "1M"
		}
		f := &fleet{Index: New(Config{}), label: label}
		rng := rand.New(rand.NewPCG(1, 2))
		for i := range benchFamilies {
			f.systems = append(f.systems, chain(uint64(i), benchSystem))
		}
		for i := range benchWorkers {
			o := f.Owner(fmt.Sprintf("worker-%d", i), 0)
			f.owners = append(f.owners, o)
			for _, s := range f.systems {
				f.Store(o, Device, s)
			}
		}
		for i := 0; i < blocks-benchFamilies*benchSystem; i += benchChain - benchSystem {
			q := question{rng.IntN(benchFamilies), chain(uint64(1000+i), benchChain-benchSystem), f.owners[rng.IntN(benchWorkers)]}
			f.hold(q)
			if rng.IntN(4) == 0 {
				for range 1 + rng.IntN(3) {
					also := q
					also.owner = f.owners[rng.IntN(benchWorkers)]
					f.hold(also)
				}
			}
			f.prompts = append(f.prompts, q)
		}
		theFleet.fleet = f
	})
	return theFleet.fleet
}

func (f *fleet) hold(q question) {
	s := f.systems[q.system]
	f.Extend(q.owner, Device, s[len(s)-1], q.own)
}

// ask writes to room the hashes of a prompt, known blocks of it from the fleet and
// the others new, and returns one of those who hold what is known.
func (f *fleet) ask(room []uint64, rng *rand.Rand, known int) Owner {
	q := f.prompts[rng.IntN(len(f.prompts))]
	n := copy(room, f.systems[q.system])
	copy(room[n:], q.own)
	for i := known; i < len(room); i++ {
		room[i] = rng.Uint64()
	}
	return q.owner
}

// BenchmarkMatch looks up one of all prompts in turn, at random, so that of a prompt's 256 blocks the 64 of its system
// prompt are in the processor's caches, and its own 192 are not.
//
//	hot    all 256 are held
//	cold   all are held, and the caches were swept before
//	half   the first 128 are held
//	miss   none is
//	holes  as hot, and every worker has lost a block out of the middle of another
//	       prompt, so that all are followed block by block
//
// -writer is beside a writer at full speed. p50-ns and p99-ns are of single calls,
// ns/op is of the benchmark's loop; B/block is over distinct blocks, B/entry over
// pairs of block and worker.
func BenchmarkMatch(b *testing.B) {
	f := newFleet(b)
	run := func(shape string, known int, sweep bool) {
		name := fmt.Sprintf("blocks=%s/workers=%d/chain=%d/%s", f.label, benchWorkers, benchChain, shape)
		b.Run(name, func(b *testing.B) { f.benchmark(b, known, sweep) })
		b.Run(name+"-writer", func(b *testing.B) {
			defer f.churn()()
			f.benchmark(b, known, sweep)
		})
	}
	run("hot", benchChain, false)
	run("cold", benchChain, true)
	run("half", benchChain/2, false)
	run("miss", 0, false)
	for i, q := range f.prompts[:4*benchWorkers] {
		q.owner = f.owners[i%benchWorkers]
		f.hold(q)
		f.Remove(q.owner, Device, q.own[100:101])
	}
	rest := *f
	rest.prompts = f.prompts[4*benchWorkers:]
	if s := f.Stats(); s.Holed != benchWorkers {
		b.Fatalf("%d workers have holes", s.Holed)
	}
	f = &rest
	run("holes", benchChain, false)
	f = theFleet.fleet
	for i, q := range f.prompts[:4*benchWorkers] {
		f.Extend(f.owners[i%benchWorkers], Device, q.own[99], q.own[100:101])
	}
}

var sweepings = make([]uint64, 8<<20) // twice the last cache

func (f *fleet) benchmark(b *testing.B, known int, sweep bool) {
	var m Matches
	rng := rand.New(rand.NewPCG(3, 4))
	room := make([]uint64, benchChain)
	took := make([]time.Duration, 0, 1<<20)
	if sweep {
		took = took[:0:256] // sweeping takes a while
	}
	b.ReportAllocs()
	for b.Loop() {
		owner := f.ask(room, rng, known)
		if sweep {
			for i := 0; i < len(sweepings); i += 8 {
				sweepings[i]++
			}
		}
		begin := time.Now()
		f.Match(room, &m)
		if len(took) < cap(took) {
			took = append(took, time.Since(begin))
		}
		require.Equal(b, known, m.Leading(owner), "owner leads by N blocks")
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2]), "p50-ns")
	b.ReportMetric(float64(took[len(took)*99/100]), "p99-ns")
	s := f.Stats()
	b.ReportMetric(float64(s.Bytes)/float64(s.Blocks), "B/block")
	b.ReportMetric(float64(s.Bytes)/float64(s.Held), "B/entry")
}

// traffic is an endless stream of events: prompts come to one worker after
// another, 16 blocks an event, and go from their end when 2,048 others have come.
type traffic struct {
	*fleet
	chains [4096][]uint64
	turn   int
}

const (
	trafficChain = 192
	trafficBatch = 16
)

func newTraffic(f *fleet) *traffic {
	t := &traffic{fleet: f}
	for i := range t.chains {
		t.chains[i] = chain(uint64(1)<<40+uint64(i), trafficChain)
	}
	return t
}

// next applies the events of one prompt that comes and one that goes, and returns
// how many blocks that were. backwards holds the order in which they go.
func (t *traffic) next(backwards []uint64) int {
	n := len(t.chains)
	s := t.systems[t.turn%benchFamilies]
	parent := s[len(s)-1]
	come, went := t.chains[t.turn%n], t.chains[(t.turn+n/2)%n]
	for i := 0; i < trafficChain; i += trafficBatch {
		t.Extend(t.owners[t.turn%benchWorkers], Device, parent, come[i:i+trafficBatch])
		parent = come[i+trafficBatch-1]
	}
	blocks := trafficChain
	if t.turn >= n/2 {
		o := t.owners[(t.turn-n/2)%benchWorkers]
		for i := trafficChain; i > 0; i -= trafficBatch {
			for k := range trafficBatch {
				backwards[k] = went[i-1-k]
			}
			t.Remove(o, Device, backwards[:trafficBatch])
		}
		blocks *= 2
	}
	t.turn++
	return blocks
}

// end removes what is left.
func (t *traffic) end() {
	for i := range min(t.turn, len(t.chains)/2) {
		turn := t.turn - 1 - i
		t.Remove(t.owners[turn%benchWorkers], Device, t.chains[turn%len(t.chains)])
	}
}

// churn writes at full speed until the returned func is called.
func (f *fleet) churn() (stop func()) {
	var wg sync.WaitGroup
	done := make(chan struct{})
	wg.Go(func() {
		t := newTraffic(f)
		var backwards [trafficBatch]uint64
		for {
			select {
			case <-done:
				t.end()
				return
			default:
				t.next(backwards[:])
			}
		}
	})
	return func() { close(done); wg.Wait() }
}

// BenchmarkApply applies events of own hashes, see traffic, to the index of BenchmarkMatch, with and without a reader on the
// other core. An op is a prompt that comes and one that goes; an event is one block. From an engine's bytes to here is
// BenchmarkApply of router/feed.
func BenchmarkApply(b *testing.B) {
	f := newFleet(b)
	for _, reading := range []string{"alone", "reader"} {
		b.Run(fmt.Sprintf("own/blocks=%s/workers=%d/batch=%d/%s", f.label, benchWorkers, trafficBatch, reading), func(b *testing.B) {
			var wg sync.WaitGroup
			done := make(chan struct{})
			if reading == "reader" {
				wg.Go(func() {
					var m Matches
					rng := rand.New(rand.NewPCG(5, 6))
					room := make([]uint64, benchChain)
					for {
						select {
						case <-done:
							return
						default:
							f.ask(room, rng, benchChain)
							f.Match(room, &m)
						}
					}
				})
			}
			t := newTraffic(f)
			var backwards [trafficBatch]uint64
			for range 2048 {
				t.next(backwards[:])
			}
			b.ReportAllocs()
			events := 0
			for b.Loop() {
				events += t.next(backwards[:])
			}
			b.ReportMetric(float64(events)/b.Elapsed().Seconds()/1e6, "Mevents/s")
			t.end()
			close(done)
			wg.Wait()
		})
	}
}
