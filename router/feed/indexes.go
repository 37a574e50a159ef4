package feed

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/internal/metrics"
	"github.com/tandem-pd/tandem/kv/index"
)

// EmitIndex exports the size of one index. role is empty for an index shared by the pools of a model.
type EmitIndex func(model, role string, s index.Stats)

// ExportIndexes registers the metrics of index sizes. Each scrape calls read, which emits each index once.
func ExportIndexes(reg prometheus.Registerer, read func(EmitIndex)) {
	labels := []string{"model", "role"}
	scrape := metrics.In(reg).Snapshot()
	held := scrape.Gauge("component_router_index_held_blocks", "Pairs of block and rank in the index; limit 67,108,864.", labels...)
	evicted := scrape.Counter("component_router_index_evicted_blocks_total", "Pairs of block and rank that the index evicted.", labels...)
	scrape.Read(func() {
		read(func(model, role string, s index.Stats) {
			held.Set(float64(s.Held), model, role)
			evicted.Set(float64(s.Evicted), model, role)
		})
	})
}
