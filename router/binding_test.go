package router

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/load"
)

// bindingRouter has sessions bound for a minute.
func bindingRouter(t testing.TB, role pools.Role, change func(c *Config)) *Router {
	t.Helper()
	cfg := DefaultConfig()
	cfg.SessionTTL = time.Minute
	if change != nil {
		change(&cfg)
	}
	return newRouter(t, cfg.For(role), index.New(index.Config{}))
}

// serve has a request's worker begin to serve it, and end at once.
func serve(t testing.TB, r *Router, p *pools.Pool, req Request, now time.Time) string {
	t.Helper()
	l := reserve(t, r, p, req, now)
	l.Bind(now)
	l.Release(now)
	l.Bind(now) // as at the end of an answer
	return l.Worker.ID
}

// TestSessionsAreBound to a worker of each pool by the first request that it serves, whatever the policy, loads and caches; and to
// none where no time is set.
func TestSessionsAreBound(t *testing.T) {
	for _, choice := range (Config{}).Choices("") {
		for _, role := range []pools.Role{pools.Prefill, pools.Decode, pools.Both} {
			idx := index.New(index.Config{})
			cfg := DefaultConfig()
			cfg.Mode, cfg.SessionTTL = choice.Name, time.Minute
			r := newRouter(t, cfg.For(role), idx)
			p := poolOf(role, fleet("w", 4)...)
			other := Request{ID: "0", ISL: 100, Session: "s", Pin: &Pin{Worker: "w0002"}}
			require.Equal(t, "w0002", serve(t, r, p, other, noon))
			idx.Store(idx.Owner("w0000", 0), index.Device, chain(1, 20))
			l := reserve(t, r, p, Request{ID: "load", ISL: 3200, Pin: &Pin{Worker: "w0002"}}, noon)
			l.PrefillDone(noon) // so that in mode eft it is free
			req := Request{ID: "1", ISL: 320, Hashes: chain(1, 20), Session: "s"}
			for i := range 20 {
				req.ID = fmt.Sprint("turn-", i)
				assert.Equal(t, "w0002", serve(t, r, p, req, noon), "%s, %s: on X, bound to w0002", choice.Name, role)
			}
			assert.Equal(t, load.SessionCounts{Bindings: 1, Bound: 1, Hits: 20}, r.Bindings(noon), "%s, %s", choice.Name, role)
			assert.Len(t, picks(t, r, p, Request{ISL: 320, Session: "s"}, 5), 1, "%s, %s: one worker", choice.Name, role)

			off := bindingRouter(t, role, func(c *Config) { c.Mode, c.SessionTTL = choice.Name, 0 })
			plain := bindingRouter(t, role, func(c *Config) { c.Mode, c.SessionTTL = choice.Name, 0 })
			serve(t, off, p, other, noon)
			l = reserve(t, plain, p, other, noon)
			l.Release(noon)
			l.Unbind(noon)
			for i := range 50 {
				req := Request{ID: fmt.Sprint(i), ISL: 320, Session: "s"}
				a, aerr := off.Pick(p, req, noon)
				b, berr := plain.Pick(p, req, noon)
				require.True(t, a.Worker == b.Worker && aerr == nil && berr == nil,
					"%s, %s: no session is bound, and it is %v, %v instead of %v, %v", choice.Name, role, a.Worker, aerr, b.Worker, berr)
			}
			assert.True(t, !off.BindsSessions() && off.Bindings(noon) == (load.SessionCounts{}) && off.BindingsClock(noon) == 0 &&
				!off.ResendNextBindings(),
				"%s, %s: no time is set, and something is kept", choice.Name, role)
		}
	}
}

// TestABoundWorkerGivesWay: to any other worker where it is full, busy or not what the request requires, and it keeps the session; to
// the session's next one where it cannot be chosen at all. After a failure it is none of the session's.
func TestABoundWorkerGivesWay(t *testing.T) {
	for _, c := range []struct {
		name  string
		blunt func(p *pools.Pool, req *Request) // what keeps w0001 out of the choice
		moves bool
	}{
		{"full", func(p *pools.Pool, req *Request) { req.ISL = 1700 }, false},
		{"tainted", func(p *pools.Pool, req *Request) { req.Required = []string{"gold"} }, false},
		{"pinned elsewhere", func(p *pools.Pool, req *Request) { req.Pin = &Pin{Worker: "w0000"} }, false},
		{"claimed", func(p *pools.Pool, req *Request) {
			req.Ahead = []Claim{{Role: pools.Both, Pin: &Pin{Worker: "w0001"}}}
		}, false},
		{"cordoned", func(p *pools.Pool, req *Request) { p.Members[1].Status = pools.Draining }, true},
		{"down", func(p *pools.Pool, req *Request) {
			p.Members[1].Status, p.Members[1].DownUntil = pools.Down, noon.Add(time.Hour)
		}, true},
		{"tried, or blocked by its circuit", func(p *pools.Pool, req *Request) { req.Exclude = []string{"w0001"} }, true},
		{"gone", func(p *pools.Pool, req *Request) { p.Members = append(p.Members[:1:1], p.Members[2]) }, true},
		{"of fewer ranks", func(p *pools.Pool, req *Request) {
			w := *p.Members[1].Worker
			w.DataParallelRanks = 1
			p.Members[1].Worker = &w
		}, true},
	} {
		r := bindingRouter(t, pools.Both, nil)
		ws := fleet("w", 3)
		ws[0].Taints = []string{"gold"}
		ws[1].TotalKVBlocks, ws[1].DataParallelRanks = 100, 2
		p := poolOf(pools.Both, ws...)
		serve(t, r, p, Request{ID: "1", ISL: 100, Session: "s", Pin: &Pin{Worker: "w0001", Ranked: true, Rank: 1}}, noon)
		changed := *p
		changed.Version++
		changed.Members = append([]pools.Member(nil), p.Members...)
		req := Request{ID: "2", ISL: 100, Session: "s"}
		c.blunt(&changed, &req)
		l, err := r.Reserve(&changed, req, noon)
		require.NoError(t, err, "%s", c.name)
		assert.True(t, l.Worker.ID != "w0001" || l.Rank != 1, "%s: on its worker", c.name)
		l.Bind(noon)
		l.Release(noon)
		want := "w0001"
		if c.moves {
			want = l.Worker.ID
		}
		again, err := r.Pick(p, Request{ID: "3", ISL: 100, Session: "s"}, noon)
		assert.True(t, err == nil && again.Worker.ID == want, "%s: bound to %v (%v), want %s", c.name, again.Worker, err, want)
		got := r.Bindings(noon)
		assert.True(t, (got.Moved == 1) == c.moves && (got.Elsewhere == 1) != c.moves, "%s: %+v", c.name, got)
	}

	r := bindingRouter(t, pools.Decode, nil)
	p := poolOf(pools.Decode, fleet("w", 3)...)
	l := reserve(t, r, p, Request{ID: "1", ISL: 100, Session: "s"}, noon)
	l.Bind(noon)
	assert.Equal(t, 1, len(picks(t, r, p, Request{ISL: 100, Session: "s"}, 20)), "on N workers")
	l.Release(noon)
	l.Unbind(noon)
	assert.Equal(t, 3, len(picks(t, r, p, Request{ISL: 100, Session: "s"}, 50)), "its worker failed, and it is on N of 3")
}

// TestAHotSession keeps its worker up to the queue's threshold of prompt tokens. What is above it goes to the others.
func TestAHotSession(t *testing.T) {
	r := bindingRouter(t, pools.Prefill, func(c *Config) { c.QueueThreshold = 1 })
	p := poolOf(pools.Prefill, fleet("w", 4)...)
	first := serve(t, r, p, Request{ID: "first", ISL: 1000, Session: "s"}, noon)
	counts := map[string]int{}
	for i := range 20 {
		l := reserve(t, r, p, Request{ID: fmt.Sprint(i), ISL: 1000, Session: "s"}, noon)
		l.Bind(noon)
		counts[l.Worker.ID]++
	}
	if counts[first] != 9 { // the ninth is above 8192 tokens, and any more are too many
		t.Errorf("%v, bound to %s", counts, first)
	}
	c := r.Bindings(noon)
	assert.True(t, c.Hits == 9 && c.Elsewhere == 11 && c.Moved == 0, "%+v", c)
}

// TestALateSessionWaits: in mode eft a bound session waits for its worker while another is idle, and no longer than the threshold's tokens
// take.
func TestALateSessionWaits(t *testing.T) {
	r, p, _ := lateRouter(t)
	r.core.cfg.QueueThreshold = 1
	r.core.bindings = load.NewSessions(time.Minute, false)
	serve(t, r, p, Request{ID: "1", ISL: 100, Session: "s", Pin: &Pin{Worker: "b"}}, noon)
	reserve(t, r, p, Request{ID: "2", ISL: 5000, Pin: &Pin{Worker: "b"}}, noon)
	for i, want := range []time.Duration{5 * time.Second, 8 * time.Second} { // what is planned for it counts
		_, err := r.Reserve(p, Request{ID: fmt.Sprint("late", i), ISL: 3000, Session: "s", Drain: 1}, noon)
		later, ok := errors.AsType[*LaterError](err)
		require.True(t, ok, "request %d: %v", i, err)
		assert.Equal(t, "b", p.Members[later.Slot].Worker.ID)
		assert.Equal(t, want, later.Starts)
	}
	l := reserve(t, r, p, Request{ID: "5", ISL: 3000, Session: "s", Drain: 1}, noon)
	assert.Equal(t, "a", l.Worker.ID, "b is taken for 11 s, and 8192 tokens take 8.2")
}
