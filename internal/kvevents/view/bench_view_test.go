package view

import (
	"runtime"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/internal/kvevents/eventstest"
	"github.com/tandem-pd/tandem/internal/kvevents/wire"
)

// BenchmarkSnapshot tells a full cache of 671,000 tokens: first the copying, which holds the publisher up, then the
// encoding, which does not.
func BenchmarkSnapshot(b *testing.B) {
	const chains, blocks = 82, 512
	before := heapInUse()
	m := NewRecord()
	for i := range chains {
		m.Apply([]wire.Event{eventstest.Chain(uint32(i), blocks)})
	}
	perBlock := float64(heapInUse()-before) / (chains * blocks)
	b.Run("copy", func(b *testing.B) {
		for b.Loop() {
			m.Image()
		}
		b.ReportMetric(perBlock, "mirror-B/block")
	})
	b.Run("encode", func(b *testing.B) {
		bytes := 0
		for b.Loop() {
			bytes = 0
			for _, page := range m.Image().Batches(512<<10, time.Now(), 0) {
				bytes += len(page)
			}
		}
		b.ReportMetric(float64(bytes), "snapshot-B")
	})
	runtime.KeepAlive(m)
}
