package service

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/internal/metrics"
)

// counters are a client's metrics, without the registerer's prefix.
type counters struct {
	lookups *prometheus.HistogramVec // seconds, by outcome
}

// newMetrics registers them, and the indexes' states, with reg, which may be nil.
func newMetrics(reg prometheus.Registerer, states func() []State) *counters {
	set := metrics.In(reg)
	m := &counters{
		lookups: set.Histogram("kv_remote_index_lookup_seconds",
			"Time of a prompt's lookup in the remote index, by outcome. Except for answered, the gateway used its own index.",
			[]float64{.0001, .00025, .0005, .001, .002, .005, .01, .025, .1, 1}, "outcome"),
	}
	for _, o := range outcomes() {
		m.lookups.WithLabelValues(string(o))
	}
	scrape := set.Snapshot()
	ranks := scrape.Gauge("kv_remote_index_ranks", "Ranks of workers that a remote index lists, by index.", "index")
	registered := scrape.Gauge("kv_remote_index_registered",
		"1 while a remote index lists the gateway's workers, 0 while the gateway cannot check or update the list, by index.", "index")
	scrape.Read(func() {
		for _, s := range states() {
			ranks.Set(float64(s.Ranks), s.Index)
			registered.Set(metrics.Bool(s.Error == ""), s.Index)
		}
	})
	return m
}
