package engine

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/tandem-pd/tandem/internal/metrics"
)

// counters are the engine's metrics, under its own names, in a registry of their own:
// several engines may run in one process.
type counters struct {
	registry  *prometheus.Registry
	ttft, itl prometheus.Observer

	own    metrics.Set // adds the engine's labels
	plain  metrics.Set // adds none
	scrape *metrics.Snapshot
	reads  []func(*Core)
}

// newCounters makes an empty set whose metrics carry the labels. Its dialect adds metrics, and sets ttft and itl.
func newCounters(s *Server, labels prometheus.Labels) *counters {
	m := &counters{registry: prometheus.NewRegistry()}
	m.plain = metrics.In(m.registry)
	m.own = metrics.In(prometheus.WrapRegistererWith(labels, m.registry))
	m.scrape = m.own.Snapshot()
	m.scrape.Read(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, read := range m.reads {
			read(s.core)
		}
	})
	return m
}

// gauge adds a present value, read from the core at each scrape.
func (m *counters) gauge(name, help string, get func(*Core) float64) {
	v := m.scrape.Gauge(name, help)
	m.reads = append(m.reads, func(c *Core) { v.Set(get(c)) })
}

// counter adds a count since the engine began.
func (m *counters) counter(name, help string, get func(Stats) uint64) {
	v := m.scrape.Counter(name, help)
	m.reads = append(m.reads, func(c *Core) { v.Set(float64(get(c.stats))) })
}

// observe times a token.
func (m *counters) observe(t *ticket, o *Output, now time.Time) {
	switch {
	case o.Reason == Aborted || o.Reason == LoadFailed:
	case o.Generated == 1:
		m.ttft.Observe(now.Sub(t.arrival).Seconds())
	default:
		m.itl.Observe(now.Sub(t.last).Seconds())
	}
}
