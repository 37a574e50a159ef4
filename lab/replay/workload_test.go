package replay

import (
	"math"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestChainsGoByTheirBeginnings(t *testing.T) {
	w := &Workload{Requests: []Request{
		{Index: 0, At: 30}, {Index: 1, At: 10, Session: "a"}, {Index: 2, At: 10}, {Index: 3, At: 90, Session: "a"}, {Index: 4, At: 0},
	}}
	var got [][]int
	for _, c := range w.chains() {
		var indices []int
		for _, r := range c {
			indices = append(indices, r.Index)
		}
		got = append(got, indices)
	}
	assert.Equal(t, [][]int{{4}, {1, 3}, {2}, {0}}, got)
	assert.True(t, len(w.Limit(2).Requests) == 2 && w.Limit(0) == w && w.Limit(9) == w && w.Span() == 90,
		"Limit or Span is wrong")
}

func TestGeneratorIsPoissonAndDeterministic(t *testing.T) {
	g := Generator{Rate: 50, InputTokens: 100, OutputTokens: 7, SharedPrefix: 0.25, Requests: 20_000, Seed: 3}
	w, err := g.Workload()
	require.NoError(t, err)
	again, err := g.Workload()
	assert.True(t, err == nil && reflect.DeepEqual(w, again), "the same seed made another workload, error %v", err)
	other := g
	other.Seed++
	if o, err := other.Workload(); err != nil || o.Requests[0].At == w.Requests[0].At {
		t.Errorf("another seed made the same arrivals, error %v", err)
	}
	var sum, squares float64
	last := time.Duration(0)
	for i, r := range w.Requests {
		if want := []Span{{0, 25}, {ownSpans | uint64(i), 75}}; !reflect.DeepEqual(r.Spans, want) || r.OutputTokens != 7 || r.Index != i {
			t.Fatalf("request %d: %+v", i, r)
		}
		gap := (r.At - last).Seconds()
		last = r.At
		sum += gap
		squares += gap * gap
	}
	n := float64(len(w.Requests))
	mean := sum / n
	deviation := math.Sqrt(squares/n - mean*mean)
	assert.True(t, math.Abs(mean-0.02) <= 0.001 && math.Abs(deviation-0.02) <= 0.001,
		"gaps of %v ± %v s, want 0.02 ± 0.02 as an exponential distribution has", mean, deviation)
}

func TestGeneratorStops(t *testing.T) {
	made := func(g Generator) *Workload {
		g.Rate, g.InputTokens, g.OutputTokens = 10, 10, 1
		w, err := g.Workload()
		require.NoError(t, err)
		return w
	}
	byTime := made(Generator{Duration: 10 * time.Second})
	assert.InDelta(t, 100, len(byTime.Requests), 40)
	assert.Less(t, byTime.Span(), 10*time.Second)
	assert.Len(t, made(Generator{Duration: 10 * time.Second, Requests: 5}).Requests, 5)
	assert.Equal(t, []Span{{0, 10}}, made(Generator{Requests: 2, SharedPrefix: 1}).Requests[1].Spans)
}

func TestGeneratorRefuses(t *testing.T) {
	for name, spoil := range map[string]func(*Generator){
		"no rate":        func(g *Generator) { g.Rate = 0 },
		"no number":      func(g *Generator) { g.Rate = math.NaN() },
		"no prompt":      func(g *Generator) { g.InputTokens = 0 },
		"no answer":      func(g *Generator) { g.OutputTokens = 0 },
		"share above 1":  func(g *Generator) { g.SharedPrefix = 1.1 },
		"no share":       func(g *Generator) { g.SharedPrefix = math.NaN() },
		"no end":         func(g *Generator) { g.Requests = 0 },
		"too many":       func(g *Generator) { g.Rate, g.Requests, g.Duration = 1e9, 0, time.Hour },
		"nobody in time": func(g *Generator) { g.Rate, g.Requests, g.Duration = 1e-9, 0, time.Second },
	} {
		g := Generator{Rate: 1, InputTokens: 1, OutputTokens: 1, Requests: 1}
		spoil(&g)
		_, err := g.Workload()
		assert.Error(t, err, name)
	}
}

// TestSharedTwin: what a workload shares is what a cache of whole prompts finds, counted token by token.
func TestSharedTwin(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	for range 300 {
		w := &Workload{}
		for i := range 12 {
			r := Request{Index: i, At: time.Duration(i)}
			for range 1 + rng.IntN(4) {
				r.Spans = append(r.Spans, Span{ID: rng.Uint64N(3), Tokens: 1 + rng.IntN(3)})
			}
			w.Requests = append(w.Requests, r)
		}
		var seen [][][2]uint64
		for i, got := range w.Shared() {
			var prompt [][2]uint64 // of each token its span and place in it
			for _, s := range w.Requests[i].Spans {
				for at := range s.Tokens {
					prompt = append(prompt, [2]uint64{s.ID, uint64(at)})
				}
			}
			want := 0
			for _, other := range seen {
				n := 0
				for n < min(len(prompt), len(other)) && prompt[n] == other[n] {
					n++
				}
				want = max(want, n)
			}
			seen = append(seen, prompt)
			require.Equal(t, want, got, "request %d shares N tokens, found X: %+v", i, w.Requests)
		}
	}
}
