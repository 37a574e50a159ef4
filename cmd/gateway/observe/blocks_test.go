package observe

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/kv/index"
)

// split is the names in a text of them.
func split(text string) []string {
	var names []string
	for part := range slices.Chunk([]byte(text), 8) {
		names = append(names, string(part))
	}
	return names
}

func TestBlockNames(t *testing.T) {
	chain := func(n int, from uint64) []uint64 {
		var all []uint64
		for i := range n {
			all = append(all, from+uint64(i))
		}
		return all
	}
	b := newBlockNames()
	for _, c := range []struct {
		name              string
		hashes, blockSize int
		names, tokens     int
	}{
		{"blocks of 16 make 512", 70, 16, 2, 512},
		{"blocks of 64 make 512", 15, 64, 1, 512},
		{"a prompt shorter than a named block", 31, 16, 0, 512},
		{"blocks that do not divide 512", 9, 48, 0, 480},
		{"one named block of them", 10, 48, 1, 480},
		{"blocks longer than 512", 3, 1024, 3, 1024},
		{"no hashes", 0, 16, 0, 512},
	} {
		t.Run(c.name, func(t *testing.T) {
			text, tokens := b.text(chain(c.hashes, 7), index.UnitBlock, c.blockSize)
			assert.True(t, len(text) == 8*c.names && tokens == c.tokens,
				"%q of %d tokens each, want %d names of %d", text, tokens, c.names, c.tokens)
		})
	}
	one, _ := b.text(chain(96, 7), index.UnitBlock, 16)
	other, _ := b.text(append(chain(64, 7), chain(32, 900)...), index.UnitBlock, 16)
	a, o := split(one), split(other)
	assert.True(t, slices.Equal(a[:2], o[:2]) && a[2] != o[2], "prompts alike for 1,024 tokens have the names %q and %q", a, o)
	// The hashes of text name granules: of 4,000 blocks all that end in the 193 that are whole have a name, each its own.
	text, _ := b.text(chain(index.GranulesWithin(4000), 7), index.UnitText, 16)
	names := split(text)
	slices.Sort(names)
	if want := index.GranuleBlocks(index.GranulesWithin(4000)) / 32; len(names) != want || len(slices.Compact(names)) != want {
		t.Errorf("%d names of text, want %d", len(names), want)
	}
	if again, _ := newBlockNames().text(chain(96, 7), index.UnitBlock, 16); slices.ContainsFunc(split(again),
		func(s string) bool { return slices.Contains(a, s) }) {
		t.Errorf("another run has the same names: %q, %q", a, split(again))
	}
}
