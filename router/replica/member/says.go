package member

import (
	"errors"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/affinity"
	"github.com/tandem-pd/tandem/router/load"
	"github.com/tandem-pd/tandem/router/replica"
)

// say says what has changed.
func (m *Member) say() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sayLocked()
}

func (m *Member) sayLocked() {
	m.ended.Store(false)
	m.own.Booked(int(m.made.Swap(0)))
	now := time.Now()
	m.rooms.Routers.Each(func(model string, role pools.Role, r *router.Router) {
		for _, s := range r.Sends() {
			if !m.alone.Load() {
				m.own.Sent(replica.Slot{Model: model, Role: role, Worker: s.Worker, Rank: s.Rank}, s.Text, s.Hashes)
			}
		}
		r.SayBindings(now, func(clock int64, all []affinity.Binding) {
			if !m.alone.Load() {
				m.own.Bound(model, role, clock, all)
			}
		})
		r.Changes(now, func(s load.Shared) {
			m.own.Set(replica.Slot{Model: model, Role: role, Worker: s.Worker, Rank: s.Rank}, s.Share)
		})
	})
	for data := m.own.Say(); data != nil; data = m.own.Say() {
		m.publish(data)
	}
}

// sayHeads says which requests wait here, where that is due, and sets the time when it may be due again. What is booked is said before: who
// hears that a request waits no longer has to know what it has got.
func (m *Member) sayHeads(next *time.Timer) {
	heads := m.rooms.Heads()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sayLocked()
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

// beat says what has changed, and that all has been said.
func (m *Member) beat() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.beatLocked()
}

func (m *Member) beatLocked() {
	m.sayLocked()
	now := time.Now()
	m.rooms.Routers.Each(func(model string, role pools.Role, r *router.Router) { m.own.Clock(model, role, r.BindingsClock(now)) })
	m.publish(m.own.Beat(m.rooms.Addr(), m.peers.Stamp(now), m.peers.Echoes(now)))
}

// publish sends a message to all. While none passes it is not kept: the others ask for what they have missed.
func (m *Member) publish(data []byte) { m.send(m.cfg.said(m.token()), data) }

// send sends a message.
func (m *Member) send(subject string, data []byte) {
	if m.stopped || !m.link.Connected() {
		return
	}
	if err := m.link.Publish(&nats.Msg{Subject: subject, Data: data}); err != nil && !errors.Is(err, nats.ErrConnectionClosed) {
		m.log.Debug("message to the other gateways not sent", "error", err)
	}
}
