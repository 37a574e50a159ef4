package tokens

import (
	"encoding/binary"
	"encoding/json"
	"os"
	"slices"
	"strconv"
	"testing"

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

// TestHashGolden keeps the hashes what they are: the first rows are the
// values that Dynamo's tests publish.
func TestHashGolden(t *testing.T) {
	data, err := os.ReadFile("testdata/hash.json")
	if err != nil {
		t.Fatal(err)
	}
	var vectors []hashVector
	if err := json.Unmarshal(data, &vectors); err != nil {
		t.Fatal(err)
	}
	for _, v := range vectors {
		seed := Seed(v.LoRA, v.Salt)
		if got, want := LocalHashes(nil, v.Tokens, v.BlockSize, seed), decimals(t, v.Local); !slices.Equal(got, want) {
			t.Errorf("%s: local hashes\n got %d\nwant %d", v.Name, got, want)
		}
		if got, want := SequenceHashes(nil, v.Tokens, v.BlockSize, seed), decimals(t, v.Sequence); !slices.Equal(got, want) {
			t.Errorf("%s: sequence hashes\n got %d\nwant %d", v.Name, got, want)
		}
	}
}

func decimals(t *testing.T, texts []string) []uint64 {
	t.Helper()
	var all []uint64
	for _, s := range texts {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
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
	if err := openShared(t, "hash.json").Decode(&v); err != nil {
		t.Fatal(err)
	}
	var ids []uint32
	var local, sequence []uint64
	for _, b := range v.Blocks {
		ids, local, sequence = append(ids, b.Tokens...), append(local, b.Local), append(sequence, b.Sequence)
	}
	if got := LocalHashes(nil, ids, v.BlockSize, v.Seed); !slices.Equal(got, local) {
		t.Errorf("local hashes %d, want %d", got, local)
	}
	if got := SequenceHashes(nil, ids, v.BlockSize, Seed("", "")); !slices.Equal(got, sequence) {
		t.Errorf("sequence hashes %d, want %d", got, sequence)
	}
}

// TestHashDynamo compares with Dynamo's own library: LoRA names and salts. Vectors
// with image hashes or Eagle windows are left out: the gateway makes no such hashes. It
// reads ../../../shared and is skipped where that is absent.
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
		seed, want := Seed(v.LoRA, v.Salt), decimals(t, v.Local)
		if got := LocalHashes(nil, v.Tokens, v.BlockSize, seed); !slices.Equal(got, want) {
			t.Errorf("line %d: got %d\nwant %d", i+1, got, want)
		}
	}
	if compared == 0 {
		t.Error("no vector was compared")
	}
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
		if local[0] != 7 || len(local) != 1+len(ids)/size {
			t.Fatalf("LocalHashes of %d ids in blocks of %d: %d hashes, want %d after the one there", len(ids), size, len(local), len(ids)/size)
		}
		for i := 2; i < len(local); i++ {
			local[i] = Chain(local[i-1], local[i])
		}
		if sequence := SequenceHashes([]uint64{7}, ids, size, seed); !slices.Equal(sequence, local) {
			t.Fatalf("SequenceHashes %d, LocalHashes chained %d", sequence, local)
		}
		a, b := rng.Uint64(), rng.Uint64()
		words := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, a), b)
		if got, want := Chain(a, b), xxh3.HashSeed(words, hashSeed); got != want {
			t.Fatalf("Chain(%d, %d) = %d, want %d", a, b, got, want)
		}
	}
}

func TestHashNoBlock(t *testing.T) {
	for _, size := range []int{-1, 0, 4} {
		ids := []uint32{1, 2, 3}
		if n := len(LocalHashes(nil, ids, size, 1)) + len(SequenceHashes(nil, ids, size, 1)); n != 0 {
			t.Errorf("3 ids in blocks of %d: %d hashes, want none", size, n)
		}
	}
}

func TestHashAllocatesNothing(t *testing.T) {
	ids, dst := make([]uint32, 1000), make([]uint64, 0, 100)
	if n := testing.AllocsPerRun(20, func() {
		LocalHashes(dst, ids, 16, 1)
		SequenceHashes(dst, ids, 16, 1)
	}); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}
