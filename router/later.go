package router

import (
	"math"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/router/load"
)

// grantPrefill books candidate i for a prompt, or a slice, whose decode worker is chosen later.
func grantPrefill(prefill, decode *core, cp, cd *scratch, i int, now time.Time) (*Lease, error) {
	w, whole := &cp.ws[i], prefill.cfg.Forecast.own(&cp.query, &cp.ws[i])
	l := &Lease{Slice: prefill.cut(cp, i)}
	need := cd.query.blocks() + 1
	if l.Slice == 0 && !decode.keeps(cd.view, need, now) {
		return nil, cd.refuse(ErrNoRoom)
	}
	if err := prefill.grant(l, cp, i, now); err != nil {
		return nil, cp.refuse(err)
	}
	cp.req.Done.rest.End()
	if l.Slice == 0 {
		l.promise = decode.promise(need)
	} else {
		l.rest = &load.Rest{Request: cp.req.ID, Takes: max(0, whole-prefill.cfg.Forecast.own(&cp.query, w))}
		cp.view.slots[w.slot].page.Await(l.rest)
	}
	return l, nil
}

// cut limits the choice to the slice of the prompt that candidate i is to compute, and returns its end in tokens, 0 for
// the whole prompt. The last slice is up to 1.5 slices long.
func (k *core) cut(c *scratch, i int) int {
	q, slice := &c.query, k.cfg.Slice
	if !q.Sliced || slice == 0 || 2*q.uncached(&c.ws[i]) <= 3*slice || q.Done.Slices*slice >= q.ISL {
		return 0
	}
	blocks := c.ws[i].Overlap + max(1, slice/q.BlockSize)
	if blocks > len(q.Hashes) {
		return 0
	}
	c.req.ISL, c.req.Hashes = blocks*q.BlockSize, q.Hashes[:blocks]
	return c.req.ISL
}

// SliceTokens returns the length of a slice, 0 if prompts are not sliced.
func (r *Router) SliceTokens() int {
	if !r.core.cfg.BindsLate() {
		return 0
	}
	return r.core.cfg.Slice
}

// promise is room kept for a prompt while it is computed.
type promise struct {
	of     *atomic.Int64 // the pool's promised blocks
	blocks int64
}

func (k *core) promise(blocks int) promise {
	k.promised.Add(int64(blocks))
	return promise{&k.promised, int64(blocks)}
}

// end releases the room. It is called once.
func (p promise) end() {
	if p.of != nil {
		p.of.Add(-p.blocks)
	}
}

// keeps reports whether the workers of v have room for more blocks beyond the promised ones.
func (k *core) keeps(v *view, blocks int, now time.Time) bool {
	free := -k.promised.Load()
	for i := range v.slots {
		s := &v.slots[i]
		if s.blocks == math.MaxInt {
			return true
		}
		if v.eligible(s, now) {
			free += int64(max(0, s.blocks-s.page.ActiveBlocks))
		}
	}
	return int64(blocks) <= free
}
