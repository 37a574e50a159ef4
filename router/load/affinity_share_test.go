package load

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// report has others hear what a table reports, and returns how many bindings that were.
func (c *clocked) report(others ...*clocked) (n int) {
	for clock, all := c.Delta(c.now); len(all) > 0; clock, all = c.Delta(c.now) {
		n += len(all)
		for _, o := range others {
			o.now = c.now
			o.Apply(clock, all, o.now)
		}
	}
	return n
}

func together(now time.Time, all ...*clocked) {
	for _, c := range all {
		c.now = now
	}
}

// TestTheFirstBindingWins where two gateways bind a session without knowledge of each other, whichever hears of it first; and one that
// was moved wins over both, because its worker is another for a reason.
func TestTheFirstBindingWins(t *testing.T) {
	for _, order := range [][2]int{{0, 1}, {1, 0}} {
		a, b := newClocked(true), newClocked(true)
		a.use("other", "v", false)
		a.report(b) // b has a's clock
		together(affinityNoon.Add(10*time.Millisecond), a, b)
		a.use("s", "early", false)
		together(affinityNoon.Add(15*time.Millisecond), a, b)
		b.use("s", "late", false)
		both := []*clocked{a, b}
		both[order[0]].report(both[order[1]])
		both[order[1]].report(both[order[0]])
		both[order[0]].report(both[order[1]])
		a.want(t, "s", "early")
		b.want(t, "s", "early")
		assert.Zero(t, a.report(b)+b.report(a), "equal, and N bindings are reported")

		b.use("s", "moved", true)
		b.report(a)
		a.want(t, "s", "moved")
		a.Drop(SessionHash("s"), SessionHash("moved"), 0, a.now)
		a.report(b)
		b.want(t, "s", "")
		b.use("s", "early", false)
		b.report(a)
		a.want(t, "s", "early")
	}
}

// TestRefreshesAreRare: a session that is used all the time is reported once in a quarter of its time, and lives on at the other.
func TestRefreshesAreRare(t *testing.T) {
	a, b := newClocked(true), newClocked(true)
	said := 0
	for range 1000 {
		together(a.now.Add(ttl/100), a, b)
		a.use("s", "w", false)
		said += a.report(b)
		b.want(t, "s", "w")
	}
	assert.True(t, said >= 35 && said <= 41, "%d reports in ten times its life", said)
	together(a.now.Add(ttl-ttl/4), a, b)
	b.want(t, "s", "w")
	together(a.now.Add(ttl/4), a, b)
	a.want(t, "s", "")
	b.want(t, "s", "")
}

// TestAJoiningGatewayLearns all bindings, in pieces, those idle for long included; that renews none. What it binds before it has
// heard of a binding moves no session of the others, and it gives way.
func TestAJoiningGatewayLearns(t *testing.T) {
	a, b, c := newClocked(true), newClocked(true), newClocked(true)
	for i := range 3000 {
		a.use(fmt.Sprint("s", i), fmt.Sprint("w", i%7), false)
		a.report(b)
		together(a.now.Add(ttl/4000), a, b)
	}
	together(a.now, a, b, c)
	c.use("s2999", "wrong", false)
	assert.True(t, c.Clock(c.now) < a.Clock(a.now) && newClocked(true).Clock(affinityNoon) == 0,
		"a gateway that starts has the group's clock")
	c.Apply(a.Clock(a.now), nil, c.now)
	c.report(a, b)
	a.want(t, "s2999", "w3")
	a.Resend(a.now)
	b.Resend(b.now)
	reported, pieces := 0, 0
	for goesOn := true; goesOn; pieces++ {
		together(a.now.Add(50*time.Millisecond), a, b, c)
		goesOn = a.ResendNext()
		reported += a.report(b, c)
		goesOn = b.ResendNext() || goesOn
		reported += b.report(a, c)
	}
	t.Logf("%d reports in %d pieces", reported, pieces)
	assert.True(t, pieces >= 7 && reported <= 2*3000+2, "%d reports in %d pieces", reported, pieces)
	for i := range 3000 {
		c.want(t, fmt.Sprint("s", i), fmt.Sprint("w", i%7))
	}
	together(a.now.Add(ttl-2*ttl/4), a, b, c) // s0 has been idle for longer than its time
	c.want(t, "s0", "")
	c.want(t, "s2999", "w3")
	together(a.now.Add(ttl/2), a, b, c)
	for _, g := range []*clocked{a, b, c} {
		g.want(t, "s2999", "")
	}
}

// TestAFloodOfAnother: a gateway that reports sessions without end fills what is free, and takes no place of a session that this
// gateway's own clients use. What it repeats wrongly is answered once a message.
func TestAFloodOfAnother(t *testing.T) {
	c := newClocked(true)
	for i := range MaxSessions / 2 {
		c.use(fmt.Sprint("own", i), "w", false)
	}
	c.report()
	var flood []SessionBinding
	for i := range 3 * MaxSessions {
		flood = append(flood, SessionBinding{Session: SessionHash(fmt.Sprint("theirs", i)), Worker: 1, Born: MaxSessionMillis,
			Idle: int64(i % 3)})
	}
	c.Apply(MaxSessionMillis, flood, c.now)
	if got := c.counts(); got.Bindings != MaxSessions || got.Evicted != 3*MaxSessions-MaxSessions/2 || len(c.index) != MaxSessions {
		t.Errorf("counts %+v, %d rows", got, len(c.index))
	}
	for i := range MaxSessions / 2 {
		c.want(t, fmt.Sprint("own", i), "w")
	}
	calm := newClocked(true)
	calm.use("s", "w", false)
	calm.report()
	for range 100 {
		calm.Apply(1, []SessionBinding{{Session: SessionHash("s"), Worker: 2, Born: MaxSessionMillis}}, calm.now)
	}
	assert.Equal(t, 1, calm.report(), "answers to a hundred times the same")
	c.Apply(-5, []SessionBinding{{Session: 0, Worker: 1}, {Session: 1, Worker: 1, Idle: -1},
		{Session: 1, Worker: 1, Idle: ttl.Milliseconds()}}, c.now)
	_, _, ok := c.Find(1, c.now)
	assert.False(t, ok, "a binding that has expired is taken in")
	c.Apply(0, []SessionBinding{{Session: SessionHash("own1"), Worker: 9, Moves: 1<<32 - 1}}, c.now)
	c.use("own1", "w", true)
	clock, _ := c.Delta(c.now)
	assert.True(t, clock == MaxSessionMillis, "the clock is %d", clock)
}

// TestTablesAgree loses, doubles and reorders reports of three gateways that use, move and drop the same sessions, some of them at the
// same time. Once all sessions were used again, and that was reported, all gateways have the same bindings.
func TestTablesAgree(t *testing.T) {
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 1))
		tables := []*clocked{newClocked(true), newClocked(true), newClocked(true)}
		for i, c := range tables {
			c.at(affinityNoon.Add(-time.Duration(i) * time.Hour)) // their clocks began at different times
		}
		type letter struct {
			to    int
			clock int64
			all   []SessionBinding
		}
		var under []letter
		say := func(from int, lost float64) {
			c := tables[from]
			for clock, all := c.Delta(c.now); len(all) > 0; clock, all = c.Delta(c.now) {
				for to := range tables {
					for range rng.IntN(2) + 1 {
						if to != from && rng.Float64() >= lost {
							under = append(under, letter{to, clock, slices.Clone(all)})
						}
					}
				}
			}
		}
		deliver := func(n int) {
			for ; n > 0 && len(under) > 0; n-- {
				i := rng.IntN(len(under))
				l := under[i]
				under = slices.Delete(under, i, i+1)
				tables[l.to].Apply(l.clock, l.all, tables[l.to].now)
			}
		}
		now := affinityNoon
		for range 3000 {
			now = now.Add(time.Duration(rng.IntN(20)) * time.Millisecond)
			together(now, tables...)
			from := rng.IntN(3)
			session, worker := fmt.Sprint("s", rng.IntN(30)), fmt.Sprint("w", rng.IntN(5))
			if rng.IntN(10) == 0 {
				tables[from].Drop(SessionHash(session), SessionHash(worker), 0, now)
			} else {
				tables[from].use(session, worker, rng.IntN(10) == 0)
			}
			say(from, 0.2)
			deliver(rng.IntN(4))
		}
		for range 4 { // with nothing lost any more
			now = now.Add(ttl / 3)
			together(now, tables...)
			for i, c := range tables {
				for k := range 30 {
					session := SessionHash(fmt.Sprint("s", k))
					if worker, rank, ok := c.Find(session, now); ok {
						c.Use(session, worker, rank, 0, true, now)
					}
				}
				say(i, 0)
			}
			for len(under) > 0 {
				deliver(len(under))
				for i := range tables {
					say(i, 0)
				}
			}
		}
		for k := range 30 {
			session := SessionHash(fmt.Sprint("s", k))
			w0, _, _ := tables[0].Find(session, now)
			w1, _, _ := tables[1].Find(session, now)
			w2, _, _ := tables[2].Find(session, now)
			require.True(t, w0 == w1 && w1 == w2, "seed %d: s%d is bound to %x, %x and %x", seed, k, w0, w1, w2)
		}
	}
}
