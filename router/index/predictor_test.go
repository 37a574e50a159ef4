package index

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// slowPredictor is the predictor as one would write it without a care for time:
// a list that is sorted whenever something has to go.
type slowPredictor struct {
	ttl           time.Duration
	limit, target int
	now           time.Time
	blocks        []slowBlock // the least recent first
	pruning       bool
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

func (s *slowPredictor) tell(now time.Time) {
	if now.After(s.now) {
		s.now = now
	}
}

func (s *slowPredictor) insert(o Owner, chain []uint64, now time.Time, by int) (added []uint64) {
	s.tell(now)
	chain = chain[:min(len(chain), s.limit)]
	for i := len(chain) - 1; i >= 0; i-- {
		if at := s.find(o, chain[i]); at >= 0 {
			s.blocks = slices.Delete(s.blocks, at, at+1)
		} else {
			added = append(added, chain[i])
		}
		s.blocks = append(s.blocks, slowBlock{o, chain[i], s.now, by})
	}
	s.sweep(max(sweep, 2*len(added)))
	return added
}

func (s *slowPredictor) withdraw(o Owner, added []uint64, by int) {
	for _, hash := range added {
		if at := s.find(o, hash); at >= 0 && s.blocks[at].by == by {
			s.blocks = slices.Delete(s.blocks, at, at+1)
		}
	}
}

func (s *slowPredictor) sweep(most int) {
	for s.pruning = s.pruning || len(s.blocks) > s.limit; most > 0 && len(s.blocks) > 0; most-- {
		s.pruning = s.pruning && len(s.blocks) > s.target
		if !s.pruning && s.now.Sub(s.blocks[0].seen) < s.ttl {
			return
		}
		s.blocks = s.blocks[1:]
	}
}

func (s *slowPredictor) drop(owners ...Owner) {
	s.blocks = slices.DeleteFunc(s.blocks, func(b slowBlock) bool { return slices.Contains(owners, b.owner) })
}

// playPredictions reads operations from data, does them to a predictor and to
// its twin, and compares the two after each of them.
func playPredictions(t interface{ Fatalf(string, ...any) }, data []byte, limit int) {
	next := func() int {
		if len(data) == 0 {
			return 0
		}
		b := data[0]
		data = data[1:]
		return int(b)
	}
	cfg := PredictorConfig{TTL: 100 * time.Second, MaxBlocks: limit, PruneRatio: 0.7}
	idx := New(Config{Shards: 1})
	p := NewPredictor(idx, cfg)
	s := &slowPredictor{ttl: cfg.TTL, limit: limit, target: max(1, int(float64(limit)*cfg.PruneRatio))}
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
			if b.made.Added() != len(b.added) {
				t.Fatalf("%d blocks added, want %d", b.made.Added(), len(b.added))
			}
			made = append(made, b)
		case op >= 14:
			p.Expire(now)
			s.tell(now)
			s.sweep(sweep)
		case op == 13:
			first, _ := idx.Lookup(worker, 0)
			second, _ := idx.Lookup(worker, 1)
			p.Drop(worker)
			s.drop(first, second)
			if got := p.Insert(o, chain, now); got.Added() != 0 {
				t.Fatalf("an owner that was dropped got %d blocks", got.Added())
			}
		case op >= 11 && len(made) > 0:
			b := made[next()%len(made)]
			p.Withdraw(b.owner, b.chain, b.made)
			s.withdraw(b.owner, b.added, b.by)
		}
		if p.Len() != len(s.blocks) || p.Len() > limit {
			t.Fatalf("%d blocks, want %d, at most %d", p.Len(), len(s.blocks), limit)
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
			if got := idx.Blocks(o); got != held[o] {
				t.Fatalf("owner %d: %d blocks in the index, want %d", k, got, held[o])
			}
		}
	}
}

// TestPredictorTwin compares the predictor with its twin over histories that
// shrink, with a limit that is never, at times and always reached.
func TestPredictorTwin(t *testing.T) {
	for _, limit := range []int{1 << 20, 40, 5} {
		t.Run(fmt.Sprint("limit=", limit), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				playPredictions(t, rapid.SliceOfN(rapid.Byte(), 80, 1500).Draw(t, "history"), limit)
			})
		})
	}
}

func TestPredictorTwinLong(t *testing.T) {
	for seed := range uint64(3) {
		rng := rand.NewChaCha8([32]byte{byte(seed)})
		history := make([]byte, 30_000)
		_, _ = rng.Read(history)
		t.Logf("seed %d", seed)
		playPredictions(t, history, 60)
	}
}

// FuzzPredictor is TestPredictorTwin under the fuzzer's histories.
func FuzzPredictor(f *testing.F) {
	f.Add([]byte{0, 1, 0, 5, 5, 11, 10, 0, 1, 0, 5, 5, 3, 250, 14, 1, 0, 5, 5, 3, 250}, uint8(4))
	f.Add([]byte{0, 1, 0, 5, 5, 11, 10, 11, 1, 0, 5, 5, 3, 10, 0, 13, 1, 0, 5, 5, 3, 10}, uint8(40))
	f.Fuzz(func(t *testing.T, history []byte, limit uint8) {
		playPredictions(t, history[:min(len(history), 1000)], int(limit)%80+1)
	})
}

// What is over goes in steps, so that the first request after a quiet hour does
// not wait for all of it; and the oldest prompts go first.
func TestPredictorExpiresInSteps(t *testing.T) {
	idx := New(Config{})
	p := NewPredictor(idx, PredictorConfig{TTL: time.Minute, MaxBlocks: 1 << 20, PruneRatio: 0.8})
	o := idx.Owner("w", 0)
	for i := range uint64(5) {
		p.Insert(o, chain(i, 1000), noon.Add(time.Duration(i)))
	}
	later := noon.Add(time.Hour)
	var dropped []int
	for p.Len() > 0 {
		dropped = append(dropped, p.Expire(later))
	}
	if want := []int{1024, 1024, 1024, 1024, 904}; !slices.Equal(dropped, want) {
		t.Errorf("dropped %v, want %v", dropped, want)
	}
	if idx.Blocks(o) != 0 || p.Expire(later) != 0 {
		t.Error("something is left")
	}
}

// A prompt longer than the limit is believed in as far as the limit goes.
func TestPredictorLimit(t *testing.T) {
	idx := New(Config{})
	p := NewPredictor(idx, PredictorConfig{TTL: time.Minute, MaxBlocks: 100, PruneRatio: 0.5})
	o := idx.Owner("w", 0)
	var m Matches
	long := chain(1, 300)
	p.Insert(o, long, noon)
	idx.Match(long, &m)
	if got := m.Leading(o); got != 100 || p.Len() != 100 {
		t.Errorf("%d leading blocks of %d", got, p.Len())
	}
	other := chain(2, 1)
	p.Insert(o, other, noon)
	idx.Match(long, &m)
	if got := m.Leading(o); got != 49 || p.Len() != 50 {
		t.Errorf("pruned to %d leading blocks of %d, want 49 of 50", got, p.Len())
	}
}

func TestPredictorConfig(t *testing.T) {
	good := PredictorConfig{TTL: time.Second, MaxBlocks: 1, PruneRatio: 1}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for _, bad := range []PredictorConfig{
		{}, {TTL: -1, MaxBlocks: 1, PruneRatio: 1}, {TTL: 1, MaxBlocks: 0, PruneRatio: 1}, {TTL: 1, MaxBlocks: 1<<30 + 1, PruneRatio: 1},
		{TTL: 1, MaxBlocks: 1}, {TTL: 1, MaxBlocks: 1, PruneRatio: 1.1},
	} {
		if bad.Validate() == nil {
			t.Errorf("%+v is valid", bad)
		}
	}
	if cmp.Compare(Prediction{}.Added(), 0) != 0 {
		t.Error("the zero Prediction added something")
	}
}

// BenchmarkPredict is one insertion of a prompt of 512 blocks, of which the
// benchmark's name says how many were predicted already, into a predictor that
// is full, so that what is new prunes what is old.
func BenchmarkPredict(b *testing.B) {
	for _, known := range []int{512, 384, 0} {
		b.Run(fmt.Sprintf("blocks=512/known=%d/limit=1M/workers=8", known), func(b *testing.B) {
			idx := New(Config{})
			p := NewPredictor(idx, PredictorConfig{TTL: time.Hour, MaxBlocks: 1 << 20, PruneRatio: 0.8})
			var owners [8]Owner
			for i := range owners {
				owners[i] = idx.Owner(fmt.Sprint("w", i), 0)
			}
			rng := rand.New(rand.NewPCG(1, 2))
			prompts := make([][]uint64, 256)
			for i := range prompts {
				prompts[i] = chain(uint64(i), 512)
			}
			now := noon
			insert := func(i int) {
				prompt := prompts[i%len(prompts)]
				for k := known; k < len(prompt); k++ {
					prompt[k] = rng.Uint64()
				}
				now = now.Add(time.Microsecond)
				p.Insert(owners[i%len(owners)], prompt, now)
			}
			for i := range 3000 {
				insert(i)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				insert(i)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/512, "ns/block")
		})
	}
}
