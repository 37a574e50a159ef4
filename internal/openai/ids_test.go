package openai

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAppendIDs(t *testing.T) {
	ids := []uint32{0, 1, math.MaxUint32, math.MaxUint32 - 1}
	for p := uint64(10); p <= math.MaxUint32; p *= 10 {
		ids = append(ids, uint32(p-1), uint32(p), uint32(p+1))
	}
	for p := range 32 {
		ids = append(ids, 1<<p-1, 1<<p)
	}
	for id := range uint32(2_000_000) {
		if id < 2000 || id%997 == 0 {
			ids = append(ids, id)
		}
	}
	var want []string
	for _, id := range ids {
		want = append(want, fmt.Sprint(id))
		assert.Equal(t, fmt.Sprintf("> [%d]", id), string(AppendIDs([]byte("> "), []uint32{id})), "%d", id)
	}
	assert.Equal(t, "["+strings.Join(want, ",")+"]", string(AppendIDs(nil, ids)))
	assert.Equal(t, "[]", string(AppendIDs(nil, nil)))
}

// TestAppendMoreIDs holds it against AppendIDs on seeded lists.
func TestAppendMoreIDs(t *testing.T) {
	const seed = 13
	rng := rand.New(rand.NewPCG(seed, seed))
	list := func(n int) (ids []uint32) {
		for range n {
			ids = append(ids, rng.Uint32()>>rng.IntN(33))
		}
		return ids
	}
	for n := range 20_000 {
		common, had, more := list(1+rng.IntN(9)), list(rng.IntN(4)), list(rng.IntN(6))
		want := AppendIDs([]byte("> "), slices.Concat(common, more))
		got := AppendMoreIDs([]byte("> "), AppendIDs(nil, slices.Concat(common, had)), had, more)
		require.True(t, bytes.Equal(got, want), "seed %d, %d: %v, %v and %v: %s", seed, n, common, had, more, got)
	}
}

func BenchmarkAppendIDs(b *testing.B) {
	ids := make([]uint32, 65_536)
	for i := range ids {
		ids[i] = uint32(i*2654435761) % 150_000
	}
	var dst []byte
	b.ReportAllocs()
	for b.Loop() {
		dst = AppendIDs(dst[:0], ids)
	}
}
