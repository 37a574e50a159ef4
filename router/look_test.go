package router

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/pools"
)

// A booking uses what was looked up for its request, once: what the index stores afterwards does not show. It looks up anew if
// the look is old, was used, or is of another prompt, pool or router, and if another prompt is assumed since.
func TestBookingUsesTheLook(t *testing.T) {
	hashes, others := chain(1, 4), chain(2, 4)
	for name, c := range map[string]struct {
		between func(r *Router, p **pools.Pool, req *Request, now *time.Time)
		blocks  int
	}{
		"at once":     {func(*Router, **pools.Pool, *Request, *time.Time) {}, 1},
		"within 1 ms": {func(_ *Router, _ **pools.Pool, _ *Request, now *time.Time) { *now = now.Add(lookFor) }, 1},
		"later":       {func(_ *Router, _ **pools.Pool, _ *Request, now *time.Time) { *now = now.Add(lookFor + 1) }, 3},
		"used": {func(r *Router, p **pools.Pool, req *Request, now *time.Time) {
			_, err := r.Pick(*p, *req, *now)
			assert.NoError(t, err)
		}, 3},
		"dropped": {func(_ *Router, _ **pools.Pool, req *Request, _ *time.Time) { req.Look.End() }, 3},
		"another snapshot": {func(_ *Router, p **pools.Pool, _ *Request, _ *time.Time) {
			*p = poolOf(pools.Prefill, fleet("w", 1)...)
		}, 3},
		"another prompt": {func(_ *Router, _ **pools.Pool, req *Request, _ *time.Time) { req.Hashes = others }, 0},
		"a prompt was sent": {func(r *Router, p **pools.Pool, _ *Request, now *time.Time) {
			reserve(t, r, *p, Request{ID: "o", ISL: 64, Hashes: others}, *now)
		}, 3},
	} {
		idx, cfg := index.New(index.Config{}), DefaultConfig().For(pools.Prefill)
		cfg.PredictedTTL = 2 * time.Second
		r, p, now := newRouter(t, cfg, idx), poolOf(pools.Prefill, fleet("w", 1)...), noon
		owner := idx.Owner("w0000", 0)
		idx.Store(owner, index.Device, hashes[:1])
		req := Request{ID: "x", ISL: 80, Hashes: hashes}
		look := r.Look(p, req, now)
		req.Look = &look
		idx.Store(owner, index.Device, hashes[:3])
		c.between(r, &p, &req, &now)
		assert.Equal(t, 1, look.Blocks, "%s: the look", name)
		assert.Equal(t, c.blocks, reserve(t, r, p, req, now).Overlap, name)
	}
}
