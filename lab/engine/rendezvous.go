package engine

import (
	"cmp"
	"errors"
	"slices"
	"time"
)

// Hold is how the blocks of a prefill wait for a decode engine. The zero value is a pull of named blocks under a lease:
// decode comes after prefill has answered, and heartbeats renew the lease.
type Hold struct {
	// Shared is an id that prefill and decode were both given: a transfer id, a room. Decode asks for it with
	// Core.Meet, before or after prefill is here. Empty for blocks that are found under the sequence's own id.
	Shared string
	// For is how long the finished prefill's blocks wait; 0 for Config.Lease.
	For time.Duration
	// GuestFirst, when above 0, keeps the sequence from being computed before a decode engine has asked for it, at most
	// for so long: after that it ends with LoadFailed and ErrNoDecode.
	GuestFirst time.Duration
	// HandFirst hands the first token over with the blocks: it ends the prefill, whatever it is, and decode continues
	// after it. The last output is withheld until the blocks were released. Where they lapse before, the sequence ends
	// with LoadFailed and ErrNoDecode instead.
	HandFirst bool
	// Deaf leaves a decode engine that waits for the blocks without an answer when the
	// prefill ends otherwise than by length: it waits for as long as it will.
	Deaf bool
}

// Met answers a Meet.
type Met struct {
	Guest uint64 // as Meet was given
	// Wait is how long the NIC is busy with others before.
	Wait time.Duration
	// First is the answer's first token, where prefill hands it over.
	First []uint32
	// Cached is how many of the prompt's tokens prefill had cached.
	Cached int
	// Err is nil, ErrNoPrefill, ErrTaken, ErrMismatch, or ErrNotHeld where the
	// prefill has ended without blocks to fetch.
	Err error
}

// Errors of a rendezvous by id.
var (
	// ErrNoPrefill: no prefill of the id was finished in time.
	ErrNoPrefill = errors.New("engine: no prefill of this id was finished in time")
	// ErrNoDecode: no decode engine fetched the blocks of the id in time.
	ErrNoDecode = errors.New("engine: no decode engine fetched the blocks of this id in time")
	// ErrTaken: the id is in use by another request.
	ErrTaken = errors.New("engine: the id is in use by another request")
)

// meeting is the state of one shared id: prefill's half, decode's, or both.
type meeting struct {
	id  string
	seq *sequence // prefill's, until its blocks are pinned or it has ended
	pin *pin
	// guest is the decode engine that waits for the blocks, nil if none does.
	guest *guest
	// came: a decode engine has sent a request, now or before.
	came bool
	// until is when the decode half is forgotten that prefill has not met.
	until time.Time
	// unwanted: decode has ended; nothing is to be pinned.
	unwanted bool
}

// guest is a decode engine's question that was not answered yet.
type guest struct {
	number              uint64
	promptTokens, moved int
}

// Meet is the producer's half of a rendezvous: a decode engine requests the blocks that are held under the shared id,
// or will be. The answer is in a Result's Met, at until at the latest. If the guest gives up, call Gone.
func (c *Core) Meet(id string, promptTokens, moved int, number uint64, until, now time.Time) {
	m := c.meeting(id)
	if m.came {
		c.met(number, 0, ErrTaken)
		return
	}
	m.came = true
	m.guest = &guest{number: number, promptTokens: promptTokens, moved: moved}
	m.until = until
	c.apart = earlier(c.apart, until)
	switch {
	case m.pin != nil:
		c.serve(m, now)
	case m.seq != nil && m.seq.phase == expecting:
		c.expecting = slices.DeleteFunc(c.expecting, func(s *sequence) bool { return s == m.seq })
		m.seq.phase = waiting
		c.waiting.pushBack(m.seq)
	}
}

// Dismiss releases the blocks of a shared id, because decode has them or its request has ended: pinned blocks are
// freed, and blocks in computation will not be pinned. Before prefill arrives this is kept until the time given.
func (c *Core) Dismiss(id string, until, now time.Time) {
	m := c.meeting(id)
	m.came, m.unwanted = true, true
	if m.guest != nil {
		c.turnAway(m, ErrNotHeld)
	}
	switch {
	case m.pin != nil:
		c.unpin(m.pin, nil)
	case m.seq == nil:
		m.until = until
		c.apart = earlier(c.apart, until)
	case m.seq.phase == expecting:
		c.fail(m.seq, ErrNoDecode)
	}
}

// Gone reports that the decode engine of a Meet has left. A waiting one is dropped; promised blocks it may be reading,
// and that ends as transfers do.
func (c *Core) Gone(id string, number uint64, until, now time.Time) {
	if m := c.meetings[id]; m != nil && m.guest != nil && m.guest.number == number {
		c.Dismiss(id, until, now)
	}
}

// meeting is the one of an id, made if there is none.
func (c *Core) meeting(id string) *meeting {
	m, ok := c.meetings[id]
	if !ok {
		m = &meeting{id: id}
		c.meetings[id] = m
	}
	return m
}

// join adds prefill's half to a meeting, or refuses an id that is in use.
func (c *Core) join(s *sequence) error {
	if m, ok := c.meetings[s.Hold.Shared]; ok && (m.seq != nil || m.pin != nil) {
		return ErrTaken
	}
	m := c.meeting(s.Hold.Shared)
	m.seq, s.meeting = s, m
	if s.Hold.GuestFirst > 0 && !m.came {
		s.phase = expecting
		c.expecting = append(c.expecting, s)
	}
	return nil
}

// expect sets when prefills that have just begun to wait for decode give up, and when what lingers is freed.
func (c *Core) expect(now time.Time) {
	for _, s := range c.expecting {
		if s.deadline.IsZero() {
			s.deadline = now.Add(s.Hold.GuestFirst)
			c.apart = earlier(c.apart, s.deadline)
		}
	}
	for _, s := range c.fetching {
		if s.gone && s.deadline.IsZero() && s.Remote.Lingers < Endless {
			s.deadline = now.Add(s.Remote.Lingers)
			c.apart = earlier(c.apart, s.deadline)
		}
	}
}

// part ends prefill's half of a meeting: nothing can be fetched any more.
func (c *Core) part(m *meeting, deaf bool) {
	m.seq, m.pin = nil, nil
	if m.guest != nil && deaf {
		return // until its patience ends
	}
	if m.guest != nil {
		c.turnAway(m, ErrNotHeld)
	}
	delete(c.meetings, m.id)
}

// serve answers the guest of a meeting whose blocks are pinned.
func (c *Core) serve(m *meeting, now time.Time) {
	g := m.guest
	m.guest = nil
	if m.pin.tokens < g.promptTokens {
		c.met(g.number, 0, ErrMismatch)
		return
	}
	m.pin.asked = true
	c.met(g.number, c.carry(now, g.moved).Sub(now), nil)
	met := &c.result.Met[len(c.result.Met)-1]
	met.First, met.Cached = m.pin.first, m.pin.cached
}

func (c *Core) turnAway(m *meeting, err error) {
	c.met(m.guest.number, 0, err)
	m.guest = nil
}

func (c *Core) met(number uint64, wait time.Duration, err error) {
	c.result.Met = append(c.result.Met, Met{Guest: number, Wait: wait, Err: err})
}

// giveUp ends what has waited too long for its other half. It looks only when the earliest may have.
func (c *Core) giveUp(now time.Time) {
	if c.apart.IsZero() || c.apart.After(now) {
		return
	}
	var late []*meeting
	for _, m := range c.meetings {
		if m.pin == nil && !m.until.IsZero() && !m.until.After(now) {
			late = append(late, m)
		}
	}
	slices.SortFunc(late, func(a, b *meeting) int { // a map has no order
		return cmp.Or(a.until.Compare(b.until), cmp.Compare(a.id, b.id))
	})
	for _, m := range late {
		m.until = time.Time{}
		if m.guest != nil {
			c.turnAway(m, ErrNoPrefill)
		}
		if m.seq == nil {
			delete(c.meetings, m.id)
		}
	}
	for _, s := range slices.Clone(c.expecting) {
		if !s.deadline.After(now) {
			c.fail(s, ErrNoDecode)
		}
	}
	for _, s := range slices.Clone(c.fetching) {
		if s.lost(now) {
			c.FetchFailed(s.ID, ErrNoPrefill)
		}
	}
	c.apart = time.Time{}
	for _, m := range c.meetings {
		if m.pin == nil {
			c.apart = earlier(c.apart, m.until)
		}
	}
	for _, s := range c.expecting {
		c.apart = earlier(c.apart, s.deadline)
	}
	for _, s := range c.fetching {
		if s.waits() {
			c.apart = earlier(c.apart, s.deadline)
		}
	}
}

// lost reports whether a fetching sequence has waited too long for its producer, or
// for a transfer that its deadline bounds too.
func (s *sequence) lost(now time.Time) bool {
	return s.waits() && !s.deadline.IsZero() && !s.deadline.After(now)
}

// waits reports whether a fetching sequence's deadline still counts.
func (s *sequence) waits() bool { return s.ready.IsZero() || s.Remote.Silent || s.gone }

// fail ends a live sequence whose hand-off failed.
func (c *Core) fail(s *sequence, err error) {
	c.drop(s)
	c.stats.FailedLoads++
	c.finish(s, Output{ID: s.ID, Reason: LoadFailed, Err: err})
}
