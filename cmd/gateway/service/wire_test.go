package service

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/kv/overlap"
)

func TestWire(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		hashes := make([]uint64, rng.IntN(50))
		for i := range hashes {
			hashes[i] = rng.Uint64()
		}
		if got, err := Hashes(appendHashes(nil, hashes)); err != nil || !slices.Equal(got, hashes) {
			t.Fatalf("%v became %v, %v", hashes, got, err)
		}
		held := make([]overlap.Tiers, rng.IntN(50))
		for i := range held {
			if rng.IntN(4) > 0 {
				held[i] = overlap.Tiers{Known: true, Device: rng.Int32N(maxHeld), Host: rng.Int32N(300), Disk: rng.Int32N(2),
					Shared: rng.Int32N(maxHeld)}
			}
		}
		wire := AppendAnswer(nil, seed, held)
		if got, err := readAnswer(wire, len(held)); err != nil || !slices.Equal(got, held) {
			t.Fatalf("%v became %v, %v", held, got, err)
		}
		if sum, err := sumOf(wire); err != nil || sum != seed {
			t.Fatalf("sum %d, %v", sum, err)
		}
		for _, n := range []int{len(held) + 1, len(held) - 1} {
			if n >= 0 {
				if _, err := readAnswer(wire, n); !errors.Is(err, errGarbled) {
					t.Fatalf("read as %d ranks, it has %d: %v", n, len(held), err)
				}
			}
		}
	}
}

// A layout's name follows from its ranks, whatever their order, and from nothing
// else.
func TestSum(t *testing.T) {
	a := Sum(overlap.NewLayout([]overlap.Rank{{Worker: "a"}, {Worker: "b", Rank: 1}, {Worker: "b"}}))
	assert.Equal(t, Sum(overlap.NewLayout([]overlap.Rank{{Worker: "b"}, {Worker: "a"}, {Worker: "b", Rank: 1}})), a,
		"another order is another layout")
	for _, other := range [][]overlap.Rank{nil, {{Worker: "a"}}, {{Worker: "ab"}, {Worker: "b"}, {Worker: "b", Rank: 1}},
		{{Worker: "a"}, {Worker: "b"}, {Worker: "b", Rank: 2}}} {
		assert.NotEqual(t, a, Sum(overlap.NewLayout(other)), "%v has the same name", other)
	}
}

func FuzzAnswer(f *testing.F) {
	f.Add(AppendAnswer(nil, 1, []overlap.Tiers{{}, {Known: true, Device: 256, Host: 3}}), 2)
	f.Add([]byte{1, 2, 3}, 1)
	f.Fuzz(func(t *testing.T, wire []byte, n int) {
		held, err := readAnswer(wire, min(max(n, 0), 1<<12))
		if err != nil {
			return
		}
		sum, err := sumOf(wire)
		require.NoError(t, err)
		again, err := readAnswer(AppendAnswer(nil, sum, held), len(held))
		require.True(t, err == nil && slices.Equal(again, held), "%v became %v, %v", held, again, err)
	})
}
