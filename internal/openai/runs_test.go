package openai

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// integersTwin is integers, one byte at a time, where all of data may be looked at.
func integersTwin(data []byte, i int) (last int) {
	last = i
	for {
		start := i
		for i < len(data) && data[i] >= '0' && data[i] <= '9' {
			i++
		}
		if i == start || i == len(data) || data[i] != ',' || data[start] == '0' && i > start+1 {
			return last
		}
		last = i
		i++
	}
}

// TestIntegers holds integers against its twin, on seeded texts: it ends at a comma that the twin passes, and where
// what follows is long it gets as far as whole words can.
func TestIntegers(t *testing.T) {
	const seed = 11
	rng := rand.New(rand.NewPCG(seed, seed))
	const usual, odd = "0123456789,,", "-. ]e\"[{\x00\xb0\xac/:"
	for n := range 200_000 {
		data := make([]byte, rng.IntN(64))
		for i := range data {
			if data[i] = usual[rng.IntN(len(usual))]; rng.IntN(40) == 0 {
				data[i] = odd[rng.IntN(len(odd))]
			}
		}
		from := rng.IntN(len(data) + 1)
		got, most := integers(data, from), integersTwin(data, from)
		require.True(t, got <= most && (got == from || data[got] == ',' && integersTwin(data[:got+1], from) == got),
			"seed %d, %d: %q from %d: %d, want at most %d", seed, n, data, from, got, most)
		if words := from + (most-from)/8*8; most > from && got < words-8-1 && integersTwin(data[:words], from) > got {
			t.Fatalf("seed %d, %d: %q from %d: %d, want %d", seed, n, data, from, got, most)
		}
	}
}

// TestArraysOfIntegers holds the cursor against encoding/json where arrays are nearly those of a prompt.
func TestArraysOfIntegers(t *testing.T) {
	const seed = 12
	rng := rand.New(rand.NewPCG(seed, seed))
	const noise = "0,-.]e [}\"1:"
	for n := range 100_000 {
		data := []byte(`{"a":[`)
		for range rng.IntN(12) {
			data = append(strconv.AppendInt(data, rng.Int64N(1<<rng.IntN(40)), 10), ',')
		}
		data = bytes.TrimSuffix(data, []byte(","))
		data = append(data, `],"b":[[0,12345678,7],3]}`...)
		for range rng.IntN(3) {
			data[rng.IntN(len(data))] = noise[rng.IntN(len(noise))]
		}
		c := newCursor(data, deepest)
		if _, got := c.value(); got && c.finish() != json.Valid(data) || !got && json.Valid(data) {
			t.Fatalf("seed %d, %d: %s: %t (%s), want %t", seed, n, data, got, c.fault, json.Valid(data))
		}
	}
}
