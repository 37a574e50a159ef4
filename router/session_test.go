package router

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/pools"
)

// TestSessionsPlaceAlike: gateways that share nothing send a session to one worker, whatever the policy, and sessions
// spread over all.
func TestSessionsPlaceAlike(t *testing.T) {
	p := poolOf(pools.Both, fleet("w", 8)...)
	for _, choice := range (Config{}).Choices("") {
		cfg := inMode(choice.Name)
		one := newRouter(t, cfg, nil)
		cfg.Seed = 99
		two := newRouter(t, cfg, nil)
		used := map[string]int{}
		for i := range 400 {
			session := fmt.Sprint("session-", i)
			a, err := one.Pick(p, Request{ID: fmt.Sprint("a", i), ISL: 100, Session: session}, noon)
			b, berr := two.Pick(p, Request{ID: fmt.Sprint("b", i), ISL: 900, Session: session}, noon)
			require.True(t, err == nil && berr == nil && a.Worker == b.Worker,
				"%s: %s goes to %v and %v (%v, %v)", choice.Name, session, a.Worker, b.Worker, err, berr)
			used[a.Worker.ID]++
		}
		for _, w := range p.Members {
			n := used[w.Worker.ID]
			assert.True(t, n >= 25 && n <= 80, "%s: %d of 400 sessions on %s of 8", choice.Name, n, w.Worker.ID)
		}
	}
}

// TestSessionsStayWhereTheyAre: a worker that leaves moves its own sessions and no others.
func TestSessionsStayWhereTheyAre(t *testing.T) {
	ws := fleet("w", 8)
	r := newRouter(t, DefaultConfig(), nil)
	for i := range 200 {
		req := Request{ID: fmt.Sprint(i), ISL: 100, Session: fmt.Sprint("session-", i)}
		before, err := r.Pick(poolOf(pools.Both, ws...), req, noon)
		after, aerr := r.Pick(poolOf(pools.Both, ws[:7]...), req, noon)
		require.True(t, err == nil && aerr == nil && (before.Worker == ws[7] || after.Worker == before.Worker),
			"session %d went from %v to %v (%v, %v)", i, before.Worker, after.Worker, err, aerr)
	}
}

// TestOverlapsDecideBeforeSessions: a session counts where no worker holds more of the prompt than another, and its
// worker is passed over while it has more to do than 1.25 times the mean.
func TestOverlapsDecideBeforeSessions(t *testing.T) {
	idx := index.New(index.Config{})
	r := newRouter(t, DefaultConfig(), idx)
	p := poolOf(pools.Both, fleet("w", 4)...)
	prompt := chain(1, 50)
	req := Request{ID: "1", ISL: 800, Hashes: prompt, Session: "s"}
	pick := func() string {
		t.Helper()
		c := pick(t, r, p, req, noon)
		return c.Worker.ID
	}
	home := pick()
	for _, w := range p.Members {
		idx.Store(idx.Owner(w.Worker.ID, 0), index.Device, prompt[:10])
	}
	assert.Equal(t, home, pick(), "on N while all hold as much")
	away := map[bool]string{true: "w0001", false: "w0000"}[home == "w0000"]
	idx.Store(idx.Owner(away, 0), index.Device, prompt)
	assert.Equal(t, away, pick(), "on X: it holds the prompt")
	idx.Clear(idx.Owner(away, 0))
	idx.Store(idx.Owner(away, 0), index.Device, prompt[:10])
	l, err := r.Reserve(p, req, noon)
	require.True(t, err == nil && l.Worker.ID == home, "%v %v", l, err)
	assert.NotEqual(t, home, pick(), "still on X, which has all there is to do")
	l.Release(noon)
	assert.Equal(t, home, pick(), "on N again")

	decode := newRouter(t, DefaultConfig().For(pools.Decode), nil)
	assert.Equal(t, 4, len(picks(t, decode, p, Request{ISL: 100, Session: "s"}, 200)),
		"a session keeps to N of 4 decode workers, where load alone decides")
}
