package tokens

import (
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestPieceSlot puts one piece in the place of another, as pieces do that share a slot.
func TestPieceSlot(t *testing.T) {
	const text = "sixteen_letters_"
	ten := []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9, 1 << 31}
	for _, c := range []struct {
		name      string
		put, get  string
		ids, want []uint32
		ok        bool
	}{
		{"itself", text, text, ten, ten, true},
		{"odd count", "abc", "abc", ten[:3], ten[:3], true},
		{"other first half", text, "X" + text[1:], ten, nil, false},
		{"other second half", text, text[:15] + "X", ten, nil, false},
		{"longer by a zero", "abc", "abc\x00", ten[:2], nil, false},
		{"too many tokens", "abc", "abc", append(ten[:10:10], 11), nil, false},
	} {
		var slot pieceSlot
		slot.put(keyOf("before", 0, 6), []uint32{9, 9, 9, 9, 9, 9})
		slot.put(keyOf(c.put, 0, len(c.put)), c.ids)
		got, ok := slot.append([]uint32{7}, keyOf(c.get, 0, len(c.get)))
		assert.True(t, ok == c.ok && slices.Equal(got, append([]uint32{7}, c.want...)),
			"%s: %v, %t, want 7 and %v, %t", c.name, got, ok, c.want, c.ok)
	}
	var empty pieceSlot
	_, ok := empty.append(nil, keyOf("a", 0, 1))
	assert.False(t, ok, "an empty slot has a piece")
}

// TestPieceSlotTogether has writers of pieces that share a slot: whoever reads gets all of one or nothing.
func TestPieceSlotTogether(t *testing.T) {
	var slot pieceSlot
	var group sync.WaitGroup
	for w := range uint32(3) {
		group.Go(func() {
			text := string(rune('a' + w))
			key, ids := keyOf(text, 0, 1), slices.Repeat([]uint32{w}, 4+int(w))
			for range 20_000 {
				slot.put(key, ids)
				if got, ok := slot.append(nil, key); ok && !slices.Equal(got, ids) {
					t.Errorf("%s: %v, want %v", text, got, ids)
					return
				}
			}
		})
	}
	group.Wait()
}

func TestKeyOf(t *testing.T) {
	text := "abcdefghijklmnopqrstuvwxyz"
	for i := range text {
		for end := i + 1; end <= min(len(text), i+maxKey); end++ {
			piece := text[i:end]
			assert.Equal(t, keyOf(piece, 0, len(piece)), keyOf(text, i, end), "%q alone, and in the middle of a text", piece)
		}
	}
}
