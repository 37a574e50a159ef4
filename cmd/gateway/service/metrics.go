package service

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/metrics"
)

// counters are a client's metrics, without the registerer's prefix.
type counters struct {
	lookups       *prometheus.CounterVec // by outcome
	seconds       prometheus.Observer
	registrations *prometheus.CounterVec // by result
}

// newMetrics registers them, and the indexes' states, with reg, which may be nil.
func newMetrics(reg prometheus.Registerer, states func() []State) *counters {
	set := metrics.In(reg)
	m := &counters{
		lookups: set.Counter("kv_remote_index_lookups_total",
			"Lookups of prompts in the remote index, by outcome. Except for answered, the gateway used its own index.", "outcome"),
		seconds: set.Histogram("kv_remote_index_lookup_seconds", "Time of a lookup in the remote index, whatever its outcome.",
			[]float64{.0001, .00025, .0005, .001, .002, .005, .01, .025, .1, 1}).WithLabelValues(),
		registrations: set.Counter("kv_remote_index_registrations_total",
			"Workers registered at remote indexes, by result: registered, unregistered or failed.", "result"),
	}
	for _, o := range outcomes() {
		m.lookups.WithLabelValues(string(o))
	}
	for _, result := range []string{"registered", "unregistered", "failed"} {
		m.registrations.WithLabelValues(result)
	}
	scrape := set.Snapshot()
	circuit := scrape.Gauge("kv_remote_index_circuit", "1 for the state of an index's circuit.", "index", "state")
	ranks := scrape.Gauge("kv_remote_index_ranks", "Ranks of workers that a remote index lists, by index.", "index")
	registered := scrape.Gauge("kv_remote_index_registered",
		"1 while a remote index lists the gateway's workers, 0 while the gateway cannot check or update the list, by index.", "index")
	scrape.Read(func() {
		for _, s := range states() {
			circuit.OneOf(fault.States, string(s.Circuit), s.Index)
			ranks.Set(float64(s.Ranks), s.Index)
			registered.Set(metrics.Bool(s.Error == ""), s.Index)
		}
	})
	return m
}
