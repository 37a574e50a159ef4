// Package metrics makes and registers a package's Prometheus metrics. Values of other parts are read at the scrape: see
// [Snapshot].
package metrics

import "github.com/prometheus/client_golang/prometheus"

// Set makes metrics and registers them.
type Set struct{ reg prometheus.Registerer }

// In returns a Set that registers with reg. Where reg is nil the metrics count and
// are registered nowhere. A name that is registered already is a panic.
func In(reg prometheus.Registerer) Set { return Set{reg} }

// Counter makes a counter. Without labels, its one series is WithLabelValues().
func (s Set) Counter(name, help string, labels ...string) *prometheus.CounterVec {
	return register(s, prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels))
}

// Gauge makes a gauge.
func (s Set) Gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	return register(s, prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels))
}

// Histogram makes a histogram with the buckets' upper bounds.
func (s Set) Histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return register(s, prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels))
}

func register[C prometheus.Collector](s Set, c C) C {
	if s.reg != nil {
		s.reg.MustRegister(c)
	}
	return c
}

// Bool is a gauge's value of a condition: 1 if it holds, 0 if not.
func Bool(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
