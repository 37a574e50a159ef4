package wire

import (
	"testing"
)

// TestListsFollowTheBlocks: an event that says something of more blocks than it names is none.
func TestListsFollowTheBlocks(t *testing.T) {
	for name, e := range map[string]Event{
		"extra keys":  {ExtraKeys: make([][]ExtraKey, 3)},
		"mm keys":     {MMKeys: make([][]MMKey, 3)},
		"look-aheads": {Lookahead: make([][]uint32, 3)},
	} {
		e.Kind, e.Hashes, e.Tokens, e.BlockSize = Stored, []Hash{1, 2}, make([]uint32, 32), 16
		good := Event{Kind: Removed, Hashes: []Hash{9}}
		var b Batch
		if err := DecodeBatch(&b, AppendBatch(nil, &Batch{Events: []Event{e, good}})); err != nil {
			t.Fatal(err)
		}
		if b.Skipped != 1 || len(b.Events) != 1 || b.Events[0].Kind != Removed {
			t.Errorf("%s: %d events, %d skipped", name, len(b.Events), b.Skipped)
		}
	}
}
