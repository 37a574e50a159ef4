package replica

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/router/load"
)

const bindingTTL = 10 * time.Second

// serve has a gateway serve a request of a session: on the worker that it is bound to, as far as the gateway knows, else on another.
func (g *group) serve(m *member, session, other string) uint64 {
	s := load.SessionHash(session)
	worker, rank, bound := m.bound.Find(s, g.now)
	if !bound {
		worker, rank = load.SessionHash(other), 0
	}
	m.bound.Use(s, worker, rank, 0, true, g.now)
	g.after(5*time.Millisecond, func() { g.publishDelta(m) })
	return worker
}

// TestSessionsKeepTheirWorker sends the turns of sessions to gateways at random while messages are lost, doubled and reordered, and
// one gateway starts again. Nearly all turns go where the session's first one went, and the new gateway moves no session of the others.
func TestSessionsKeepTheirWorker(t *testing.T) {
	for seed := range uint64(20) {
		g := newGroup(t, seed)
		g.dropped, g.doubled, g.reorders = 0.01, 0.01, true
		live := []*member{g.join("a", 1), g.join("b", 1), g.join("c", 1)}
		g.run(time.Second)
		const sessions = 200
		var home [sessions]uint64
		turns, strays, early := 0, 0, 0
		for i := range 40 * sessions {
			if i == 20*sessions {
				live[2].dead = true
				live[2] = g.join("c", 2)
				for early = strays; !live[2].peers.Ready(g.now); {
					g.run(time.Millisecond)
				}
			}
			k := g.rng.IntN(sessions)
			at := g.serve(live[g.rng.IntN(3)], fmt.Sprint("s", k), fmt.Sprint("w", i))
			if turns++; home[k] == 0 {
				home[k] = at
			} else if at != home[k] {
				strays++
			}
			g.run(time.Duration(g.rng.IntN(8)) * time.Millisecond)
		}
		t.Logf("seed %d: %d of %d turns on another worker, %d of them before a gateway started", seed, strays, turns, early)
		assert.LessOrEqual(t, strays, turns/500, "seed %d of %d turns on another worker", seed, turns)
		for k := range sessions { // each is used once more, and where that was alone settles it
			g.serve(live[k%3], fmt.Sprint("s", k), "w")
		}
		g.dropped = 0
		g.run(time.Second)
		moved := 0
		for k := range sessions {
			a, _, _ := live[0].bound.Find(load.SessionHash(fmt.Sprint("s", k)), g.now)
			if a != home[k] {
				moved++
			}
		}
		assert.LessOrEqual(t, moved, sessions/100, "seed %d of %d sessions have moved for good", seed, sessions)
		g.run(2 * bindingTTL)
		for _, m := range live {
			assert.Zero(t, m.bound.Counts(g.now).Bindings, "seed %d bindings are left of unused sessions", seed)
		}
	}
}
