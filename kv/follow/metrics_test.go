package follow

import (
	"encoding/hex"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/lab/testkit"
)

// Each event of a batch is counted once, by its outcome.
func TestEventsAreCountedByWhatCameOfThem(t *testing.T) {
	m := newMetrics(prometheus.NewPedanticRegistry(), func() []SourceStatus {
		return []SourceStatus{{Source: wire.Source{Pool: "m/prefill", Worker: "w", Rank: 0}, State: Recovering, Gaps: 2}}
	})
	f := newNATSSource(sourced(&testkit.Part{}, 4, 0, Config{}, m))
	f.message(1, 1, wire.AppendBatch(nil, &wire.Batch{Events: []wire.Event{
		{Kind: wire.Stored, Hashes: []wire.Hash{1}, Tokens: testkit.IDs(1, 4), BlockSize: 4, Medium: "GPU"},
		{Kind: wire.Stored, Hashes: []wire.Hash{2}, Parent: 1, HasParent: true, Tokens: testkit.IDs(5, 4), BlockSize: 4, Medium: "GPU"},
		{Kind: wire.Stored, Hashes: []wire.Hash{3}, Parent: 99, HasParent: true, Tokens: testkit.IDs(5, 4), BlockSize: 4, Medium: "GPU"},
		{Kind: wire.Stored, Hashes: []wire.Hash{4}, Tokens: testkit.IDs(1, 3), BlockSize: 4, Medium: "GPU"},
		{Kind: wire.Removed, Hashes: []wire.Hash{2}, Medium: "GPU"},
		{Kind: wire.Cleared},
		{Kind: wire.Stored, Hashes: []wire.Hash{5}, Tokens: testkit.IDs(1, 4), BlockSize: 4, Medium: "GPU"},
	}}), false, time.Now())
	for labels, want := range map[[2]string]float64{
		{"stored", "ok"}: 3, {"stored", "parent_block_not_found"}: 1, {"stored", "invalid_block"}: 1, {"removed", "ok"}: 1, {"cleared", "ok"}: 1,
	} {
		assert.Equal(t, want, valueOf(m.applied.WithLabelValues(testkit.Pool, labels[0], labels[1])), labels)
	}
	assert.Equal(t, 1, f.view.Blocks(), "blocks in the view, want the last")
}

// What an engine sends that is not known here is counted, and costs neither its event nor its batch.
func TestUnknownTypesAndFieldsAreCounted(t *testing.T) {
	m := newMetrics(prometheus.NewPedanticRegistry(), func() []SourceStatus { return nil })
	f := newNATSSource(sourced(&testkit.Part{}, 4, 0, Config{}, m))
	const (
		cleared  = "81a474797065b0416c6c426c6f636b73436c6561726564"
		withMore = "82a474797065b0416c6c426c6f636b73436c6561726564a178c3" // x: true
		another  = "81a474797065a3416263"                                 // Abc
	)
	payload, err := hex.DecodeString("930093" + another + withMore + cleared + "00")
	require.NoError(t, err)
	f.message(1, 1, payload, false, time.Now())
	for reason, want := range map[string]float64{"unreadable": 1, "field": 1, "malformed": 0} {
		assert.Equal(t, want, valueOf(m.skipped.WithLabelValues(testkit.Pool, reason)), reason)
	}
	assert.EqualValues(t, 2, f.view.Tally().Cleared, "of the two events that are known were applied")
}

// valueOf reads a counter.
func valueOf(c prometheus.Metric) float64 {
	var m dto.Metric
	if err := c.Write(&m); err != nil {
		panic(err)
	}
	return m.GetCounter().GetValue()
}
