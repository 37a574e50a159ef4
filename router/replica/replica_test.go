package replica

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/natsbus"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router/load"
)

var noon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

// ledger is books of which each share can be looked at.
type ledger map[string]map[Slot]load.Account

func (l ledger) ApplyShares(peer, model string, role pools.Role, shares []load.Shared, _ time.Time) {
	if l[peer] == nil {
		l[peer] = map[Slot]load.Account{}
	}
	for _, s := range shares {
		slot := Slot{model, role, s.Worker, s.Rank}
		if s.Account == (load.Account{}) {
			delete(l[peer], slot)
		} else {
			l[peer][slot] = s.Account
		}
	}
}

func (ledger) ApplySent(SlotSent, time.Time)   {}
func (ledger) ApplyOpened(string, Slot)        {}
func (ledger) ApplyBound(PoolBound, time.Time) {}

// books is a ledger and the bindings of one pool's sessions.
type books struct {
	ledger
	bindings *load.Sessions
}

func (b books) ApplyBound(p PoolBound, now time.Time) { b.bindings.Apply(p.Clock, p.Bindings, now) }

func (ledger) ApplyHeads(string, string, []queue.Head, time.Time) {}

// group is gateways on a network in virtual time.
type group struct {
	t        *testing.T
	seed     uint64
	rng      *rand.Rand
	now      time.Time
	members  []*member
	under    []parcel // way, the first to arrive first
	dropped  float64
	doubled  float64
	reorders bool // a message may be overtaken by ten later ones
	cut      map[string]bool
}

type member struct {
	own    *Local
	peers  *Peers
	books  ledger
	bound  *load.Sessions
	truth  map[Slot]load.Account
	dead   bool
	stops  int
	events []string
}

type parcel struct {
	at time.Time
	do func()
}

func newGroup(t *testing.T, seed uint64) *group {
	return &group{t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 0)), now: noon, cut: map[string]bool{}}
}

func (g *group) after(d time.Duration, do func()) {
	p := parcel{g.now.Add(d), do}
	i, _ := slices.BinarySearchFunc(g.under, p, func(other, p parcel) int { return cmp.Or(other.at.Compare(p.at), -1) }) // behind its equals
	g.under = slices.Insert(g.under, i, p)
}

// join starts a gateway. One of a name that was there takes its place.
func (g *group) join(name string, epoch uint64) *member {
	own := NewLocal(name, epoch)
	m := &member{own: own, books: ledger{}, truth: map[Slot]load.Account{}, bound: load.NewSessions(bindingTTL, true)}
	m.peers = NewPeers(Config{Join: time.Second, Expire: 10 * time.Second}, own, books{m.books, m.bound}, g.now)
	g.members = append(g.members, m)
	var tick, beat func()
	tick = func() {
		if !m.dead {
			g.effects(m, m.peers.Tick(g.now, !g.cut[name], nil))
			if m.bound.ResendNext() {
				g.publishDelta(m)
			}
			g.after(50*time.Millisecond, tick)
		}
	}
	beat = func() {
		if !m.dead {
			g.beat(m)
			g.after(BeatEvery, beat)
		}
	}
	tick()
	beat()
	return m
}

func (g *group) publishDelta(m *member) {
	for clock, all := m.bound.Delta(g.now); len(all) > 0; clock, all = m.bound.Delta(g.now) {
		m.own.Bound("m", pools.Both, clock, all)
	}
	for data := m.own.Delta(); data != nil; data = m.own.Delta() {
		g.publish(m, data)
	}
}

func (g *group) beat(m *member) {
	g.publishDelta(m)
	m.own.Clock("m", pools.Both, m.bound.Clock(g.now))
	g.publish(m, m.own.Heartbeat(m.own.name+":8080", m.peers.Stamp(g.now), m.peers.Echoes(g.now)))
}

func (g *group) publish(m *member, data []byte) {
	for _, to := range g.members {
		if to != m {
			g.send(m, to, data)
		}
	}
}

func (g *group) send(from, to *member, data []byte) {
	data = slices.Clone(data)
	times := 1
	switch u := g.rng.Float64(); {
	case g.cut[from.own.name] || g.cut[to.own.name] || u < g.dropped:
		return
	case u < g.dropped+g.doubled:
		times = 2
	}
	for range times {
		delay := 200 * time.Microsecond
		if g.reorders {
			delay = time.Duration(g.rng.IntN(10)) * time.Millisecond
		}
		g.after(delay, func() {
			if to.dead || g.cut[to.own.name] {
				return
			}
			do, err := receive(to.peers, data, g.now, nil)
			assert.NoError(g.t, err, "seed %d", g.seed)
			g.effects(to, do)
		})
	}
}

func (g *group) member(name string) *member {
	for _, m := range slices.Backward(g.members) {
		if m.own.name == name {
			return m
		}
	}
	return nil
}

var events = map[Do]string{Joined: "joined", Quiet: "quiet", Back: "back", Died: "died", Expired: "expired", Left: "left"}

func (g *group) effects(m *member, do []Effect) {
	for _, e := range do {
		of := g.member(e.Peer)
		switch e.Do {
		case RequestPage:
			if g.rng.Float64() >= g.dropped && !of.dead {
				g.publishDelta(of)
				g.send(of, m, of.own.Page(e.After))
			}
		case Dial:
			v := Answered
			if of.dead {
				v = Refused
			} else if g.cut[of.own.name+" refuses"] {
				v = Refused
			} else if g.cut[of.own.name+" hangs"] {
				v = Unreachable
			}
			g.after(time.Millisecond, func() { g.effects(m, m.peers.Dialled(e.Peer, v, g.now, nil)) })
		case Welcome:
			g.beat(m)
			m.bound.Resend(g.now)
		case SameName:
			m.stops++
		case Joined, Quiet, Back, Died, Expired, Left:
			m.events = append(m.events, events[e.Do]+" "+e.Peer)
		}
	}
}

func (g *group) run(d time.Duration) {
	for end := g.now.Add(d); ; {
		if len(g.under) == 0 || g.under[0].at.After(end) {
			g.now = end
			return
		}
		p := g.under[0]
		g.under, g.now = g.under[1:], p.at
		p.do()
	}
}

// book changes a share at random, and publishes it.
func (g *group) book(m *member) {
	slot := Slot{"m", roles[g.rng.IntN(3)], fmt.Sprint("w", g.rng.IntN(20)), g.rng.IntN(2)}
	a := load.Account{Requests: g.rng.IntN(4)}
	if a.Requests > 0 {
		a.ActiveBlocks, a.PrefillTokens = g.rng.IntN(900), g.rng.IntN(9000)
	}
	if a.Requests == 0 {
		delete(m.truth, slot)
	} else {
		m.truth[slot] = a
	}
	m.own.Set(slot, load.Share{Account: a})
	m.own.Booked(1)
	g.publishDelta(m)
}

// agree fails unless, after a while, gateways that live know all of each other.
func (g *group) agree(after time.Duration) {
	g.t.Helper()
	g.run(after)
	for _, m := range g.members {
		for _, of := range g.members {
			if m == of || m.dead {
				continue
			}
			want := of.truth
			if of.dead {
				want = nil
			}
			require.True(g.t, maps.Equal(m.books[of.own.name], want),
				"seed %d, %v later %s knows of %s: %v, want %v", g.seed, after, m.own.name, of.own.name, m.books[of.own.name], want)
		}
	}
}

// TestSharesSurviveTheNetwork loses, doubles and reorders messages, of which pages and requests for them are some. At
// most a second after the last booking, everyone's view has to be equal to what was booked.
func TestSharesSurviveTheNetwork(t *testing.T) {
	for seed := range uint64(9) {
		g := newGroup(t, seed)
		g.dropped, g.doubled, g.reorders = 0.01, 0.01, true
		if seed%3 == 2 {
			g.dropped = 0.2 // far worse than was asked for
		}
		for _, name := range []string{"a", "b", "c"} {
			g.join(name, 1)
		}
		for range 1000 {
			g.book(g.members[g.rng.IntN(3)])
			g.run(time.Duration(g.rng.IntN(2000)) * time.Microsecond)
		}
		limit := time.Second
		if g.dropped > 0.1 {
			limit = 5 * time.Second
		}
		g.agree(limit)
		for _, m := range g.members {
			c := m.peers.Counts()
			assert.True(t, c.Applied != 0 && c.Duplicates != 0 && c.Gaps != 0 && c.Pages != 0, "seed %d: the network was too good: %+v", seed, c)
		}
	}
}

// TestJoin starts a gateway among others that have booked: it is ready once it knows all of it, and soon.
func TestJoin(t *testing.T) {
	g := newGroup(t, 1)
	g.join("a", 1)
	g.join("b", 1)
	for range 5000 {
		slot := Slot{"m", pools.Decode, fmt.Sprint("w", g.rng.IntN(2000)), 0}
		a := load.Account{Requests: 1, ActiveBlocks: g.rng.IntN(900)}
		m := g.members[g.rng.IntN(2)]
		m.truth[slot] = a
		m.own.Set(slot, load.Share{Account: a})
	}
	g.run(time.Second)
	c := g.join("c", 1)
	began := g.now
	for !c.peers.Ready(g.now) {
		g.run(time.Millisecond)
	}
	assert.LessOrEqual(t, g.now.Sub(began), settled+5*time.Millisecond, "ready after")
	g.agree(0)
	g.cut["b"] = true // it is in a's beats, and nothing comes of it
	d := g.join("d", 1)
	g.run(BeatEvery - time.Millisecond)
	assert.False(t, d.peers.Ready(g.now), "ready without a gateway that another one names")
	g.run(time.Millisecond)
	assert.True(t, d.peers.Ready(g.now), "waits for a gateway that does not answer")
	alone := newGroup(t, 1)
	first := alone.join("first", 1)
	alone.run(BeatEvery - time.Millisecond)
	assert.False(t, first.peers.Ready(alone.now), "ready before others had the time to answer")
	alone.run(time.Millisecond)
	assert.True(t, first.peers.Ready(alone.now), "the first gateway waits for others")
}

// TestJoinWithoutMessages: a gateway whose NATS is away takes requests all the same, after the time to join.
func TestJoinWithoutMessages(t *testing.T) {
	g := newGroup(t, 1)
	g.cut["a"] = true
	a := g.join("a", 1)
	g.run(time.Second - time.Millisecond)
	assert.False(t, a.peers.Ready(g.now), "ready before its time to join, with no message received")
	g.run(time.Millisecond)
	assert.True(t, a.peers.Ready(g.now) && a.peers.CutOff(g.now), "not ready or not cut off, at the end of its time to join")
}

// TestSilence: what becomes of the shares of a gateway that sends nothing any more.
func TestSilence(t *testing.T) {
	start := func(t *testing.T) (*group, *member, *member) {
		g := newGroup(t, 5)
		a, b := g.join("a", 1), g.join("b", 1)
		for range 300 {
			g.book(b)
		}
		g.agree(time.Second)
		require.NotEmpty(t, a.books["b"])
		return g, a, b
	}
	t.Run("dead", func(t *testing.T) {
		g, a, b := start(t)
		b.dead = true
		g.run(1200 * time.Millisecond)
		assert.True(t, len(a.books["b"]) == 0 && a.events[len(a.events)-1] == "died b",
			"1.2 s after its death %d shares are left; %v", len(a.books["b"]), a.events)
	})
	t.Run("started again", func(t *testing.T) {
		g, a, b := start(t)
		b.dead = true
		again := g.join("b", 2)
		g.book(again)
		g.run(300 * time.Millisecond)
		assert.True(t, maps.Equal(a.books["b"], again.truth),
			"the shares of the process that has ended are left: %v", a.books["b"])
		do, err := receive(a.peers, (&Message{Kind: natsbus.Delta, From: "b", Epoch: 1, Seq: 9999,
			Shares: []SlotShare{{Slot{"m", pools.Both, "w", 0}, load.Share{Account: load.Account{Requests: 1}}}}}).Append(nil), g.now, nil)
		assert.True(t, err == nil && len(do) == 0 && maps.Equal(a.books["b"], again.truth),
			"a late message of a process that has ended counts")
	})
	t.Run("refused, and alive", func(t *testing.T) { // a firewall refuses what its peers dial
		g, a, b := start(t)
		g.cut["b"], g.cut["b refuses"] = true, true
		g.run(1200 * time.Millisecond)
		assert.Empty(t, a.books["b"], "its address refuses, and what it has booked counts")
		g.cut["b"] = false
		g.book(b)
		g.agree(500 * time.Millisecond)
		assert.Len(t, a.peers.All(g.now), 1, "it sends again")
	})
	t.Run("all are silent", func(t *testing.T) { // a network that is cut leaves the connection to NATS for a while
		g, a, b := start(t)
		c := g.join("c", 1)
		g.run(time.Second)
		g.cut["b"], g.cut["b hangs"] = true, true
		g.run(2 * time.Second)
		assert.False(t, a.peers.CutOff(g.now), "cut off, and it receives from c")
		g.cut["c"], g.cut["c hangs"] = true, true
		g.run(2 * time.Second)
		assert.True(t, a.peers.CutOff(g.now), "not cut off, and it receives from no other gateway")
		g.cut["b"], g.cut["b hangs"] = false, false
		g.run(time.Second)
		assert.False(t, a.peers.CutOff(g.now), "cut off, and it receives from b")
		assert.Equal(t, []string{"quiet b", "quiet c", "back b"}, a.events[len(a.events)-3:])
		b.dead, c.dead = true, true
		for range 300 {
			g.run(10 * time.Millisecond)
			require.True(t, !a.peers.CutOff(g.now) || a.peers.Len() == 1, "cut off, and the others have died")
		}
	})
	t.Run("unreachable", func(t *testing.T) {
		g, a, _ := start(t)
		g.cut["b"], g.cut["b hangs"] = true, true
		before := maps.Clone(a.books["b"])
		g.run(9 * time.Second)
		assert.True(t, maps.Equal(a.books["b"], before), "what it has booked does not count for 10 s")
		g.run(1500 * time.Millisecond)
		assert.Empty(t, a.books["b"], "what it has booked counts for longer than 10 s")
		g.cut["b"], g.cut["b hangs"] = false, false
		g.agree(time.Second)
	})
	t.Run("alive", func(t *testing.T) {
		g, a, b := start(t)
		g.cut["b"] = true
		sum := func() (n int) {
			for _, account := range a.books["b"] {
				n += account.ActiveBlocks
			}
			return n
		}
		whole := sum()
		g.run(6 * time.Second)
		half := sum()
		assert.True(t, half >= whole*4/10 && half <= whole*6/10, "after 6 s of silence %d of %d blocks count", half, whole)
		g.book(b)
		g.run(6 * time.Second)
		assert.Zero(t, sum(), "after 12 s of silence N of %d blocks count", whole)
		all := a.peers.All(g.now)
		assert.True(t, len(all) == 1 && all[0].State == "silent", "%+v", all)
		g.cut["b"] = false
		g.agree(time.Second)
	})
	t.Run("drained", func(t *testing.T) {
		g, a, b := start(t)
		g.publish(b, b.own.Leave())
		b.dead = true
		g.run(time.Millisecond)
		assert.True(t, len(a.books["b"]) == 0 && len(a.peers.All(g.now)) == 0 && a.events[len(a.events)-1] == "left b",
			"it left, and %v is left of it", a.books["b"])
	})
}

// TestNoNumberCountsForEver: a message under a gateway's name, with as large a number as it likes, and a clock that is
// set back keep the gateway's own messages from counting for a bounded time, and stop no gateway.
func TestNoNumberCountsForEver(t *testing.T) {
	forged := []SlotShare{{Slot{"m", pools.Both, "w0", 0}, load.Share{Account: load.Account{Requests: 7}}}}
	epoch := Epoch(noon, 1)
	for name, m := range map[string]*Message{
		"a leave of the end of time":  {Kind: natsbus.Leave, Epoch: math.MaxUint64},
		"a share of the end of time":  {Kind: natsbus.Delta, Epoch: math.MaxUint64, Seq: 1, Shares: forged},
		"a share of a later process":  {Kind: natsbus.Delta, Epoch: epoch + 1<<20, Seq: 1, Shares: forged},
		"a beat of a later process":   {Kind: natsbus.Heartbeat, Epoch: epoch + 1<<20, Seq: 1, Addr: "b:8080"},
		"a leave of a later process":  {Kind: natsbus.Leave, Epoch: epoch + 1<<20},
		"the largest number":          {Kind: natsbus.Delta, Epoch: epoch, Seq: math.MaxUint64, Shares: forged},
		"heads of the largest number": {Kind: natsbus.Heads, Epoch: epoch, Seq: math.MaxUint64, Heads: []ModelHead{{"m", queue.Head{Tokens: 1}}}},
		"a clock that is set back":    nil,
	} {
		t.Run(name, func(t *testing.T) {
			g := newGroup(t, 1)
			a, b := g.join("a", epoch), g.join("b", epoch)
			g.book(b)
			g.run(time.Second)
			if m == nil {
				g.publish(b, b.own.Leave())
				b.dead = true
				g.run(time.Second)
				b = g.join("b", Epoch(noon.Add(-24*time.Hour), 1))
				g.members = slices.DeleteFunc(g.members, func(m *member) bool { return m.dead })
			} else {
				for _, m.From = range []string{"a", "b"} { // under its own name, too
					do, err := receive(a.peers, m.Append(nil), g.now, nil)
					assert.Equal(t, (err != nil), m.Epoch == math.MaxUint64, "%v, want it refused", err)
					g.effects(a, do)
				}
			}
			g.run(2*late + time.Second)
			for range 20 {
				g.book(b)
				g.book(a)
			}
			g.agree(time.Second)
			data, _ := b.own.Heads(map[string][]queue.Head{"m": {{Tokens: 5}}}, g.now)
			_, err := receive(a.peers, data, g.now, nil)
			assert.NoError(t, err)
			assert.Equal(t, []string{"m"}, a.peers.peers["b"].models, "the heads of its queues")
			assert.EqualValues(t, 1, a.peers.peers["b"].headSeq)
		})
	}
}

// receive has p receive a message from the gateway whose name it bears.
func receive(p *Peers, data []byte, now time.Time, do []Effect) ([]Effect, error) {
	var m Message
	_ = m.read(data) // p reports it
	return p.Receive(m.From, data, now, do)
}

// TestANameIsItsSenders: a message that bears another gateway's name counts for nothing, neither of its sender nor of
// the other, and is reported once a minute.
func TestANameIsItsSenders(t *testing.T) {
	g := newGroup(t, 1)
	a, b, c := g.join("a", 1), g.join("b", 1), g.join("c", 1)
	g.book(b)
	g.book(c)
	g.run(time.Second)
	reports := 0
	for i := range 120 {
		for _, kind := range []natsbus.Kind{natsbus.Delta, natsbus.Heartbeat, natsbus.Heads, natsbus.Leave} {
			for _, victim := range []string{"b", "a", "unknown"} {
				do, err := a.peers.Receive("c", (&Message{Kind: kind, From: victim, Epoch: 9, Seq: 1}).Append(nil),
					g.now.Add(time.Duration(i)*time.Second), nil)
				if reports += len(do); err == nil || len(do) > 1 || len(do) == 1 && do[0] != (Effect{Do: Misnamed, Peer: "c"}) {
					t.Fatalf("%v, %v", do, err)
				}
			}
		}
	}
	counts := a.peers.Counts()
	assert.True(t, reports == 2 && counts.Malformed == 120*4*3 && counts.SameName == 0 && a.peers.Len() == 2 &&
		maps.Equal(a.books["b"], b.truth) && maps.Equal(a.books["c"], c.truth),
		"reported %d times in two minutes, %+v, %v", reports, counts, a.books)
}

// TestTwoOfOneName: the others count the later process; the earlier one reports it once a minute and goes on.
func TestTwoOfOneName(t *testing.T) {
	g := newGroup(t, 1)
	early, late, other := g.join("a", 1), g.join("a", 2), g.join("b", 1)
	g.run(59 * time.Second)
	g.book(early)
	g.book(late)
	g.run(time.Second)
	assert.True(t, early.stops == 1 && late.stops == 0 && early.peers.Counts().SameName >= 200 && maps.Equal(other.books["a"], late.truth),
		"reported %d and %d times; the other counts %v, want %v", early.stops, late.stops, other.books["a"], late.truth)
}

// TestEqualSumsArePublished: a share whose prompts are others is published though its sums are the same.
func TestEqualSumsArePublished(t *testing.T) {
	o := NewLocal("a", 1)
	slot := Slot{"m", pools.Prefill, "w", 0}
	share := load.Share{Account: load.Account{Requests: 1, PrefillTokens: 4096}, Left: time.Second, First: time.Second, Line: 1}
	o.Set(slot, share)
	assert.True(t, o.Delta() != nil, "a new share is not published")
	o.Set(slot, share)
	assert.True(t, o.Delta() == nil, "the same share is published twice")
	share.Line = 2
	o.Set(slot, share)
	assert.True(t, o.Delta() != nil, "another prompt of the same length is not published")
}

// TestUnseen: what is on its way is the rate of bookings times the time that messages take.
func TestUnseen(t *testing.T) {
	g := newGroup(t, 1)
	a, b := g.join("a", 1), g.join("b", 1)
	for range 5000 {
		g.book(b)
		g.run(time.Millisecond)
	}
	got := a.peers.Unseen()
	assert.True(t, got >= 0.19 && got <= 0.21, "%v bookings are unseen, of 1,000 a second that take 0.2 ms", got)
}

// TestPoolsOfOthersAreBounded: each pool that a message names is a router and an index here.
func TestPoolsOfOthersAreBounded(t *testing.T) {
	known := map[string]bool{}
	p := NewPeers(Config{Join: time.Second, Expire: time.Second}, NewLocal("me", 1), pooled(known), noon)
	var do []Effect
	for i := range 3 * maxPools {
		slot := Slot{fmt.Sprint("model-", i), pools.Both, "w", 0}
		m := Message{Kind: natsbus.Delta, From: "b", Epoch: 1, Seq: uint64(i + 1),
			Shares: []SlotShare{{slot, load.Share{Account: load.Account{Requests: 1}}}}, Sends: []SlotSent{{slot, false, []uint64{1}}},
			Bound: []PoolBound{{Model: fmt.Sprint("bound-", i), Role: pools.Both}}}
		var err error
		do, err = receive(p, m.Append(nil), noon, do[:0])
		require.NoError(t, err)
	}
	assert.Len(t, known, maxPools, "a peer has made N pools")
}

// pooled notes the models that messages name.
type pooled map[string]bool

func (p pooled) ApplyShares(_, model string, _ pools.Role, _ []load.Shared, _ time.Time) {
	p[model] = true
}
func (p pooled) ApplySent(s SlotSent, _ time.Time)                  { p[s.Model] = true }
func (p pooled) ApplyOpened(string, Slot)                           {}
func (p pooled) ApplyHeads(string, string, []queue.Head, time.Time) {}
func (p pooled) ApplyBound(b PoolBound, _ time.Time)                { p[b.Model] = true }

// TestAnotherDigestIsFound spoils what is known of a peer: the next beat shows it.
func TestAnotherDigestIsFound(t *testing.T) {
	g := newGroup(t, 2)
	a, b := g.join("a", 1), g.join("b", 1)
	for range 100 {
		g.book(b)
	}
	g.run(time.Second)
	from := a.peers.peers["b"]
	for slot, w := range from.shares {
		from.digest ^= mix(&slot, &w.Account)
		delete(from.shares, slot)
		delete(a.books["b"], slot)
		break
	}
	g.agree(BeatEvery + 10*time.Millisecond)
	assert.EqualValues(t, 1, a.peers.Counts().Mismatches)
}
