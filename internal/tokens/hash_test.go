package tokens

import (
	"encoding/binary"
	"encoding/json"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/zeebo/xxh3"
)

// hashVector is a line of testdata/hash.json.
type hashVector struct {
	Name      string   `json:"name"`
	Tokens    []uint32 `json:"tokens"`
	BlockSize int      `json:"block_size"`
	LoRA      string   `json:"lora"`
	Salt      string   `json:"salt"`
	Local     []string `json:"local"`
	Sequence  []string `json:"sequence"`
}

// TestHashGolden keeps the hashes what they are: the first rows are the values that Dynamo's tests publish.
func TestHashGolden(t *testing.T) {
	data, err := os.ReadFile("testdata/hash.json")
	require.NoError(t, err)
	var vectors []hashVector
	require.NoError(t, json.Unmarshal(data, &vectors))
	for _, v := range vectors {
		seed := Seed(v.LoRA, v.Salt)
		assert.Equal(t, decimals(t, v.Local), LocalHashes(nil, v.Tokens, v.BlockSize, seed), v.Name)
		assert.Equal(t, decimals(t, v.Sequence), SequenceHashes(nil, v.Tokens, v.BlockSize, seed), v.Name)
	}
}

func decimals(t *testing.T, texts []string) []uint64 {
	t.Helper()
	var all []uint64
	for _, s := range texts {
		n, err := strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
		all = append(all, n)
	}
	return all
}

// TestHashPublished reads ../../../shared and is skipped where that is absent.
func TestHashPublished(t *testing.T) {
	var v struct {
		Seed      uint64 `json:"seed"`
		BlockSize int    `json:"block_size"`
		Blocks    []struct {
			Tokens          []uint32
			Local, Sequence uint64
		}
	}
	require.NoError(t, openShared(t, "hash.json").Decode(&v))
	var ids []uint32
	var local, sequence []uint64
	for _, b := range v.Blocks {
		ids, local, sequence = append(ids, b.Tokens...), append(local, b.Local), append(sequence, b.Sequence)
	}
	assert.Equal(t, local, LocalHashes(nil, ids, v.BlockSize, v.Seed))
	assert.Equal(t, sequence, SequenceHashes(nil, ids, v.BlockSize, Seed("", "")))
}

// TestHashDynamo compares with Dynamo's own library: LoRA names and salts. Vectors with image hashes or Eagle windows
// are left out: the gateway makes no such hashes. It reads ../../../shared and is skipped where that is absent.
func TestHashDynamo(t *testing.T) {
	type vector struct {
		Tokens    []uint32   `json:"tokens"`
		BlockSize int        `json:"block_size"`
		LoRA      string     `json:"lora_name"`
		Salt      string     `json:"cache_namespace"`
		Eagle     bool       `json:"is_eagle"`
		Images    [][]string `json:"block_mm_hashes"`
		Local     []string   `json:"local_block_hashes"`
	}
	compared := 0
	for i, v := range decodeLines[vector](t, openShared(t, "hash_dynamo.jsonl")) {
		if v.Eagle || len(v.Images) > 0 {
			continue
		}
		compared++
		assert.Equal(t, decimals(t, v.Local), LocalHashes(nil, v.Tokens, v.BlockSize, Seed(v.LoRA, v.Salt)), "line %d", i+1)
	}
	assert.NotZero(t, compared)
}

// TestHashForms checks the forms of hashing against each other and the formula.
func TestHashForms(t *testing.T) {
	rng := seeded(t, 11)
	for range 300 {
		ids := make([]uint32, rng.IntN(300))
		for i := range ids {
			ids[i] = rng.Uint32()
		}
		size, seed := 1+rng.IntN(70), rng.Uint64()
		local := LocalHashes([]uint64{7}, ids, size, seed)
		require.True(t, local[0] == 7 && len(local) == 1+len(ids)/size, "%d hashes of %d ids in blocks of %d, behind the one there",
			len(local), len(ids), size)
		for i := 2; i < len(local); i++ {
			local[i] = Chain(local[i-1], local[i])
		}
		require.Equal(t, local, SequenceHashes([]uint64{7}, ids, size, seed), "LocalHashes chained, SequenceHashes")
		a, b := rng.Uint64(), rng.Uint64()
		words := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, a), b)
		require.Equal(t, xxh3.HashSeed(words, hashSeed), Chain(a, b), "Chain(%d, %d)", a, b)
	}
}

func TestHashNoBlock(t *testing.T) {
	for _, size := range []int{-1, 0, 4} {
		ids := []uint32{1, 2, 3}
		assert.Empty(t, append(LocalHashes(nil, ids, size, 1), SequenceHashes(nil, ids, size, 1)...), "3 ids in blocks of %d", size)
	}
}
