package fault

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/internal/metrics"
)

// states are the words of a circuit's state.
var states = []string{string(Closed), string(HalfOpen), string(Open)}

// Export registers the metric of the circuits, breaker_state.
// The series of a worker end when Forget drops it.
func (b *Breakers) Export(reg prometheus.Registerer) {
	scrape := metrics.In(reg).Snapshot()
	state := scrape.Gauge("breaker_state", "1 for the state of a worker's circuit.", "worker", "leg", "state")
	scrape.Read(func() {
		for _, c := range b.States() {
			if c.Adapter != "" {
				continue // the log names them: their number is no gateway's to bound
			}
			state.OneOf(states, string(c.State), c.Worker, string(c.Leg))
		}
	})
}
