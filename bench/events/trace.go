package main

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/tandem-pd/tandem/lab/replay"
)

// conversation makes a trace up that has what Mooncake's conversation trace has: many conversations at once, each
// turn's prompt the whole conversation so far, and a few system prompts that many begin with. The same settings make
// the same trace.
type conversation struct {
	Requests int
	Rate     float64 // requests a second
	Seed     uint64
}

// What made-up conversations are made of.
const (
	systemPrompts = 6
	systemTokens  = 256
	turnTokens    = 160 // on average
	mostTurns     = 8
	talks         = 96 // that go on at any time
)

func (c conversation) workload() *replay.Workload {
	rng := rand.New(rand.NewPCG(c.Seed, 0x636f6e76))
	type talk struct {
		spans []replay.Span
		turns int
	}
	live := make([]talk, talks)
	serial := uint64(systemPrompts)
	w := &replay.Workload{Name: fmt.Sprintf("made-up conversations, %d requests at %g/s, seed %d", c.Requests, c.Rate, c.Seed)}
	at := 0.0 // seconds
	for i := range c.Requests {
		at += rng.ExpFloat64() / c.Rate
		t := &live[rng.IntN(talks)]
		if t.turns == 0 {
			t.turns = 1 + rng.IntN(mostTurns)
			t.spans = []replay.Span{{ID: rng.Uint64N(systemPrompts), Tokens: systemTokens}}
		}
		t.turns--
		serial++
		turn := replay.Span{ID: serial, Tokens: turnTokens/2 + rng.IntN(turnTokens)}
		t.spans = append(t.spans[:len(t.spans):len(t.spans)], turn) // a request's spans are never written to again
		w.Requests = append(w.Requests, replay.Request{
			Index: i, At: time.Duration(at * 1e9), Spans: t.spans, OutputTokens: 8 + rng.IntN(40),
		})
	}
	return w
}

// readTrace reads the first limit requests of a trace in one of the forms that [replay.Read] takes, all for 0.
func readTrace(path string, limit int) (*replay.Workload, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	w, err := replay.ReadTrace(f, filepath.Base(path), replay.MooncakeBlockTokens, limit)
	if err == nil && limit > 0 {
		w = w.Limit(limit)
	}
	return w, err
}

// vocabulary is how many token ids prompts are drawn from.
const vocabulary = 128_000

// promptOf draws a prompt: the token at each place of a span by hash(seed, span, place), so that equal spans are equal
// tokens.
func promptOf(seed uint64, spans []replay.Span) []uint32 {
	n := 0
	for _, s := range spans {
		n += s.Tokens
	}
	ids := make([]uint32, 0, n)
	for _, s := range spans {
		state := chance(seed, s.ID, 0)
		for place := range s.Tokens {
			hi, _ := bits.Mul64(chance(state, uint64(place), 1), vocabulary)
			ids = append(ids, uint32(hi))
		}
	}
	return ids
}

// chance is a hash of three words, as good as a random number: SplitMix64's finaliser (Steele, Lea, Flood, 2014)
// after each.
func chance(a, b, c uint64) uint64 {
	x := a
	for _, w := range [...]uint64{b, c} {
		x = (x ^ w) + 0x9e3779b97f4a7c15
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		x ^= x >> 31
	}
	return x
}

// hits says whether a chance drawn falls below a probability.
func hits(drawn uint64, probability float64) bool {
	return float64(drawn>>11)/(1<<53) < probability
}
