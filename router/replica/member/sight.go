package member

import (
	"slices"
	"time"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
)

// sight is what the routers are answered about the other gateways. It is not written to once it is there.
type sight struct {
	group  *router.Group
	delay  time.Duration     // of the others' words
	unseen float64           // bookings of the others that are made and not known here, on average
	pools  map[pool]bookings // of this gateway's own
	all    float64           // the sum of their latest
}

type pool struct {
	model string
	role  pools.Role
}

type bookings struct {
	made   uint64
	latest float64 // those long ago for less
}

// Unseen is how many bookings of the other gateways are made in all pools, on average, that are not known here yet.
func (m *Member) Unseen() float64 {
	if s := m.seen(); s != nil {
		return s.unseen
	}
	return 0
}

// UnseenIn is the part of [Member.Unseen] in p: the others' bookings fall on pools as this gateway's own lately did.
func (m *Member) UnseenIn(p *pools.Pool) float64 {
	s := m.seen()
	if s == nil || s.all == 0 {
		return 0
	}
	return s.unseen * s.pools[pool{p.Model, p.Role}].latest / s.all
}

// Delay is how long words of the other gateways take.
func (m *Member) Delay() time.Duration {
	if s := m.seen(); s != nil {
		return s.delay
	}
	return 0
}

// Among is the gateways last known; nil before any was looked for.
func (m *Member) Among() *router.Group {
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

// fading is what a tick leaves of how much earlier bookings count: half of them after two seconds.
const fading = 0.983

// look renews what the routers are answered. The caller holds m.mu.
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
		if m.rooms.Among != nil {
			m.rooms.Among(len(names))
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
