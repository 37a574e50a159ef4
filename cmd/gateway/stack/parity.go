package stack

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/internal/metrics"
	"github.com/tandem-pd/tandem/kv/overlap"
)

// exportParity registers the metrics that compare KV events with answers.
func (g *Gateway) exportParity(reg prometheus.Registerer) {
	scrape := metrics.In(reg).Snapshot()
	samples := scrape.Counter("kv_parity_samples_total",
		"Answers whose cached tokens were compared with the worker's KV events, by pool and verdict: right, over, under or moved.",
		"pool", "verdict")
	marked := scrape.Gauge("kv_parity_marked_ranks",
		"Ranks whose cache is predicted because their KV events disagree with their answers, by pool.", "pool")
	scrape.Read(func() {
		for _, p := range g.Roster.Pools() {
			seen, ok := g.routers.For(p.Model, p.Role).Sources().Parity()
			if !ok {
				continue
			}
			for v, n := range map[overlap.Verdict]uint64{
				overlap.Right: seen.Right, overlap.Over: seen.Over, overlap.Under: seen.Under, overlap.Moved: seen.Moved,
			} {
				samples.Set(float64(n), p.Name(), v.String())
			}
			marked.Set(float64(seen.Marked), p.Name())
		}
	})
}
