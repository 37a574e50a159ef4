package replica

import (
	"slices"
	"time"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
)

// sight is an immutable summary of the other gateways for the routers.
type sight struct {
	group  *router.Group
	delay  time.Duration     // of the others' messages
	unseen float64           // mean number of the others' bookings that have not arrived yet
	pools  map[pool]bookings // this gateway's own
	all    float64           // the sum of latest
}

type pool struct {
	model string
	role  pools.Role
}

type bookings struct {
	made   uint64
	latest float64 // weighted by age
}

// Unseen implements [router.Peers]: the others' unseen bookings fall on pools as this gateway's own recent ones do.
func (m *Member) Unseen(p *pools.Pool) float64 {
	s := m.seen()
	if s == nil || s.all == 0 {
		return 0
	}
	return s.unseen * s.pools[pool{p.Model, p.Role}].latest / s.all
}

// Delay returns how long messages of the other gateways take.
func (m *Member) Delay() time.Duration {
	if s := m.seen(); s != nil {
		return s.delay
	}
	return 0
}

// Group returns the gateways last known, nil before the first tick.
func (m *Member) Group() *router.Group {
	if s := m.seen(); s != nil {
		return s.group
	}
	return nil
}

func (m *Member) seen() *sight {
	if m == nil {
		return nil
	}
	return m.sight.Load()
}

// fading is the factor per tick for earlier bookings: half after two seconds.
const fading = 0.983

// look renews the sight. The caller holds m.mu.
func (m *Member) look(now time.Time) {
	was, next := m.sight.Load(), &sight{unseen: m.peers.Unseen(), delay: m.peers.Delay(), pools: map[pool]bookings{}}
	names := []string{m.own.Name()}
	for _, p := range m.peers.All(now) {
		names = append(names, p.Name)
	}
	if was == nil {
		was = &sight{}
	}
	if next.group = was.group; was.group == nil || !slices.Equal(was.group.Names, names) {
		next.group = &router.Group{Names: names, Own: m.own.Name()}
		if m.rooms.SetReplicaCount != nil {
			m.rooms.SetReplicaCount(len(names))
		}
	}
	m.rooms.Routers.Each(func(model string, role pools.Role, r *router.Router) {
		b := was.pools[pool{model, role}]
		made := r.Bookings()
		b.latest, b.made = b.latest*fading+float64(max(made, b.made)-b.made), made // an undone pair counts back
		next.pools[pool{model, role}] = b
		next.all += b.latest
	})
	m.sight.Store(next)
}
