package router

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/tandem-pd/tandem/kv/overlap"
)

// scratch is the reusable memory of one choice.
type scratch struct {
	req         Request // the caller's, with an ISL of at least 0
	query       query   // the same for the policy
	view        *view
	found       overlap.Lookup // the prompt's overlaps
	kept        []int32        // the slots that the request leaves; unset if it leaves all
	all         bool
	met         passed
	largest     int             // total_kv_blocks of the largest worker that it names
	ws          []candidate     // beyond its length: candidates of earlier choices
	of          uint64          // the view of the workers in ws
	tiers       bool            // slower tiers count
	alone       []int32         // slots that no prefill worker can hand over to
	planned     []time.Duration // of the drain, by slot; nil outside of one
	mode        Mode            // by which the choice is made
	modeChanged bool            // since the choice before
	limits      *Thresholds
	owns        []bool // by slot; nil: all
	drawn       bool   // by water filling
	reserved    int    // blocks of a worker reserved for its owner
	session     sessionOf
	costs       []float64 // of the candidates, if kept
	raised      []float64 // with one more booking
	lots        []lot     // of a draw
	why         Why
	pcg         rand.PCG
	rng         *rand.Rand // over pcg
}

func newScratch() *scratch {
	c := new(scratch)
	c.rng = rand.New(&c.pcg)
	return c
}

// start begins a choice for req in v.
func (c *scratch) start(v *view, req Request) {
	c.view, c.req = v, req
	c.req.ISL = max(0, req.ISL)
	c.query = query{Request: &c.req, BlockSize: v.blockSize, rng: c.rng, why: &c.why}
	c.ws = c.ws[:0]
	if c.of != v.number { // drops the candidates of another view, whose workers may have left
		c.of = v.number
		clear(c.ws[:cap(c.ws)])
	}
}

// end drops references to the request and its pool.
func (c *scratch) end() {
	c.req, c.query, c.view, c.limits, c.planned, c.owns, c.reserved, c.modeChanged = Request{}, query{}, nil, nil, nil, nil, 0, false
	c.drawn = false
	c.found.End()
}

// able reports whether a worker could serve the request if it were empty and no threshold applied.
func (c *scratch) able() bool { return c.met&able != 0 && *c.limits == Thresholds{} }

// keep drops the candidates that do not meet ok. Their memory stays for later choices.
func (c *scratch) keep(ok func(w *candidate) bool) {
	n := 0
	for i := range c.ws {
		if ok(&c.ws[i]) {
			c.ws[n], c.ws[i] = c.ws[i], c.ws[n]
			n++
		}
	}
	c.ws = c.ws[:n]
}

func (c *scratch) any(ok func(w *candidate) bool) bool {
	for i := range c.ws {
		if ok(&c.ws[i]) {
			return true
		}
	}
	return false
}

// shuffle seeds the choice's randomness from the pool, request and attempt.
func (c *scratch) shuffle() {
	c.pcg.Seed(xxh3.HashStringSeed(c.req.ID, c.view.seed), uint64(c.req.Attempt))
}

// chose records that candidate i was chosen.
func (c *scratch) chose(i int, cost float64) {
	c.why.Cost = cost
	c.why.Overlap, c.why.Predicted = c.ws[i].Overlap, int(c.ws[i].Predicted)
	c.why.Candidates = len(c.ws)
}

// choice returns that candidate i was chosen, and why. Terms are copied only on request, since c is reused.
func (c *scratch) choice(i int) Choice {
	w := c.why
	w.Terms = nil
	if c.req.Explain {
		w.Terms = slices.Clone(c.why.Terms)
		if len(w.Terms) > MaxTerms {
			w.Terms[0], w.Terms[i] = w.Terms[i], w.Terms[0]
			slices.SortStableFunc(w.Terms[1:], func(a, b Term) int { return cmp.Compare(a.Cost, b.Cost) })
			w.Terms = slices.Clone(w.Terms[:MaxTerms]) // releases the others
		}
	}
	return Choice{c.ws[i].Worker, int(c.ws[i].Rank), w}
}

// refuse wraps an error with the choice's pool.
func (c *scratch) refuse(err error) error {
	if _, later := err.(*LaterError); later {
		return err // already wrapped
	}
	return &PoolError{c.view.pool.Model, c.view.pool.Role, err}
}
