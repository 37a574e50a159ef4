package replica

import (
	"context"
	"slices"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tandem-pd/tandem/internal/guard"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/load"
)

// effect carries out an effect. The caller holds m.mu.
func (m *Member) effect(ctx context.Context, e Effect) {
	switch e.Do {
	case RequestPage:
		m.call(func() { m.ask(ctx, e.Peer, e.After) })
	case Dial:
		m.call(func() {
			v := dial(ctx, e.Addr)
			m.with(ctx, func(do []Effect) []Effect { return m.peers.Dialled(e.Peer, v, time.Now(), do) })
		})
	case Welcome:
		m.heartbeatLocked()
		m.rooms.Routers.Each(func(_ string, _ pools.Role, r *router.Router) { r.ResendBindings(time.Now()) })
	case SameName:
		m.log.Error("replica name in use by another gateway; the others count the later one's bookings (the name is host and port)",
			"replica", e.Peer)
	case Misnamed:
		m.log.Warn("messages of a gateway dropped: they bear another gateway's name", "replica", e.Peer)
	case OtherVersion:
		m.log.Warn("gateway runs a build with another protocol: bookings are not shared with it", "replica", e.Peer)
	case Joined:
		m.alone.Store(false)
		m.HeadsChanged() // the new gateway has none of them
		m.log.Info("gateway joined the group", "replica", e.Peer)
	case Quiet:
		m.log.Warn("no message from a gateway; probing its address", "replica", e.Peer, "silent_for", e.Age, "requests",
			e.Requests, "blocks", e.ActiveBlocks)
	case Back:
		m.log.Info("gateway sends messages again", "replica", e.Peer, "silent_for", e.Age, "requests", e.Requests, "blocks", e.ActiveBlocks)
	case Died:
		m.log.Warn("gateway died; its bookings were dropped", "replica", e.Peer, "silent_for", e.Age, "requests", e.Requests,
			"blocks", e.ActiveBlocks)
	case Expired:
		m.log.Warn("gateway expired; its bookings were dropped", "replica", e.Peer,
			"silent_for", e.Age, "requests", e.Requests, "blocks", e.ActiveBlocks, "replica_expire", m.cfg.Expire)
	case Left:
		m.log.Info("gateway drained and left the group", "replica", e.Peer)
	}
}

// call runs f in a goroutine that Run waits for.
func (m *Member) call(f func()) {
	m.calls.Add(1)
	go func() {
		defer m.calls.Done()
		guard.Do(m.log, "replica", f)
	}()
}

// ask requests a page of a gateway's bookings.
func (m *Member) ask(ctx context.Context, name string, after Slot) {
	ctx, cancel := context.WithTimeout(ctx, answer)
	defer cancel()
	page, err := m.link.Request(ctx, &nats.Msg{Subject: m.cfg.pageRequests(m.token(), token(name)), Data: m.own.PageRequest(after)})
	if err != nil {
		m.log.Debug("bookings of another gateway not received", "replica", name, "error", err)
		return // the core requests it again
	}
	m.receive(ctx, name, page.Data)
}

// reply answers a request for a page.
func (m *Member) reply(msg *nats.Msg) {
	after, err := readPageRequest(msg.Data)
	if err != nil || msg.Reply == "" {
		return
	}
	page := m.page(after)
	if err := m.link.Publish(&nats.Msg{Subject: msg.Reply, Data: page}); err != nil {
		m.log.Debug("bookings not sent to another gateway", "error", err)
	}
}

// page returns this gateway's bookings after a slot.
func (m *Member) page(after Slot) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.publishDeltaLocked()
	return m.own.Page(after)
}

// books applies messages of other gateways. Callers of its methods hold m.mu.
type memberBooks Member

func (b *memberBooks) ApplyShares(peer, model string, role pools.Role, shares []load.Shared, now time.Time) {
	if b.rooms.Routers.For(model, role).ApplyShares(peer, shares, now) && !slices.Contains(b.woken, model) {
		b.woken = append(b.woken, model)
	}
}

func (b *memberBooks) ApplySent(s SlotSent, now time.Time) {
	b.rooms.Routers.For(s.Model, s.Role).ApplySent(b.rooms.Pool(s.Model, s.Role),
		router.Sent{Worker: s.Worker, Rank: s.Rank, Text: s.Text, Hashes: s.Hashes}, now)
}

func (b *memberBooks) ApplyOpened(peer string, slot Slot) {
	b.log.Info("another gateway reports failures of a worker; its next failure here opens its circuit", "worker",
		slot.Worker, "leg", string(slot.Role), "replica", peer)
	b.rooms.Warn(slot.Worker, slot.Role)
}

func (b *memberBooks) ApplyHeads(peer, model string, heads []queue.Head, _ time.Time) {
	if len(heads) > 0 {
		b.leaves.Store(2)
	}
	if b.rooms.ApplyHeads(peer, model, heads) && !slices.Contains(b.woken, model) {
		b.woken = append(b.woken, model)
	}
}

func (b *memberBooks) ApplyBound(bound PoolBound, now time.Time) {
	b.rooms.Routers.For(bound.Model, bound.Role).ApplyBindings(bound.Clock, bound.Bindings, now)
}
