package load

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

var affinityNoon = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

const ttl = time.Minute

// clocked is a table and the time.
type clocked struct {
	*Sessions
	now time.Time
}

func newClocked(shared bool) *clocked { return &clocked{NewSessions(ttl, shared), affinityNoon} }

// use has a request of a session served by a worker; moves: because the session's own could not be chosen.
func (c *clocked) use(session, worker string, moves bool) {
	from := uint64(0)
	if moves {
		from, _, _ = c.Find(SessionHash(session), c.now)
	}
	c.Use(SessionHash(session), SessionHash(worker), 0, from, true, c.now)
}

// want fails unless a session is bound to a worker; empty: to none.
func (c *clocked) want(t *testing.T, session, worker string) {
	t.Helper()
	got, rank, ok := c.Find(SessionHash(session), c.now)
	assert.True(t, ok == (worker != "") && (!ok || (got == SessionHash(worker) && rank == 0)),
		"%s is bound to %x (%v), want %q, which is %x", session, got, ok, worker, SessionHash(worker))
}

func (c *clocked) counts() SessionCounts { return c.Counts(c.now) }

// TestABindingLasts as long as its session is used, and no longer. It goes to another worker where its own cannot be chosen, and
// stays where that is only full.
func TestABindingLasts(t *testing.T) {
	c := newClocked(false)
	c.want(t, "s", "")
	c.use("s", "w", false)
	for range 5 {
		c.now = c.now.Add(ttl - time.Millisecond)
		c.want(t, "s", "w")
		c.use("s", "w", false)
	}
	c.now = c.now.Add(ttl)
	c.want(t, "s", "")
	c.use("s", "v", false)
	c.want(t, "s", "v")
	c.use("s", "w", false)
	c.want(t, "s", "v")
	c.use("s", "w", true)
	c.want(t, "s", "w")
	assert.Equal(t, SessionCounts{Bindings: 1, Bound: 2, Hits: 5, Elsewhere: 1, Moved: 1}, c.counts())
	c.Use(SessionHash("s"), SessionHash("u"), 0, SessionHash("v"), true, c.now)
	c.want(t, "s", "w") // it was moved from v before
	c.Use(SessionHash("s"), SessionHash("w"), 0, 0, false, c.now)
	assert.EqualValues(t, 5, c.counts().Hits, "the end of a request that was counted counts once more")
}

// TestAFailureDropsABinding: the session's next worker is the one that serves it then. A failure of another worker is nothing to it.
func TestAFailureDropsABinding(t *testing.T) {
	c := newClocked(false)
	c.use("s", "w", false)
	c.Drop(SessionHash("s"), SessionHash("v"), 0, c.now)
	c.Drop(SessionHash("s"), SessionHash("w"), 1, c.now)
	c.want(t, "s", "w")
	c.Drop(SessionHash("s"), SessionHash("w"), 0, c.now)
	c.Drop(SessionHash("s"), SessionHash("w"), 0, c.now)
	c.want(t, "s", "")
	got := c.counts()
	assert.True(t, got.Bindings == 0 && got.Dropped == 1, "counts %+v", got)
	c.use("s", "v", false)
	c.want(t, "s", "v")
	c.now = c.now.Add(ttl)
	assert.Zero(t, c.counts().Bindings, "after its time")
	assert.Empty(t, c.index)
}

// TestSessionsAreBounded: a client that names a session a request takes the place of those that were not used for longest, and no more
// memory. The bytes are those that [Most] and the settings promise.
func TestSessionsAreBounded(t *testing.T) {
	heap := func() uint64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	c := newClocked(true)
	c.use("first", "w", false)
	for i := range 10 * MaxSessions {
		if i%1000 == 0 {
			c.use("busy", "w", false)
		}
		c.use(fmt.Sprint("s", i), "w", false)
		if i == MaxSessions/2 {
			c.want(t, "first", "w")
		}
	}
	each := float64(heap()-before) / MaxSessions
	t.Logf("%.0f bytes a binding", each)
	assert.True(t, each <= 130, "a binding takes %.0f bytes", each)
	c.want(t, "first", "")
	c.want(t, "busy", "w")
	got := c.counts()
	assert.True(t, got.Bindings == MaxSessions && got.Evicted == 9*MaxSessions+2 && len(c.pending) <= maxPending,
		"counts %+v, %d pending", got, len(c.pending))
	assert.EqualValues(t, 0, testing.AllocsPerRun(100, func() { c.use("busy", "w", false); c.Find(SessionHash("busy"), c.now) }),
		"a use of a bound session allocates N times")
	runtime.KeepAlive(c)
}

// TestExpiryIsSpread: many sessions that expire together are removed once, and their rows are used again.
func TestExpiryIsSpread(t *testing.T) {
	c := newClocked(false)
	for round := range 3 {
		for i := range 1000 {
			c.use(fmt.Sprint(round, "-", i), "w", false)
		}
		got := c.counts().Bindings
		assert.True(t, got == 1000 && len(c.rows) == 1001, "%d bindings in %d rows", got, len(c.rows))
		c.now = c.now.Add(ttl)
	}
	got := c.counts()
	assert.True(t, got.Bindings == 0 && got.Evicted == 0, "counts %+v", got)
}
