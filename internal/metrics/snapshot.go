package metrics

import (
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Snapshot is a group of metrics whose values one function reads at each scrape. Define its metrics, then call Read.
type Snapshot struct {
	set    Set
	values []*Value

	mu   sync.Mutex // one scrape at a time; guards read's work and out
	read func()
	out  []prometheus.Metric
}

// Value is one metric of a Snapshot.
type Value struct {
	of   *Snapshot
	desc *prometheus.Desc
	kind prometheus.ValueType
}

// Snapshot begins a group of metrics.
func (s Set) Snapshot() *Snapshot { return &Snapshot{set: s} }

// Gauge defines a gauge of the group.
func (s *Snapshot) Gauge(name, help string, labels ...string) *Value {
	return s.define(prometheus.GaugeValue, name, help, labels)
}

// Counter defines a counter of the group: a value that only grows.
func (s *Snapshot) Counter(name, help string, labels ...string) *Value {
	return s.define(prometheus.CounterValue, name, help, labels)
}

func (s *Snapshot) define(kind prometheus.ValueType, name, help string, labels []string) *Value {
	v := &Value{s, prometheus.NewDesc(name, help, labels, nil), kind}
	s.values = append(s.values, v)
	return v
}

// Read registers the group. read is called at each scrape, by one scrape at a time,
// and calls Set or OneOf for each series; a series that it leaves out is absent.
func (s *Snapshot) Read(read func()) {
	s.read = read
	register(s.set, prometheus.Collector(s))
}

// Describe implements prometheus.Collector.
func (s *Snapshot) Describe(ch chan<- *prometheus.Desc) {
	for _, v := range s.values {
		ch <- v.desc
	}
}

// Collect implements prometheus.Collector.
func (s *Snapshot) Collect(ch chan<- prometheus.Metric) {
	s.mu.Lock()
	s.out = s.out[:0]
	s.read()
	out := slices.Clone(s.out)
	s.mu.Unlock()
	for _, m := range out {
		ch <- m
	}
}

// Set gives the scrape the value of one series. Only the function of Read calls it.
func (v *Value) Set(value float64, labels ...string) {
	v.of.out = append(v.of.out, prometheus.MustNewConstMetric(v.desc, v.kind, value, labels...))
}

// OneOf gives the scrape one series for each word, which is the last label: 1 for the word that is, 0 for the others.
func (v *Value) OneOf(words []string, is string, labels ...string) {
	for _, word := range words {
		v.Set(Bool(word == is), append(slices.Clone(labels), word)...)
	}
}
