package simulate

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/load"
	"github.com/tandem-pd/tandem/router/replica"
)

// Replicas are the gateways of a run and what they share.
type Replicas struct {
	// Count is how many there are; 0 means 1. Each request goes to one that is drawn by Seed.
	Count int
	Seed  uint64
	// Staleness is how long a message takes from one gateway to another.
	Staleness time.Duration
	// Loss is the share of messages that get lost.
	Loss float64
	// Off gives each gateway only its own bookings, and no others in its group. Away is the same with a known group of
	// silent gateways: they divide the workers.
	Off, Away bool
	// SpreadOff makes a choice ignore bookings that are on their way.
	SpreadOff bool
}

// makeReplicas reads the number of gateways and what they share.
func (v *Variant) makeReplicas() (err error) {
	p := &v.plan
	v.replicas = Replicas{Count: p.Replicas, Loss: p.Loss, Off: p.Staleness == "off", Away: p.Staleness == "away",
		SpreadOff: p.Spread == "off"}
	switch {
	case p.Replicas < 0 || p.Replicas > 100:
		return v.doc.Errorf("replicas", "%d is not between 1 and 100", p.Replicas)
	case !(p.Loss >= 0 && p.Loss < 1):
		return v.doc.Errorf("loss", "%v is not a share from 0 to below 1", p.Loss)
	case !slices.Contains([]string{"", "fill", "off"}, p.Spread):
		return v.doc.Errorf("spread", "%q is neither fill nor off", p.Spread)
	case v.replicas.Off || v.replicas.Away:
		return nil
	}
	if v.replicas.Staleness, err = time.ParseDuration(cmp.Or(p.Staleness, "0.5ms")); err != nil || v.replicas.Staleness < 0 {
		return v.doc.Errorf("staleness", "%q is neither a duration, as 0.5ms, nor off or away", p.Staleness)
	}
	return nil
}

// deal draws the gateway of a request.
func (p *Replicas) deal(id string) int32 {
	if p.Count < 2 {
		return 0
	}
	return int32(xxh3.HashStringSeed(id, p.Seed) % uint64(p.Count))
}

// member is a gateway's part in sharing bookings.
type member struct {
	gateway *gateway
	plan    *Replicas
	group   router.Group
	own     *replica.Local
	peers   *replica.Peers
	rng     *rand.Rand // of what gets lost
	booked  map[pools.Role]float64
	due     int64 // when its next delta is on the agenda; −1 for never
	ticks   int
	unseen  float64 // by the latest tick
	fell    bool    // what was heard made room
	effects []replica.Effect
}

// letter is a message on its way from one gateway to another.
type letter struct {
	from, to int32
	data     []byte
	asks     bool // for a page after this slot
	after    replica.Slot
}

// ticking is between two ticks of a gateway, and tail how long a release waits to be batched with a booking.
const (
	ticking = replica.BeatEvery / 4
	tail    = 5 * time.Millisecond
)

// sharing ties a gateway's routers to the others.
func (g *gateway) sharing(configs map[pools.Role]router.Config) map[pools.Role]router.Config {
	plan, r := &g.run.cfg.Replicas, g.run
	if plan.Count < 2 || plan.Off {
		return configs
	}
	m := &member{gateway: g, plan: plan, booked: map[pools.Role]float64{}, due: never, rng: rand.New(rand.NewPCG(plan.Seed, uint64(g.number)))}
	for i := range plan.Count {
		m.group.Names = append(m.group.Names, "gateway-"+strconv.Itoa(i))
	}
	m.group.Own = m.group.Names[g.number]
	m.own = replica.NewLocal(m.group.Own, 1)
	m.peers = replica.NewPeers(replica.Config{Join: time.Second, Expire: 10 * time.Second}, m.own, m, r.epoch)
	g.member = m
	for role, c := range configs { // a copy of this run's own
		c.Peers = m
		c.OnBooking = func(made bool) { m.changed(role, made) }
		configs[role] = c
	}
	r.agenda.add(event{at: int64(ticking) * int64(g.number) / int64(plan.Count), what: tick, who: g.number})
	return configs
}

// ApplyShares implements [replica.Books].
func (m *member) ApplyShares(peer, model string, role pools.Role, shares []load.Shared, now time.Time) {
	m.fell = m.gateway.routers.For(model, role).ApplyShares(peer, shares, now) || m.fell
}

// ApplySent implements [replica.Books].
func (m *member) ApplySent(s replica.SlotSent, now time.Time) {
	fleet := &m.gateway.run.fleet
	pool := map[pools.Role]*pools.Pool{pools.Prefill: fleet.Prefill, pools.Decode: fleet.Decode, pools.Both: fleet.Both}[s.Role]
	m.gateway.routers.For(s.Model, s.Role).ApplySent(pool, router.Sent{Worker: s.Worker, Rank: s.Rank, Text: s.Text, Hashes: s.Hashes}, now)
}

// ApplyOpened implements [replica.Books]: no simulated worker fails.
func (m *member) ApplyOpened(string, replica.Slot) {}

// ApplyHeads implements [replica.Books]: no simulated request has a strict priority.
func (m *member) ApplyHeads(string, string, []queue.Head, time.Time) {}

// ApplyBound implements [replica.Books].
func (m *member) ApplyBound(b replica.PoolBound, now time.Time) {
	m.gateway.routers.For(b.Model, b.Role).ApplyBindings(b.Clock, b.Bindings, now)
}

// Unseen implements [router.Peers]: the peers' bookings fall on pools as this gateway's do.
func (m *member) Unseen(p *pools.Pool) float64 {
	if m.plan.SpreadOff || m.plan.Away {
		return 0
	}
	all := 0.0
	for _, role := range roles {
		all += m.booked[role]
	}
	return m.unseen * ratio(m.booked[p.Role], all)
}

// Delay implements [router.Peers].
func (m *member) Delay() time.Duration {
	if m.plan.SpreadOff || m.plan.Away {
		return 0
	}
	return m.peers.Delay()
}

// Group implements [router.Peers].
func (m *member) Group() *router.Group { return &m.group }

// CutOff implements [router.Peers].
func (m *member) CutOff() bool { return m.plan.Away }

// roles are those of pools, in the order in which a gateway reports them.
var roles = []pools.Role{pools.Prefill, pools.Decode, pools.Both}

// changed schedules the gateway's delta for the end of the present instant.
func (m *member) changed(role pools.Role, made bool) {
	r := m.gateway.run
	at := r.now + int64(tail)
	if made {
		m.booked[role]++
		m.own.Booked(1)
		at = r.now
	}
	if m.due == never || at < m.due {
		m.due = at
		r.agenda.add(event{at: at, what: publish, who: m.gateway.number})
	}
}

// publishDelta publishes the changes.
func (m *member) publishDelta() {
	m.due = never
	now := m.gateway.run.at(m.gateway.run.now)
	for _, role := range roles {
		in := m.gateway.routers.For(Model, role)
		for _, s := range in.Sends() {
			m.own.Sent(replica.Slot{Model: Model, Role: role, Worker: s.Worker, Rank: s.Rank}, s.Text, s.Hashes)
		}
		in.BindingDeltas(now, func(clock int64, all []load.SessionBinding) { m.own.Bound(Model, role, clock, all) })
		in.Changes(now, func(s load.Shared) {
			m.own.Set(replica.Slot{Model: Model, Role: role, Worker: s.Worker, Rank: s.Rank}, s.Share)
		})
	}
	for text := m.own.Delta(); text != nil; text = m.own.Delta() {
		m.publish(slices.Clone(text))
	}
}

// publish sends a message to every other gateway.
func (m *member) publish(text []byte) {
	for to := range int32(m.plan.Count) {
		if to != m.gateway.number {
			m.send(letter{from: m.gateway.number, to: to, data: text})
		}
	}
}

// send puts a letter on its way, unless it gets lost.
func (m *member) send(l letter) {
	r := m.gateway.run
	if m.plan.Away || m.plan.Loss > 0 && m.rng.Float64() < m.plan.Loss {
		return
	}
	var at int32
	if last := len(r.unused) - 1; last >= 0 {
		at, r.unused = r.unused[last], r.unused[:last]
	} else {
		at = int32(len(r.letters))
		r.letters = append(r.letters, letter{})
	}
	r.letters[at] = l
	r.agenda.add(event{at: r.now + int64(m.plan.Staleness), what: receive, who: at})
}

// tick runs due work, and sends a heartbeat when due.
func (m *member) tick() {
	r := m.gateway.run
	if m.ticks++; m.ticks%int(replica.BeatEvery/ticking) == 0 {
		m.beat()
	}
	m.effects = m.peers.Tick(r.at(r.now), !m.plan.Away, m.effects[:0])
	m.unseen = m.peers.Unseen()
	m.follow()
	r.agenda.add(event{at: r.now + int64(ticking), what: tick, who: m.gateway.number})
}

// beat sends a heartbeat, after a delta of all changes.
func (m *member) beat() {
	m.publishDelta()
	now := m.gateway.run.at(m.gateway.run.now)
	m.publish(m.own.Heartbeat(m.group.Own, m.peers.Stamp(now), m.peers.Echoes(now)))
}

// deliver passes a letter to a gateway. Releases in it may free room here.
func (r *run) deliver(at int32) {
	l := r.letters[at]
	r.letters[at] = letter{}
	r.unused = append(r.unused, at)
	m := r.gateways[l.to].member
	if l.asks {
		m.publishDelta()
		m.send(letter{from: l.to, to: l.from, data: m.own.Page(l.after)})
		return
	}
	m.effects, _ = m.peers.Receive(m.group.Names[l.from], l.data, r.at(r.now), m.effects[:0]) // what a gateway sends can be read
	m.follow()
	if m.fell {
		m.fell = false
		m.gateway.drain()
	}
}

// follow applies the protocol's effects. All gateways live.
func (m *member) follow() {
	for _, e := range m.effects {
		switch e.Do {
		case replica.RequestPage:
			m.send(letter{from: m.gateway.number, to: int32(slices.Index(m.group.Names, e.Peer)), asks: true, after: e.After})
		case replica.Welcome:
			m.beat()
		case replica.Dial:
			m.peers.Dialled(e.Peer, replica.Answered, m.gateway.run.at(m.gateway.run.now), nil)
		}
	}
}
