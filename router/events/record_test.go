package events

import (
	"testing"

	"github.com/tandem-pd/tandem/router/index"
)

// A record's batches make an empty view what one is that was told everything,
// also for what comes afterwards.
func TestRecordTellsTheSame(t *testing.T) {
	told := []Event{
		{Kind: Stored, Hashes: []Hash{1, 2, 3}, Tokens: []uint32{1, 2, 3, 4, 5, 6}, BlockSize: 2},
		{Kind: Stored, Hashes: []Hash{4}, Parent: 2, HasParent: true, Tokens: []uint32{7, 8}, BlockSize: 2, Medium: "CPU"},
		{Kind: Removed, Hashes: []Hash{2}},
	}
	x, y := index.New(index.Config{}), index.New(index.Config{})
	a, b := NewView(x, x.Owner("w", 0), 2), NewView(y, y.Owner("w", 0), 2)
	r := NewRecord()
	a.Apply(told)
	r.Apply(told)
	for _, limit := range []int{1, 1 << 20} {
		b.Clear()
		for _, raw := range r.Batches(limit) {
			var batch Batch
			if err := DecodeBatch(&batch, raw); err != nil {
				t.Fatal(err)
			}
			b.Apply(batch.Events)
		}
		oa, _ := x.Lookup("w", 0)
		ob, _ := y.Lookup("w", 0)
		if got, want := y.Blocks(ob), x.Blocks(oa); got != want || want != 2 {
			t.Errorf("at %d bytes a batch: %d blocks, want %d", limit, got, want)
		}
	}
	if r.Blocks() == 0 {
		t.Error("nothing is recorded")
	}
}
