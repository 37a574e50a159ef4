package planner

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestDemand(t *testing.T) {
	tests := []struct {
		name  string
		load  Load
		want  float64
		known bool
	}{
		{"nothing is known", Load{Present: 3, BacklogTokens: 1e6, ArrivalTokens: 1e4, Blocks: 100, Requests: 9}, 0, false},
		{"no workers", Load{TokensPerSecond: 1000, WorkerBlocks: 100, WorkerSeqs: 10}, 0, true},
		{"arrivals alone: one worker's second a second, at 80 %", Load{ArrivalTokens: 1000, TokensPerSecond: 1000}, 1.25, true},
		{"a backlog is worked off within ten seconds", Load{BacklogTokens: 10_000, TokensPerSecond: 1000}, 1.25, true},
		{"both add up", Load{BacklogTokens: 10_000, ArrivalTokens: 3000, TokensPerSecond: 1000}, 5, true},
		{"blocks", Load{Blocks: 1600, WorkerBlocks: 1000}, 2, true},
		{"requests", Load{Requests: 64, WorkerSeqs: 32}, 2.5, true},
		{"the scarcest counts: blocks", Load{Blocks: 2400, WorkerBlocks: 1000, Requests: 64, WorkerSeqs: 32}, 3, true},
		{"the scarcest counts: requests", Load{Blocks: 400, WorkerBlocks: 1000, Requests: 64, WorkerSeqs: 32}, 2.5, true},
		{"what has no limit asks for none", Load{Blocks: 1e9, Requests: 8, WorkerSeqs: 10}, 1, true},
	}
	for _, tt := range tests {
		d := tt.load.Demand(0.8)
		got, known := d.Workers(), d.Known
		assert.True(t, math.Abs(got-tt.want) <= 1e-9 && known == tt.known,
			"%s: %v, %v, want %v, %v", tt.name, got, known, tt.want, tt.known)
	}
}

// reader reads one load every few seconds.
type reader struct {
	Scaler
	now   time.Time
	every time.Duration
}

func newReader() *reader { return &reader{now: time.Unix(1e9, 0), every: 5 * time.Second} }

// after reads l for a time and returns the last answer.
func (r *reader) after(l Load, span time.Duration) int {
	n := r.workers
	for passed := time.Duration(0); passed < span; passed += r.every {
		r.now = r.now.Add(r.every)
		n = r.Read(l, 0.8, r.now)
	}
	return n
}

// busy is a prefill load that fills so many workers, with so many there.
func busy(present int, workers float64) Load {
	return Load{Present: present, TokensPerSecond: 1000, ArrivalTokens: 800 * workers}
}

// unknown is a backlog at workers whose speed is not known.
func unknown(present int) Load { return Load{Present: present, BacklogTokens: 1e9} }

func TestDesired(t *testing.T) {
	type step struct {
		load        Load
		lasts       time.Duration
		least, most int
	}
	for name, steps := range map[string][]step{
		"the present at the beginning, one after an idle hour": {{busy(4, 0), 5 * time.Second, 4, 4}, {busy(4, 0), time.Hour, 1, 1}},
		"the present while the speed is unknown": {
			{unknown(3), time.Minute, 3, 3}, {unknown(5), time.Minute, 5, 5}, {unknown(2), time.Minute, 2, 2}, {unknown(0), time.Minute, 1, 1},
		},
		"soon up, late down": {
			{busy(2, 2), time.Minute, 0, 9}, {busy(2, 6), 15 * time.Second, 4, 6}, {busy(2, 6), 3 * time.Minute, 6, 6},
			{busy(6, 2), 30 * time.Second, 6, 6},
			{busy(6, 2), time.Hour, 3, 3}, // two would have nothing to spare
			{busy(6, 1.8), time.Hour, 2, 2},
		},
		"at most four times as many": {{busy(2, 1000), time.Hour, 8, 8}, {busy(8, 1000), time.Hour, 32, 32}, {busy(0, 1000), time.Hour, 4, 4}},
	} {
		r := newReader()
		for i, s := range steps {
			if n := r.after(s.load, s.lasts); n < s.least || n > s.most {
				t.Errorf("%s, step %d: %d, want %d to %d", name, i, n, s.least, s.most)
			}
		}
	}
}

// However the load trembles about a whole number of workers, the answer moves
// once at most.
func TestDesiredDoesNotFlap(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	r := newReader()
	r.after(busy(3, 3), time.Hour)
	changes, last := 0, r.workers
	for range 2000 {
		n := r.after(busy(3, 3+0.5*(rng.Float64()-0.5)), r.every)
		if n != last {
			changes++
		}
		last = n
	}
	assert.LessOrEqual(t, changes, 1, "seed %d changes in %v of a load of 3 ± 0.25 workers", seed, 2000*r.every)
}

// Several scrapers, or one that is quicker than a second, see one answer.
func TestDesiredReadTwiceAtOnce(t *testing.T) {
	r := newReader()
	r.after(busy(2, 2), time.Minute)
	before := r.Scaler
	for range 100 {
		r.now = r.now.Add(time.Millisecond)
		require.Equal(t, before.workers, r.Read(busy(2, 8), 0.8, r.now), "within a moment of")
	}
	assert.True(t, r.Scaler == before, "readings within a second changed %+v to %+v", before, r.Scaler)
}

// A pause of the scraper is not a lull that lasted as long.
func TestDesiredAfterAPause(t *testing.T) {
	r := newReader()
	r.after(busy(6, 6), 10*time.Minute)
	r.now = r.now.Add(24 * time.Hour)
	assert.GreaterOrEqual(t, r.Read(busy(6, 0), 0.8, r.now), 4, "the first reading after a day asks for N of 6")
}

func TestArrivals(t *testing.T) {
	var a Arrivals
	now := time.Unix(1e9, 0)
	assert.EqualValues(t, 0, a.Read(5000, now), "the first reading, and nothing is known of the time before")
	total := 5000.
	for range 60 {
		now = now.Add(5 * time.Second)
		total += 500
		a.Read(total, now)
	}
	assert.True(t, math.Abs(a.perSecond-100) <= 1, "after 5 min of 100/s: %v", a.perSecond)
	held := a
	assert.True(t, a.Read(total+1e6, now.Add(time.Millisecond)) == held.perSecond && a == held,
		"a reading a moment later changed %+v to %+v", held, a)
	for range 60 {
		now = now.Add(5 * time.Second)
		a.Read(total, now)
	}
	assert.True(t, a.perSecond <= 1, "after 5 min of nothing: %v", a.perSecond)
}

// Workers that join a new gateway one after the other are not too many; one that joins later is no reason for more.
func TestDesiredWhileWorkersJoin(t *testing.T) {
	var s Scaler
	begun := time.Unix(1_700_000_000, 0)
	assert.Equal(t, 1, s.Read(busy(1, .1), 0.8, begun))
	assert.Equal(t, 2, s.Read(busy(2, .1), 0.8, begun.Add(100*time.Millisecond)))
	assert.Equal(t, 4, s.Read(busy(4, .1), 0.8, begun.Add(5*time.Second)))
	assert.Equal(t, 4, s.Read(busy(5, .1), 0.8, begun.Add(2*time.Minute)))
}
