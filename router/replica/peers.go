package replica

import (
	"fmt"
	"maps"
	"time"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/load"
)

// What is kept of others is bounded.
const (
	maxPeers  = 256     // gateways
	maxPools  = 256     // pools that were heard of
	maxGone   = 4096    // names of processes that have ended
	maxShared = 1 << 17 // accounts of one gateway
	maxAhead  = 4096    // messages that came after one that is missing; a page is asked for long before
	batch     = 64      // shares for the books at a time, for which they hold their lock
)

// Books are where the shares of other gateways count.
type Books interface {
	// Hear puts shares that a peer has in a pool in the place of those it had: see [router.Router.Hear].
	Hear(peer, model string, role pools.Role, shares []load.Shared, now time.Time)
	// HearSent takes in that a peer has sent a prompt, and keeps nothing of it: see [router.Router.HearSent].
	HearSent(sent SlotSent, now time.Time)
	// HearOpened takes in that a worker has failed a peer so often that its circuit there has opened.
	HearOpened(peer string, slot Slot)
	// HearHeads puts the heads of a peer's queue of a model, none or some, in the place of those that it had. It keeps nothing of them.
	HearHeads(peer, model string, heads []Head, now time.Time)
	// HearBound takes in to which workers sessions are bound, and keeps nothing of it: see [router.Router.HearBindings].
	HearBound(bound PoolBound, now time.Time)
}

// Config is how long other gateways are waited for.
type Config struct {
	// Join is how long a gateway that starts waits for the shares of the others before it takes requests without them.
	Join time.Duration `default:"1s" range:"0s..1m"`
	// Expire is how long the shares of a gateway count that cannot be reached.
	Expire time.Duration `default:"10s" range:"1s..10m"`
}

// Peers knows the other gateways of a group, and what they have booked.
type Peers struct {
	cfg       Config
	name      string
	epoch     uint64
	books     Books
	began     time.Time
	connected time.Time // since when messages pass; zero while they do not
	cut       time.Time // since when they do not
	peers     map[string]*peer
	gone      map[string]ended // processes that have ended: their late messages count for nothing
	named     time.Time        // when the latest SameName was reported
	misnamed  time.Time        // and the latest Misnamed
	pools     map[poolKey]struct{}
	names     map[string]string // in messages
	msg       Message
	pending   []SlotShare // for the books
	pool      []load.Shared
	counts    Counts
}

// Counts is what has happened so far.
type Counts struct {
	Heard      uint64 // messages with shares that counted
	Doubled    uint64 // those that had been heard before
	Malformed  uint64
	Gaps       uint64 // times when a message did not come
	Mismatches uint64 // digests that were not equal though all messages had come
	Pages      uint64 // that were heard
	Died       uint64 // gateways whose address refused the connection, or that started again
	Expired    uint64 // gateways that could not be reached for long enough
	Left       uint64 // gateways that had drained
	SameName   uint64 // messages under this gateway's name with a later epoch
}

// poolKey is a pool that was heard of.
type poolKey struct {
	model string
	role  pools.Role
}

// peer is one other gateway.
type peer struct {
	name   string
	epoch  uint64
	addr   string
	heard  time.Time // the latest message
	shares map[Slot]word
	digest uint64

	whole bool                // all its shares have been heard once
	seq   uint64              // all messages up to it have come, or a page in their place
	top   uint64              // the largest number of a message or page
	ahead map[uint64]struct{} // messages that came after one that is missing
	gap   time.Time           // since when one is missing; zero: none is

	asked   time.Time // for a page; zero: not
	from    Slot      // the page that is asked for
	pageSeq uint64    // of the first page of the answer

	dialled time.Time // zero: not since it was heard
	lives   bool      // its address answered, though it is silent
	quiet   bool      // it has said nothing for longer than silence
	faded   bool      // its shares count in part

	booked   uint64
	bookedAt time.Time
	rate     float64       // bookings a second
	stamp    time.Duration // of its latest beat
	stamped  time.Time
	delay    time.Duration // of its words
	others   []string      // the gateways that its latest beat answers

	models  []string // whose queues have heads
	headSeq uint64   // of the latest message with them
	headAt  time.Time
}

// word is a share, with the number of the message it came with.
type word struct {
	load.Share
	seq uint64
}

// NewPeers returns the other gateways, none yet, of the gateway o.
func NewPeers(cfg Config, o *Own, books Books, now time.Time) *Peers {
	return &Peers{
		cfg: cfg, name: o.name, epoch: o.epoch, books: books, began: now, cut: now,
		peers: map[string]*peer{}, gone: map[string]ended{}, pools: map[poolKey]struct{}{}, names: map[string]string{},
	}
}

// Hear takes in a message that the gateway sender has sent, and appends what is to be done to do. The error is that it cannot be decoded, or
// bears another gateway's name.
func (p *Peers) Hear(sender string, data []byte, now time.Time, do []Effect) ([]Effect, error) {
	m := &p.msg
	if err := m.read(data, p.names); err != nil {
		p.counts.Malformed++
		return do, err
	}
	if m.From != sender {
		p.counts.Malformed++
		return once(&p.misnamed, Effect{Do: Misnamed, Peer: sender}, now, do), fmt.Errorf("replica: a message of %q bears the name %q", sender, m.From)
	}
	if m.Epoch > Epoch(now.Add(skew), 0) {
		p.counts.Malformed++
		return do, fmt.Errorf("replica: epoch of %q: more than %v ahead of this clock", m.From, skew)
	}
	if m.From == p.name {
		if m.Epoch > p.epoch {
			p.counts.SameName++
			do = once(&p.named, Effect{Do: SameName, Peer: m.From}, now, do)
		}
		return do, nil
	}
	from := p.peers[m.From]
	if e, known := p.gone[m.From]; known && m.Epoch <= e.epoch && now.Sub(e.at) < late {
		return do, nil // of a process that has ended
	}
	if from != nil && m.Epoch != from.epoch {
		switch {
		case m.Epoch > from.epoch:
			p.bury(m.From, from.epoch, now)
		case now.Sub(from.heard) < late:
			return do, nil // of an earlier process
		}
		do = p.drop(from, Died, now, do)
		from = nil
	}
	if m.Kind == Bye {
		p.bury(m.From, m.Epoch, now)
		if from != nil {
			do = p.drop(from, Left, now, do)
		}
		return do, nil
	}
	if from == nil {
		if len(p.peers) >= maxPeers {
			return do, nil
		}
		from = &peer{name: m.From, epoch: m.Epoch, shares: map[Slot]word{}, ahead: map[uint64]struct{}{}}
		p.peers[m.From] = from
		do = append(do, Effect{Do: Joined, Peer: m.From}, Effect{Do: Greet, Peer: m.From})
	}
	if from.quiet {
		from.quiet = false
		do = append(do, happened(Back, from, now))
	}
	from.heard, from.lives, from.dialled = now, false, time.Time{}
	if from.faded {
		p.restore(from)
	}
	switch m.Kind {
	case Say:
		p.say(from, m, now)
	case Beat:
		p.beat(from, m, now)
	case Page:
		p.page(from, m, now)
	case Heads:
		p.heads(from, m, now)
	}
	for _, b := range m.Bound {
		if p.admits(Slot{Model: b.Model, Role: b.Role}) {
			p.books.HearBound(b, now)
		}
	}
	p.enter(from, now)
	return p.ask(from, now, do), nil
}

// say takes shares in that have changed.
func (p *Peers) say(from *peer, m *Message, now time.Time) {
	if _, here := from.ahead[m.Seq]; here || m.Seq <= from.seq {
		p.counts.Doubled++
		return
	}
	p.counts.Heard++
	from.top = max(from.top, m.Seq)
	for i := range m.Shares {
		p.set(from, m.Shares[i].Slot, m.Shares[i].Share, m.Seq)
	}
	for _, s := range m.Sends {
		if p.admits(s.Slot) {
			p.books.HearSent(s, now)
		}
	}
	for _, s := range m.Opened {
		p.books.HearOpened(from.name, s)
	}
	if len(from.ahead) < maxAhead {
		from.ahead[m.Seq] = struct{}{}
	}
	p.settle(from, now)
}

// settle moves on the number up to which all messages have come.
func (p *Peers) settle(from *peer, now time.Time) {
	for {
		if _, here := from.ahead[from.seq+1]; !here {
			break
		}
		from.seq++
		delete(from.ahead, from.seq)
	}
	switch {
	case len(from.ahead) > 0:
		p.misses(from, now)
	case !from.gap.IsZero():
		from.gap = time.Time{}
		maps.DeleteFunc(from.shares, func(_ Slot, w word) bool { return w.Account == load.Account{} })
	}
}

// misses notes that a message has not come.
func (p *Peers) misses(from *peer, now time.Time) {
	if from.gap.IsZero() {
		from.gap = now
		p.counts.Gaps++
	}
}

// set replaces a share, unless a later word of it has come.
func (p *Peers) set(from *peer, slot Slot, s load.Share, seq uint64) {
	was, known := from.shares[slot]
	if known && was.seq > seq || !known && (len(from.shares) >= maxShared || !p.admits(slot)) {
		return
	}
	from.digest ^= mix(&slot, &was.Account) ^ mix(&slot, &s.Account)
	if s.Account == (load.Account{}) && seq <= from.seq+1 {
		delete(from.shares, slot) // no earlier word of it can come any more
	} else {
		from.shares[slot] = word{s, seq}
	}
	p.pending = append(p.pending, SlotShare{slot, s})
}

// admits reports whether a slot's pool is known, or one more may be: each is a router and an index.
func (p *Peers) admits(slot Slot) bool {
	key := poolKey{slot.Model, slot.Role}
	if _, known := p.pools[key]; known {
		return true
	}
	if len(p.pools) >= maxPools {
		return false
	}
	p.pools[key] = struct{}{}
	return true
}

// beat compares what has been heard with what was said.
func (p *Peers) beat(from *peer, m *Message, now time.Time) {
	from.addr = m.Addr
	if passed := now.Sub(from.bookedAt); !from.bookedAt.IsZero() && passed > 0 && m.Booked >= from.booked {
		from.rate += (float64(m.Booked-from.booked)/passed.Seconds() - from.rate) / 2
	}
	from.booked, from.bookedAt, from.stamp, from.stamped = m.Booked, now, m.Stamp, now
	from.others = from.others[:0]
	for _, e := range m.Echoes {
		from.others = append(from.others, e.Name)
		if back := p.Stamp(now) - e.Stamp - e.Held; e.Name == p.name && back >= 0 {
			from.delay = back / 2
		}
	}
	if from.top > m.Seq && from.top-m.Seq > maxAhead {
		from.renumber(m.Seq)
	}
	switch {
	case m.Seq > from.seq && len(from.ahead) == 0:
		p.misses(from, now) // the latest one
	case m.Seq != from.seq || len(from.ahead) > 0: // later ones have come, or a gap is known
	case m.Digest == from.digest:
		from.whole = true
	case from.whole:
		from.whole = false // so that it is asked for all of them
		p.counts.Mismatches++
	}
}

// page takes in all shares that a peer has of a range of slots.
func (p *Peers) page(from *peer, m *Message, now time.Time) {
	if from.asked.IsZero() || m.After != from.from {
		return // not what was asked for last
	}
	p.counts.Pages++
	from.top = max(from.top, m.Seq)
	if (m.After == Slot{Role: roles[0]}) {
		from.pageSeq = m.Seq
	}
	listed := make(map[Slot]struct{}, len(m.Shares))
	for i := range m.Shares {
		listed[m.Shares[i].Slot] = struct{}{}
		p.set(from, m.Shares[i].Slot, m.Shares[i].Share, m.Seq)
	}
	for slot, w := range from.shares {
		if _, here := listed[slot]; here || w.seq > m.Seq || compare(slot, m.After) <= 0 ||
			!m.Last && compare(slot, m.Shares[len(m.Shares)-1].Slot) > 0 {
			continue
		}
		p.set(from, slot, load.Share{}, m.Seq)
	}
	if !m.Last {
		from.from, from.asked = m.Shares[len(m.Shares)-1].Slot, time.Time{}
		return
	}
	from.whole, from.asked, from.from = true, time.Time{}, Slot{}
	from.gap = now // until settle has seen that there is none
	for seq := range from.ahead {
		if seq <= from.pageSeq {
			delete(from.ahead, seq)
		}
	}
	from.seq = max(from.seq, from.pageSeq)
	p.settle(from, now)
}

// ask has a page asked for where shares are missing.
func (p *Peers) ask(from *peer, now time.Time, do []Effect) []Effect {
	goesOn := from.from != Slot{}
	if !goesOn && from.whole && (from.gap.IsZero() || now.Sub(from.gap) < reorder) {
		return do
	}
	if !from.asked.IsZero() && now.Sub(from.asked) < patience {
		return do
	}
	if !goesOn {
		from.from = Slot{Role: roles[0]} // the first in order
	}
	from.asked = now
	return append(do, Effect{Do: AskPage, Peer: from.name, After: from.from})
}

// enter hands the shares that have changed to the books.
func (p *Peers) enter(from *peer, now time.Time) {
	for rest := p.pending; len(rest) > 0; {
		first := &rest[0].Slot
		p.pool = p.pool[:0]
		for _, s := range rest[:min(len(rest), batch)] {
			if s.Model != first.Model || s.Role != first.Role {
				break
			}
			p.pool = append(p.pool, load.Shared{Worker: s.Worker, Rank: s.Rank, Share: s.Share})
		}
		rest = rest[len(p.pool):]
		p.books.Hear(from.name, first.Model, first.Role, p.pool, now)
	}
	p.pending = p.pending[:0]
}
