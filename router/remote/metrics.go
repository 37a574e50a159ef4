package remote

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/fault"
)

// metrics are a client's, their names without the prefix, which is the registerer's.
type metrics struct {
	lookups       *prometheus.CounterVec // by outcome
	seconds       prometheus.Histogram
	registrations *prometheus.CounterVec // by result
}

// newMetrics registers them, and what states returns, with reg, which may be nil.
func newMetrics(reg prometheus.Registerer, states func() []State) *metrics {
	m := &metrics{
		lookups: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kv_remote_index_lookups_total", Help: "Prompts looked up in the remote index, by outcome; of all but answered the gateway used its own knowledge.",
		}, []string{"outcome"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "kv_remote_index_lookup_seconds", Help: "Time of a look-up in the remote index, whatever its outcome.",
			Buckets: []float64{.0001, .00025, .0005, .001, .002, .005, .01, .025, .1, 1},
		}),
		registrations: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kv_remote_index_registrations_total", Help: "Workers told to remote indexes, by result: registered, unregistered, failed.",
		}, []string{"result"}),
	}
	for _, o := range Outcomes() {
		m.lookups.WithLabelValues(string(o))
	}
	for _, result := range []string{"registered", "unregistered", "failed"} {
		m.registrations.WithLabelValues(result)
	}
	if reg != nil {
		reg.MustRegister(m.lookups, m.seconds, m.registrations, collector(states))
	}
	return m
}

// collector exports how each index is doing, at the scrape.
type collector func() []State

var (
	circuitDesc = prometheus.NewDesc("kv_remote_index_circuit",
		"The state of a remote index's circuit: 1 for the one it is in, 0 for the others.", []string{"index", "state"}, nil)
	ranksDesc = prometheus.NewDesc("kv_remote_index_ranks",
		"Ranks of workers that a remote index lists.", []string{"index"}, nil)
	keptDesc = prometheus.NewDesc("kv_remote_index_registered",
		"1 while a remote index lists the gateway's workers as it knows them, 0 while that could not be seen to.", []string{"index"}, nil)
)

// Describe implements prometheus.Collector.
func (collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- circuitDesc
	ch <- ranksDesc
	ch <- keptDesc
}

// Collect implements prometheus.Collector.
func (c collector) Collect(ch chan<- prometheus.Metric) {
	b2f := func(b bool) float64 {
		if b {
			return 1
		}
		return 0
	}
	for _, s := range c() {
		for _, state := range []fault.State{fault.Closed, fault.HalfOpen, fault.Open} {
			ch <- prometheus.MustNewConstMetric(circuitDesc, prometheus.GaugeValue, b2f(s.Circuit == state), s.Index, string(state))
		}
		ch <- prometheus.MustNewConstMetric(ranksDesc, prometheus.GaugeValue, float64(s.Ranks), s.Index)
		ch <- prometheus.MustNewConstMetric(keptDesc, prometheus.GaugeValue, b2f(s.Error == ""), s.Index)
	}
}
