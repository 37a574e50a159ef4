package fault

import "github.com/prometheus/client_golang/prometheus"

// Collector exports the breakers: breaker_state, 1 for the state that each worker's leg is in, and
// breaker_opened_total. A worker that is forgotten takes its series along.
func (b *Breakers) Collector() prometheus.Collector {
	labels := []string{"worker", "leg"}
	return &breakerCollector{
		breakers: b,
		state: prometheus.NewDesc("breaker_state",
			"The state of a worker's circuit: 1 for the one it is in, 0 for the others.", append(labels, "state"), nil),
		opened: prometheus.NewDesc("breaker_opened_total",
			"How often a worker's circuit has opened.", labels, nil),
	}
}

type breakerCollector struct {
	breakers      *Breakers
	state, opened *prometheus.Desc
}

// Describe sends the descriptions.
func (m *breakerCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- m.state
	ch <- m.opened
}

// Collect sends the state of every circuit.
func (m *breakerCollector) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.breakers.States() {
		for _, state := range []State{Closed, HalfOpen, Open} {
			in := 0.0
			if c.State == state {
				in = 1
			}
			ch <- prometheus.MustNewConstMetric(m.state, prometheus.GaugeValue, in, c.Worker, string(c.Leg), string(state))
		}
		ch <- prometheus.MustNewConstMetric(m.opened, prometheus.CounterValue, float64(c.Opened), c.Worker, string(c.Leg))
	}
}
