package tokens

import (
	"slices"
	"strings"
	"testing"
)

// slowMerge is byte-pair encoding as it is defined: as long as a merge joins
// two neighbours, join the pair of lowest rank, the leftmost of equals.
func slowMerge(m *merges, piece string) []uint32 {
	var ids []uint32
	for _, b := range []byte(piece) {
		ids = append(ids, m.single[b])
	}
	for {
		best, at := noRank, -1
		for i := 1; i < len(ids); i++ {
			if r := m.rank(ids[i-1], ids[i]); r < best {
				best, at = r, i-1
			}
		}
		if at < 0 {
			return ids
		}
		ids = slices.Replace(ids, at, at+2, m.joined[best])
	}
}

func TestMergeEqualsItsDefinition(t *testing.T) {
	m, rng := Sim().merges, seeded(t, 7)
	alphabets := []string{"ab", "a", "etaoin srhl", "0123456789abcdef", " \t\n", "=-/*#", "\x00\xff\xc3\xa9"}
	for range 1500 {
		alphabet := alphabets[rng.IntN(len(alphabets))]
		var b strings.Builder
		for range rng.IntN(3 * maxShort) {
			b.WriteByte(alphabet[rng.IntN(len(alphabet))])
		}
		piece := b.String()
		want := slowMerge(m, piece)
		if got := m.append(nil, piece); !slices.Equal(got, want) {
			t.Fatalf("%q merges to %v, want %v", piece, got, want)
		}
		if got := m.appendLong(nil, piece); !slices.Equal(got, want) {
			t.Fatalf("%q merges by heap to %v, want %v", piece, got, want)
		}
	}
}
