package router

import (
	"cmp"
	"context"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/index"
)

// choice is the working memory of one choice. It is used again for others.
type choice struct {
	view     *view
	seen     *index.Matches // own, unseen, or that of the choice it was made beside
	own      index.Matches
	foreseen index.Matches // the same by prediction
	sent     index.Matches // and by what was sent a moment ago
	// others is what an index elsewhere says, and placed where it tells of each
	// seat; nil where none was asked.
	others  []Held
	placed  *placing
	runs    []uint32 // by seat: the leading blocks of the prompt that it holds
	said    []uint32 // the same but for what is foreseen; runs where nothing is
	base    []uint32 // memory for said
	kept    []int32  // the seats that the request leaves, unless it leaves all
	all     bool
	met     passed
	largest int         // total_kv_blocks of the largest worker that it names
	ws      []Candidate // behind the last one, what earlier choices left
	of      uint64      // the number of the view whose workers ws knows
	tiers   bool        // slower tiers count
	limits  *Thresholds
	why     Why
	chosen  int     // the candidate that was
	pair    PairWhy // of a pair, in the choice of its first leg
	pcg     rand.PCG
	rng     *rand.Rand // over pcg
}

// unseen is what a router that looks nothing up has seen.
var unseen index.Matches

// begin does what needs no lock: it sees the pool and matches the prompt.
func (r *Router) begin(p *pools.Pool, req *Request, now time.Time) *choice {
	c := r.prepare(p, req)
	whole := !r.blind && c.hear(req.Told) // of everybody: there is nothing left to look up
	if whole || r.idx == nil || !c.view.followed || req.Text {
		c.seen = &unseen
	} else {
		r.idx.Match(req.Hashes, c.seen)
	}
	r.foresee(c, req, now, !whole)
	return c
}

// foresee matches the prompt with what is predicted of the pool, if it is to look,
// and sums up: a seat holds what it is told or known to hold, or predicted to where
// nothing is known, and no less than it was sent a moment ago.
func (r *Router) foresee(c *choice, req *Request, now time.Time, look bool) {
	v := c.view
	v.narrow(c, req, now)
	c.runs = slices.Grow(c.runs[:0], len(v.seats))[:len(v.seats)]
	clear(c.runs)
	c.seen.Raise(c.runs, v.known)
	if c.placed != nil {
		for i := range c.runs {
			if h := c.heard(i); h != nil {
				c.runs[i] = uint32(max(0, h.Device))
			}
		}
	}
	guess, owners, aside := v.predicted && look, v.guessed, v.aside
	if req.Text {
		guess, owners, aside = r.predicted != nil, v.texted, false
	}
	if c.said = c.runs; !guess && !aside {
		return
	}
	c.base = append(c.base[:0], c.runs...)
	c.said = c.base
	if guess {
		r.predicted.match(req.Hashes, &c.foreseen, now)
		for i, o := range owners {
			if o != index.NoOwner && c.heard(i) == nil {
				c.runs[i] = uint32(c.foreseen.Leading(o))
			}
		}
	}
	if aside {
		r.sent.match(req.Hashes, &c.sent, now)
		c.sent.Raise(c.runs, v.sent)
	}
}

// beginBeside is begin for the second leg of a pair. It does not look the prompt
// up again where the first leg's router did, in the same index.
func (r *Router) beginBeside(router *Router, first *choice, p *pools.Pool, req *Request, now time.Time) *choice {
	if r.blind || !first.view.followed || r.idx != router.idx || r.see(p).blockSize != first.view.blockSize || req.Told != nil || req.Text {
		return r.begin(p, req, now)
	}
	c := r.prepare(p, req)
	c.seen = first.seen
	r.foresee(c, req, now, true)
	return c
}

// prepare readies a choice for req in p.
func (r *Router) prepare(p *pools.Pool, req *Request) *choice {
	c := r.choices.Get().(*choice)
	c.view = r.see(p)
	c.seen = &c.own
	c.ws = c.ws[:0]
	c.letGo()
	c.why = Why{
		Policy:  r.cfg.Mode,
		Explain: req.Explain || r.log.Enabled(context.Background(), slog.LevelDebug),
		Terms:   c.why.Terms[:0],
	}
	req.BlockSize = c.view.blockSize
	req.ISL = max(0, req.ISL)
	return c
}

// letGo forgets the candidates of another view, whose workers may have gone.
func (c *choice) letGo() {
	if c.of != c.view.number {
		c.of = c.view.number
		clear(c.ws[:cap(c.ws)])
	}
}

// end gives a choice back.
func (r *Router) end(c *choice) {
	c.view, c.seen, c.limits, c.others, c.placed, c.said = nil, nil, nil, nil, nil, nil
	r.choices.Put(c)
}

// shuffle makes the choice's randomness that of the pool, request and attempt.
func (c *choice) shuffle(req *Request) {
	c.pcg.Seed(xxh3.HashStringSeed(req.ID, c.view.seed), uint64(req.Attempt))
}

// settle records that candidate i was chosen.
func (c *choice) settle(i int, cost float64) {
	c.chosen, c.why.Cost = i, cost
	c.why.Overlap, c.why.Foreseen = c.ws[i].Overlap, int(c.ws[i].Foreseen)
	c.why.Candidates = len(c.ws)
}

// told returns the choice's reasons to keep, the terms only if req asks for
// them: the choice needs its memory again.
func (c *choice) told(req *Request) Why {
	w := c.why
	w.Terms = nil
	if req.Explain {
		w.Terms = slices.Clone(c.why.Terms)
		if len(w.Terms) > MaxTerms {
			w.Terms[0], w.Terms[c.chosen] = w.Terms[c.chosen], w.Terms[0]
			slices.SortStableFunc(w.Terms[1:], func(a, b Term) int { return cmp.Compare(a.Cost, b.Cost) })
			w.Terms = slices.Clone(w.Terms[:MaxTerms]) // lets go of the others
		}
	}
	return w
}

// refuse names the choice's pool in an error.
func (c *choice) refuse(err error) error {
	return &PoolError{c.view.pool.Model, c.view.pool.Role, err}
}
