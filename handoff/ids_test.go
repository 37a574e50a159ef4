package handoff

import (
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
	for range 10_000 {
		id := transferID()
		if id < 1<<42 || transfers[id] {
			t.Fatalf("transfer id %d", id)
		}
		transfers[id] = true
	}
	var drawn, drawnToo ids
	if drawn.next() == drawnToo.next() {
		t.Error("drawn ids are the same")
	}
}
