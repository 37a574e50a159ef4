package feed

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/internal/metrics"
	"github.com/tandem-pd/tandem/kv/index"
)

// EmitIndex gives a scrape the size of one index. role is empty for an index that the pools of a model share.
type EmitIndex func(model, role string, s index.Stats)

// ExportIndexes registers the metrics of indexes' sizes. Each scrape calls read, which emits each index once.
func ExportIndexes(reg prometheus.Registerer, read func(EmitIndex)) {
	labels := []string{"model", "role"}
	scrape := metrics.In(reg).Snapshot()
	held := scrape.Gauge("component_router_index_held_blocks", "Pairs of block and rank in the index; limit 67,108,864.", labels...)
	blocks := scrape.Gauge("component_router_index_blocks", "Distinct blocks in an index, by model and role.", labels...)
	owners := scrape.Gauge("component_router_index_owners", "Ranks of workers in an index, by model and role.", labels...)
	holed := scrape.Gauge("component_router_index_holed", "Pairs of rank and tier whose blocks have gaps.", labels...)
	bytes := scrape.Gauge("component_router_index_bytes", "Memory of an index in bytes, by model and role.", labels...)
	evicted := scrape.Counter("component_router_index_evicted_blocks_total", "Pairs of block and rank that the index evicted.", labels...)
	scrape.Read(func() {
		read(func(model, role string, s index.Stats) {
			held.Set(float64(s.Held), model, role)
			blocks.Set(float64(s.Blocks), model, role)
			owners.Set(float64(s.Owners), model, role)
			holed.Set(float64(s.Holed), model, role)
			bytes.Set(float64(s.Bytes), model, role)
			evicted.Set(float64(s.Evicted), model, role)
		})
	})
}
