package replica

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/internal/metrics"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
)

// Export registers the metrics of the group. Call it after Share.
func (m *Member) Export(reg prometheus.Registerer) {
	s := metrics.In(reg).Snapshot()
	peers := s.Gauge("replica_peers", "Other gateways: whole, waiting, silent, unreachable.", "state")
	delay := s.Gauge("replica_delay_seconds", "One-way delay of messages from the slowest gateway of the group.")
	cutOff := s.Gauge("replica_cut_off", "1 while no other gateway's bookings arrive.")
	events := s.Counter("replica_events_total", "Messages and events between gateways.", "event")
	draws := s.Counter("replica_spread_draws_total", "Workers drawn because others' bookings were not known yet.", "model", "role")
	s.Read(func() {
		states := map[string]int{"whole": 0, "waiting": 0, "silent": 0, "unreachable": 0}
		var slowest time.Duration
		for _, p := range m.Peers() {
			states[p.State]++
			slowest = max(slowest, p.Delay)
		}
		for state, n := range states {
			peers.Set(float64(n), state)
		}
		delay.Set(slowest.Seconds())
		cutOff.Set(metrics.Bool(m.CutOff()))
		c := m.Counts()
		for event, n := range map[string]uint64{
			"heard": c.Applied, "doubled": c.Duplicates, "malformed": c.Malformed, "gap": c.Gaps, "mismatch": c.Mismatches,
			"same_name": c.SameName, "page": c.Pages, "died": c.Died, "expired": c.Expired, "left": c.Left,
		} {
			events.Set(float64(n), event)
		}
		m.rooms.Routers.Each(func(model string, role pools.Role, r *router.Router) {
			draws.Set(float64(r.Draws()), model, string(role))
		})
	})
}

// Counts returns the counts so far.
func (m *Member) Counts() Counts {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.peers == nil {
		return Counts{}
	}
	return m.peers.Counts()
}
