package fault

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/internal/metrics"
)

// States are the words of a circuit's state.
var States = []string{string(Closed), string(HalfOpen), string(Open)}

// Export registers the metrics of the circuits: breaker_state and breaker_opened_total.
// The series of a worker end when Forget drops it.
func (b *Breakers) Export(reg prometheus.Registerer) {
	scrape := metrics.In(reg).Snapshot()
	state := scrape.Gauge("breaker_state", "1 for the state of a worker's circuit.", "worker", "leg", "state")
	opened := scrape.Counter("breaker_opened_total", "Times that a worker's circuit opened, by worker and leg.", "worker", "leg")
	scrape.Read(func() {
		for _, c := range b.States() {
			if c.Adapter != "" {
				continue // the log names them: their number is no gateway's to bound
			}
			state.OneOf(States, string(c.State), c.Worker, string(c.Leg))
			opened.Set(float64(c.Opened), c.Worker, string(c.Leg))
		}
	})
}
