package stack

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/events"
)

// engineBlock is how many tokens a block of a rank's engine has, as its events
// say; 0 unknown. It is called by routers, where an answer is not what was
// believed.
func (g *Gateway) engineBlock(w *pools.Worker, rank int) int {
	if g.subscriber == nil {
		return 0
	}
	pool := pools.Pool{Model: w.Model, Role: w.Role}
	s, _ := g.subscriber.Source(events.Source{Pool: pool.Name(), Worker: w.ID, Rank: rank})
	return s.BlockSize
}

// parityCollector exports, at the scrape, how KV events compare with answers.
type parityCollector struct{ g *Gateway }

var (
	paritySamples = prometheus.NewDesc("kv_parity_samples_total",
		"Answers whose cached tokens were compared with what the worker's KV events had said, by verdict.", []string{"pool", "verdict"}, nil)
	parityMarked = prometheus.NewDesc("kv_parity_marked_ranks",
		"Ranks that are predicted because their KV events are not what their answers say.", []string{"pool"}, nil)
)

// Describe implements prometheus.Collector.
func (parityCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- paritySamples
	ch <- parityMarked
}

// Collect implements prometheus.Collector.
func (c parityCollector) Collect(ch chan<- prometheus.Metric) {
	for _, p := range c.g.Roster.Pools() {
		pool := p.Name()
		seen, ok := c.g.routers.For(p.Model, p.Role).Compared()
		if !ok {
			continue
		}
		counts := map[router.Verdict]uint64{router.Right: seen.Right, router.Over: seen.Over, router.Under: seen.Under, router.Moved: seen.Moved}
		for _, v := range router.Verdicts() {
			ch <- prometheus.MustNewConstMetric(paritySamples, prometheus.CounterValue, float64(counts[v]), pool, v.String())
		}
		ch <- prometheus.MustNewConstMetric(parityMarked, prometheus.GaugeValue, float64(seen.Marked), pool)
	}
}

// sourceReport is how the router stands with one source.
func (g *Gateway) sourceReport(s events.SourceStatus) sourceReport {
	out := reportOf(s)
	if s.State == events.Predicted {
		out.Reason = "loss"
	}
	if p, ok := g.router(s.Source.Pool).Parity(router.Rank{Worker: s.Source.Worker, Rank: s.Source.Rank}); ok {
		if out.Parity = &p; p.Marked && out.Reason == "" {
			out.State, out.Reason = events.Predicted.String(), "parity"
		}
	}
	return out
}
