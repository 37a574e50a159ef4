package view

import (
	"testing"
	"time"

	"github.com/tandem-pd/tandem/internal/kvevents/eventstest"
	"github.com/tandem-pd/tandem/internal/kvevents/wire"
)

// A record's batches make an empty view what one is to which every event was applied,
// also for what comes afterwards.
func TestRecordTellsTheSame(t *testing.T) {
	events := []wire.Event{
		{Kind: wire.Stored, Hashes: []wire.Hash{1, 2, 3}, Tokens: []uint32{1, 2, 3, 4, 5, 6}, BlockSize: 2},
		{Kind: wire.Stored, Hashes: []wire.Hash{4}, Parent: 2, HasParent: true, Tokens: []uint32{7, 8}, BlockSize: 2, Medium: "CPU"},
		{Kind: wire.Removed, Hashes: []wire.Hash{2}},
	}
	x, y := &eventstest.Part{}, &eventstest.Part{}
	a, b := New(x, 2), New(y, 2)
	r := NewRecord()
	a.Apply(events)
	r.Apply(events)
	for _, limit := range []int{1, 1 << 20} {
		b.Clear()
		for _, raw := range r.Image().Batches(limit, time.Unix(0, 0), wire.NoRank) {
			var batch wire.Batch
			if err := wire.DecodeBatch(&batch, raw); err != nil {
				t.Fatal(err)
			}
			b.Apply(batch.Events)
		}
		if got, want := y.Blocks(), x.Blocks(); got != want || want != 3 {
			t.Errorf("at %d bytes a batch: %d blocks, want %d", limit, got, want)
		}
	}
	if r.Blocks() == 0 {
		t.Error("nothing is recorded")
	}
}
