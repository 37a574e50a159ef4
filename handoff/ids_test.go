package handoff

import (
	"fmt"
	"testing"
)

// Names follow from the seed and the order, never repeat, and without a seed
// are drawn.
func TestIDs(t *testing.T) {
	a, b, other := ids{seed: 7}, ids{seed: 7}, ids{seed: 8}
	seen := map[string]bool{}
	for range 10_000 {
		id := a.next()
		if id != b.next() || len(id) != 16 || seen[id] {
			t.Fatalf("id %q", id)
		}
		if seen[id] = true; other.next() == id {
			t.Fatal("another seed names alike")
		}
	}
	transfers := map[int64]bool{}
	for i := range 10_000 {
		name := fmt.Sprint("x-", i)
		id, drawn := a.transferID(name), new(ids).transferID(name)
		if id != b.transferID(name) || id < 1<<42 || drawn < 1<<42 || transfers[id] || transfers[drawn] {
			t.Fatalf("transfer ids %d and %d", id, drawn)
		}
		transfers[id], transfers[drawn] = true, true
	}
	var drawn, drawnToo ids
	if drawn.next() == drawnToo.next() {
		t.Error("drawn ids are the same")
	}
}
