package replica

import (
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/tandem-pd/tandem/internal/natsbus"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router/load"
)

// Bounds of the state of other gateways.
const (
	maxPeers  = 256     // gateways
	maxPools  = 256     // with shares, bindings or prompts
	maxGone   = 4096    // names of ended processes
	maxShared = 1 << 17 // accounts of one gateway
	maxAhead  = 4096    // messages ahead of a gap; a page is requested long before
	batch     = 64      // shares applied at a time, under the books' lock
)

// Books are where the shares of other gateways count. They must not retain arguments.
type Books interface {
	// ApplyShares replaces a peer's shares in a pool: see [router.Router.ApplyShares].
	ApplyShares(peer, model string, role pools.Role, shares []load.Shared, now time.Time)
	// ApplySent records a prompt that a peer sent: see [router.Router.ApplySent].
	ApplySent(sent SlotSent, now time.Time)
	// ApplyOpened records that a worker's circuit opened at a peer.
	ApplyOpened(peer string, slot Slot)
	// ApplyHeads replaces the heads of a peer's queue of a model.
	ApplyHeads(peer, model string, heads []queue.Head, now time.Time)
	// ApplyBound applies bindings of sessions: see [router.Router.ApplyBindings].
	ApplyBound(bound PoolBound, now time.Time)
}

// Config bounds the waits for other gateways.
type Config struct {
	// Join is how long a starting gateway waits for the shares of the others before it takes requests.
	Join time.Duration `default:"1s"`
	// Expire is how long the shares of an unreachable gateway count.
	Expire time.Duration `default:"10s"`
}

// Peers tracks the other gateways of a group and their bookings.
type Peers struct {
	cfg       Config
	name      string
	epoch     uint64
	books     Books
	began     time.Time
	connected time.Time // when messages began to pass; zero while they do not
	cut       time.Time // when they stopped
	peers     map[string]*peer
	gone      map[string]ended // ended processes; their late messages are ignored
	named     time.Time        // when SameName was last reported
	misnamed  time.Time        // when Misnamed was last reported
	pools     map[poolKey]struct{}
	versions  map[string]struct{} // gateways of another version
	pending   []SlotShare         // not yet applied to the books
	pool      []load.Shared
	counts    Counts
}

// Counts are the events so far.
type Counts struct {
	Applied    uint64 // messages with shares
	Duplicates uint64
	Malformed  uint64
	Gaps       uint64 // lost messages
	Mismatches uint64 // digests that differed without a gap
	Pages      uint64 // pages received
	Died       uint64 // gateways that refused the connection or restarted
	Expired    uint64 // gateways unreachable for too long
	Left       uint64 // gateways that drained
	SameName   uint64 // messages under this gateway's name with a later epoch
}

// poolKey is a pool of received messages.
type poolKey struct {
	model string
	role  pools.Role
}

type peer struct {
	name     string
	epoch    uint64
	addr     string
	lastSeen time.Time // when the latest message arrived
	shares   map[Slot]versioned
	digest   uint64

	whole bool                // all its shares arrived once
	seq   uint64              // all messages up to it arrived, or a page in their place
	top   uint64              // highest number of a message or page
	ahead map[uint64]struct{} // messages after a gap
	gap   time.Time           // when the gap appeared; zero: none

	asked   time.Time // when a page was requested; zero: not
	from    Slot      // the requested page
	pageSeq uint64    // of the first page of the answer

	dialled time.Time // zero: not since its last message
	lives   bool      // silent, but its address answered
	quiet   bool      // silent for longer than silence
	faded   bool      // its shares count in part

	booked   uint64
	bookedAt time.Time
	rate     float64       // bookings a second
	stamp    time.Duration // of its latest heartbeat
	stamped  time.Time
	delay    time.Duration // of its messages
	others   []string      // the gateways that its latest heartbeat echoes

	models  []string // whose queues have heads
	headSeq uint64   // of its latest message with heads
	headAt  time.Time
}

// versioned is a share with the number of its message.
type versioned struct {
	load.Share
	seq uint64
}

// NewPeers returns the peers of gateway o, none yet.
func NewPeers(cfg Config, o *Local, books Books, now time.Time) *Peers {
	return &Peers{
		cfg: cfg, name: o.name, epoch: o.epoch, books: books, began: now, cut: now, peers: map[string]*peer{},
		gone: map[string]ended{}, pools: map[poolKey]struct{}{}, versions: map[string]struct{}{},
	}
}

// Receive applies a message of the gateway sender, and appends the effects to do. It fails if the message cannot be
// decoded or has another gateway's name.
func (p *Peers) Receive(sender string, data []byte, now time.Time, do []Effect) ([]Effect, error) {
	m := new(Message)
	if err := m.read(data); errors.Is(err, natsbus.ErrVersion) {
		if _, reported := p.versions[sender]; !reported && len(p.versions) < maxPeers {
			p.versions[sender] = struct{}{}
			do = append(do, Effect{Do: OtherVersion, Peer: sender})
		}
		return do, nil
	} else if err != nil {
		p.counts.Malformed++
		return do, err
	}
	if m.From != sender {
		p.counts.Malformed++
		return once(&p.misnamed, Effect{Do: Misnamed, Peer: sender}, now, do),
			fmt.Errorf("replica: a message of %q bears the name %q", sender, m.From)
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
		return do, nil // of an ended process
	}
	if from != nil && m.Epoch != from.epoch {
		switch {
		case m.Epoch > from.epoch:
			p.bury(m.From, from.epoch, now)
		case now.Sub(from.lastSeen) < late:
			return do, nil // of an earlier process
		}
		do = p.drop(from, Died, now, do)
		from = nil
	}
	if m.Kind == natsbus.Leave {
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
		from = &peer{name: m.From, epoch: m.Epoch, shares: map[Slot]versioned{}, ahead: map[uint64]struct{}{}}
		p.peers[m.From] = from
		do = append(do, Effect{Do: Joined, Peer: m.From}, Effect{Do: Welcome, Peer: m.From})
	}
	if from.quiet {
		from.quiet = false
		do = append(do, happened(Back, from, now))
	}
	from.lastSeen, from.lives, from.dialled = now, false, time.Time{}
	if from.faded {
		p.restore(from)
	}
	switch m.Kind {
	case natsbus.Delta:
		p.delta(from, m, now)
	case natsbus.Heartbeat:
		p.heartbeat(from, m, now)
	case natsbus.Page:
		p.page(from, m, now)
	case natsbus.Heads:
		p.heads(from, m, now)
	}
	for _, b := range m.Bound {
		if p.admits(Slot{Model: b.Model, Role: b.Role}) {
			p.books.ApplyBound(b, now)
		}
	}
	p.enter(from, now)
	return p.ask(from, now, do), nil
}

// delta applies changed shares.
func (p *Peers) delta(from *peer, m *Message, now time.Time) {
	if _, here := from.ahead[m.Seq]; here || m.Seq <= from.seq {
		p.counts.Duplicates++
		return
	}
	p.counts.Applied++
	from.top = max(from.top, m.Seq)
	for i := range m.Shares {
		p.set(from, m.Shares[i].Slot, m.Shares[i].Share, m.Seq)
	}
	for _, s := range m.Sends {
		if p.admits(s.Slot) {
			p.books.ApplySent(s, now)
		}
	}
	for _, s := range m.Opened {
		p.books.ApplyOpened(from.name, s)
	}
	if len(from.ahead) < maxAhead {
		from.ahead[m.Seq] = struct{}{}
	}
	p.advance(from, now)
}

// advance advances the number up to which all messages have arrived.
func (p *Peers) advance(from *peer, now time.Time) {
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
		maps.DeleteFunc(from.shares, func(_ Slot, w versioned) bool { return w.Account == load.Account{} })
	}
}

// misses records a gap.
func (p *Peers) misses(from *peer, now time.Time) {
	if from.gap.IsZero() {
		from.gap = now
		p.counts.Gaps++
	}
}

// set replaces a share, unless a later value has arrived.
func (p *Peers) set(from *peer, slot Slot, s load.Share, seq uint64) {
	was, known := from.shares[slot]
	if known && was.seq > seq || !known && (len(from.shares) >= maxShared || !p.admits(slot)) {
		return
	}
	from.digest ^= mix(&slot, &was.Account) ^ mix(&slot, &s.Account)
	if s.Account == (load.Account{}) && seq <= from.seq+1 {
		delete(from.shares, slot) // no earlier value can arrive any longer
	} else {
		from.shares[slot] = versioned{s, seq}
	}
	p.pending = append(p.pending, SlotShare{slot, s})
}

// admits reports whether a slot's pool is known or one more may be added: each costs a router and an index.
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

// heartbeat compares the received shares with the digest.
func (p *Peers) heartbeat(from *peer, m *Message, now time.Time) {
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
	case m.Seq != from.seq || len(from.ahead) > 0: // later ones arrived, or a gap is known
	case m.Digest == from.digest:
		from.whole = true
	case from.whole:
		from.whole = false // requests all of them
		p.counts.Mismatches++
	}
}

// page replaces a peer's shares of a range of slots.
func (p *Peers) page(from *peer, m *Message, now time.Time) {
	if from.asked.IsZero() || m.After != from.from {
		return // not the page last requested
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
	from.gap = now // until advance has checked
	for seq := range from.ahead {
		if seq <= from.pageSeq {
			delete(from.ahead, seq)
		}
	}
	from.seq = max(from.seq, from.pageSeq)
	p.advance(from, now)
}

// ask requests a page where shares are missing.
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
	return append(do, Effect{Do: RequestPage, Peer: from.name, After: from.from})
}

// enter applies the changed shares to the books.
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
		p.books.ApplyShares(from.name, first.Model, first.Role, p.pool, now)
	}
	p.pending = p.pending[:0]
}
