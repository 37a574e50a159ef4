package events

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/router/index"
)

// Each event of a batch is counted once, by what came of it; and a batch that is
// counted leaves the view as one that is not.
func TestEventsAreCountedByWhatCameOfThem(t *testing.T) {
	idx := index.New(index.Config{})
	v := NewView(idx, idx.Owner("w", 0), 4)
	m := newMetrics(prometheus.NewPedanticRegistry(), func() []SourceStatus {
		return []SourceStatus{{Source: Source{"m/prefill", "w", 0}, State: Recovering, Gaps: 2, Blocks: 3}}
	})
	m.pool("m/prefill").apply(v, []Event{
		{Kind: Stored, Hashes: []Hash{1}, Tokens: ids(1, 4), BlockSize: 4, Medium: "GPU"},
		{Kind: Stored, Hashes: []Hash{2}, Parent: 1, HasParent: true, Tokens: ids(5, 4), BlockSize: 4, Medium: "GPU"},
		{Kind: Stored, Hashes: []Hash{3}, Parent: 99, HasParent: true, Tokens: ids(5, 4), BlockSize: 4, Medium: "GPU"},
		{Kind: Stored, Hashes: []Hash{4}, Tokens: ids(1, 3), BlockSize: 4, Medium: "GPU"},
		{Kind: Removed, Hashes: []Hash{2}, Medium: "GPU"},
		{Kind: Cleared},
		{Kind: Stored, Hashes: []Hash{5}, Tokens: ids(1, 4), BlockSize: 4, Medium: "GPU"},
	})
	for _, tt := range []struct {
		event, status string
		want          float64
	}{
		{"stored", "ok", 3}, {"stored", "parent_block_not_found", 1}, {"stored", "invalid_block", 1},
		{"removed", "ok", 1}, {"cleared", "ok", 1},
	} {
		if got := valueOf(m.applied.WithLabelValues("m/prefill", tt.event, tt.status)); got != tt.want {
			t.Errorf("%s %s: %v, want %v", tt.event, tt.status, got, tt.want)
		}
	}
	if v.Blocks() != 1 {
		t.Errorf("%d blocks in the view, want the last", v.Blocks())
	}
}
