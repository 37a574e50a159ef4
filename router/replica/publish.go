package replica

import (
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/load"
)

// publishDelta sends what has changed.
func (m *Member) publishDelta() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.publishDeltaLocked()
}

func (m *Member) publishDeltaLocked() {
	m.ended.Store(false)
	m.own.Booked(int(m.made.Swap(0)))
	now := time.Now()
	m.rooms.Routers.Each(func(model string, role pools.Role, r *router.Router) {
		for _, s := range r.Sends() {
			if !m.alone.Load() {
				m.own.Sent(Slot{Model: model, Role: role, Worker: s.Worker, Rank: s.Rank}, s.Text, s.Hashes)
			}
		}
		r.BindingDeltas(now, func(clock int64, all []load.SessionBinding) {
			if !m.alone.Load() {
				m.own.Bound(model, role, clock, all)
			}
		})
		r.Changes(now, func(s load.Shared) {
			m.own.Set(Slot{Model: model, Role: role, Worker: s.Worker, Rank: s.Rank}, s.Share)
		})
	})
	for data := m.own.Delta(); data != nil; data = m.own.Delta() {
		m.publish(data)
	}
}

// publishHeads sends the heads of the queues if due, and sets the timer of the next. Bookings go first: a peer that
// sees a request leave the queue must know what it got.
func (m *Member) publishHeads(next *time.Timer) {
	heads := m.rooms.Heads()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.publishDeltaLocked()
	data, again := m.own.Heads(heads, time.Now())
	if data != nil {
		m.publish(data)
	}
	if again.IsZero() {
		next.Stop()
	} else {
		next.Reset(time.Until(again))
	}
}

// heartbeat sends what has changed, and then a digest of all.
func (m *Member) heartbeat() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.heartbeatLocked()
}

func (m *Member) heartbeatLocked() {
	m.publishDeltaLocked()
	now := time.Now()
	m.rooms.Routers.Each(func(model string, role pools.Role, r *router.Router) { m.own.Clock(model, role, r.BindingsClock(now)) })
	m.publish(m.own.Heartbeat(m.rooms.Addr(), m.peers.Stamp(now), m.peers.Echoes(now)))
}

// publish sends a message to all. It is not kept while NATS is disconnected: the others request what they missed.
func (m *Member) publish(data []byte) { m.send(m.cfg.deltas(m.token()), data) }

func (m *Member) send(subject string, data []byte) {
	if m.stopped || !m.link.Connected() {
		return
	}
	if err := m.link.Publish(&nats.Msg{Subject: subject, Data: data}); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		m.log.Debug("message to the other gateways not sent", "error", err)
	}
}
