// Package router chooses the workers of a request, and books the load that the choice puts on them.
//
// A [Router] serves one pool. It filters the eligible workers, passes cached blocks (kv/overlap) and booked load
// (router/load) to its policy, and books the pick before the next request: a burst is spread by bookings a microsecond
// old. [ReservePair] books the two workers of a request in one step, both or neither.
//
// Policies are in policy_*.go, one a file. They are pure: the same query, candidates and seed make the same choice.
// So is all else but three files: router.go locks, set.go makes routers on demand, and log.go writes to a log.
//
// As a library: make a [Router] for each pool with [New], or a [Set]. Fill its index with the blocks that workers
// report (kv/index by hand, kv from an engine's messages); other workers are predicted. Call [Router.Reserve] or
// [ReservePair] for each request. The [Lease] has PrefillDone for the first token, Grow for generated blocks,
// Invalidate for a prompt that never arrived, and Release for the end. Waiting may help after [ErrBusy] and
// [ErrNoRoom]; not, or not soon, after [ErrNoWorkers], a [*TooBigError] or an [*OverloadedError].
// Example_routerBehindQueue in package handoff has the queue before the router.
//
// The package needs no server: it imports neither discovery, nor a message bus, nor
// HTTP, and takes the time as an argument.
package router

import (
	"errors"
	"math"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/kv/overlap"
	"github.com/tandem-pd/tandem/router/load"
)

// core chooses for one pool and keeps its bookings. It is not safe for concurrent use.
type core struct {
	cfg          Config
	policy       policy
	sources      *overlap.Sources
	book         *load.Book
	booked       uint64       // bookings made
	views        uint64       // made of its pool
	overlaps     Overlaps     // of the bookings
	plan         *plan        // nil if prompts are bound at once
	latest       Mode         // of the latest choice
	promised     atomic.Int64 // blocks kept for prompts that are computed elsewhere, by all gateways
	peerPromises peerPromises
	typical      typical        // of its bookings
	owned        owned          // in its view
	moments      moments        // of its bookings
	sent         []Sent         // not yet published
	bindings     *load.Sessions // of sessions; nil: none
	draws        uint64         // bookings drawn by water filling
}

// Overlaps count the blocks assumed cached by bookings, by source.
type Overlaps struct {
	Events    uint64 // reported by the worker, here or to a remote index
	Predicted uint64 // sent there, to a worker without events or with stale ones
	Recent    uint64 // sent there recently and not reported yet
}

// add counts a booking on w.
func (b *Overlaps) add(w *candidate, predicted bool) {
	assumed := uint64(w.Predicted)
	b.Events += uint64(w.Overlap) - assumed
	if predicted {
		b.Predicted += assumed
	} else {
		b.Recent += assumed
	}
}

// begin prepares c for a choice: everything that reads no booking.
func (k *core) begin(c *scratch, v *view, req Request, limits *Thresholds, now time.Time) {
	c.start(v, req)
	c.limits, c.tiers = limits, k.cfg.Cost == Credited
	c.why = Why{Explain: req.Explain || k.cfg.OnChoice != nil, Terms: c.why.Terms[:0]}
	v.narrow(c, now)
}

// find looks up the prompt's overlaps.
func (k *core) find(c *scratch, now time.Time) {
	prompt := overlap.Prompt{Hashes: c.req.Hashes, Text: c.req.Text, Remote: c.req.RemoteOverlap}
	k.sources.Find(c.view.overlaps, prompt, now, &c.found)
}

// pick has the policy choose among the candidates.
func (k *core) pick(c *scratch, now time.Time) (int, error) {
	var err error
	if c.ws, err = k.candidates(c, now); err != nil {
		return 0, err
	}
	c.query.Nth = k.booked
	c.shuffle()
	i, cost, ok := k.choose(c, now)
	if !ok {
		return 0, ErrDeclined
	}
	c.chose(i, cost)
	return i, k.bind(c, i, now)
}

// candidates returns the slots that may be chosen.
func (k *core) candidates(c *scratch, now time.Time) ([]candidate, error) {
	c.mode = k.mode(c.view)
	c.modeChanged = c.mode != k.latest && c.mode.Reason != ""
	k.latest = c.mode
	c.why.Policy, c.query.late = c.mode.Policy, k.plan != nil && c.mode.Policy == "eft"
	c.query.timed = c.mode.Policy == "eft" && !k.cfg.ignoresOverlap()
	if c.query.late {
		c.planned = k.plan.begin(c.query.Drain, c.view)
	}
	k.reserve(c)
	k.book.Look(c.query.shares(&k.cfg))
	ws, err := c.view.choices(c, k.book, now)
	c.query.Done.count(ws, c.view.blockSize)
	if c.query.late {
		k.delays(c, ws)
	}
	return ws, err
}

// none replaces the prefill candidate when decode computes the prompt, and the decode candidate when it is chosen
// later.
const none = -1

// pickPair is pick for two pools.
func pickPair(prefill, decode *core, cp, cd *scratch, now time.Time) (i, j int, err error) {
	var perr, derr error
	cp.ws, perr = prefill.candidates(cp, now)
	later := cp.req.DecodeLater && cp.query.late
	if !later || cp.req.Pairs != nil || !cd.able() {
		cd.ws, derr = decode.candidates(cd, now)
	}
	if perr != nil && errors.Is(perr, ErrNoWorkers) {
		if perr == ErrTaints {
			perr = errNoPrefillTaints
		} else {
			perr = ErrNoPrefill
		}
	}
	if perr != nil && finality(perr) >= finality(derr) {
		return 0, 0, cp.refuse(perr)
	}
	if derr != nil && !(later && (errors.Is(derr, ErrNoRoom) || errors.Is(derr, ErrBusy))) {
		return 0, 0, cd.refuse(derr)
	}

	pairs, alone := cp.req.Pairs, func(*candidate) bool { return false }
	if pairs != nil {
		if cp.req.StandIn {
			cd.alone = cd.alone[:0]
			for k := range cd.ws {
				if d := &cd.ws[k]; !cp.any(func(p *candidate) bool { return pairs(p.Worker, d.Worker) }) {
					cd.alone = append(cd.alone, d.slot)
				}
			}
			alone = func(d *candidate) bool { return slices.Contains(cd.alone, d.slot) }
		}
		if cp.keep(func(p *candidate) bool {
			return cd.any(func(d *candidate) bool { return pairs(p.Worker, d.Worker) })
		}); len(cp.ws) == 0 && cd.any(alone) {
			cd.keep(alone)
			cd.query.Nth = decode.booked
			cd.shuffle()
			j, err = decode.finish(cd, now)
			return none, j, err
		} else if len(cp.ws) == 0 {
			if cp.view.meets(cd.view, pairs, now) {
				return 0, 0, cd.refuse(ErrNoRoom) // the partners are full
			}
			return 0, 0, cp.refuse(ErrNoPartner)
		}
	}
	cp.query.Nth, cd.query.Nth = prefill.booked, decode.booked
	cp.shuffle()
	i, cost, ok := prefill.choose(cp, now)
	if !ok {
		return 0, 0, cp.refuse(ErrDeclined)
	}
	cp.chose(i, cost)
	if err := prefill.bind(cp, i, now); err != nil {
		return 0, 0, cp.refuse(err)
	}
	if later {
		return i, none, nil
	}
	cd.pcg = cp.pcg // the pair shares one random sequence
	if pairs != nil {
		p := cp.ws[i].Worker
		cd.keep(func(d *candidate) bool { return pairs(p, d.Worker) || alone(d) })
	}
	if j, err = decode.finish(cd, now); err == nil && alone(&cd.ws[j]) {
		i = none
	}
	return i, j, err
}

// finish picks among the remaining candidates of a pair's pool.
func (k *core) finish(c *scratch, now time.Time) (int, error) {
	i, cost, ok := k.choose(c, now)
	if !ok {
		return 0, c.refuse(ErrDeclined)
	}
	c.chose(i, cost)
	return i, nil
}

// grant books candidate i as l.
func (k *core) grant(l *Lease, c *scratch, i int, now time.Time) error {
	w, q := &c.ws[i], &c.query
	l.Choice, l.request, l.attempt, l.session = c.choice(i), q.ID, q.Attempt, c.session
	e := l.event(load.Add)
	e.Worker, e.Rank, e.Inputs = w.Worker.ID, int(w.Rank), q.Inputs
	if most := c.view.slots[w.slot].seqs; most < math.MaxInt {
		e.Inputs = min(q.Inputs, max(1, most/2)) // another batch is sent while the worker computes this one
	}
	if k.cfg.TrackPrefillTokens {
		cached := w.Overlap * q.BlockSize
		if c.tiers { // blocks of a slower tier are loaded, in part of the time
			cached += int(k.cfg.Credit.lower(w) * float64(q.BlockSize))
		}
		l.PrefillTokens = max(0, q.ISL-cached)
		l.BacklogTokens = w.Load.PrefillTokens + l.PrefillTokens
		e.PrefillTokens = l.PrefillTokens
		switch {
		case l.PrefillTokens == 0:
		case q.timed:
			e.PrefillTime = k.cfg.Occupies.own(q, w)
		case k.cfg.PrefillLoad == online && k.cfg.Forecast != nil:
			if d, ok := k.cfg.Forecast(w.Worker, 0, l.PrefillTokens, q.ISL-l.PrefillTokens); ok {
				e.PrefillTime = d
			}
		}
	}
	if k.cfg.TrackActiveBlocks {
		e.Chain, e.Unit = q.held(&k.cfg), index.Unit(q.Text)
		e.Blocks = q.blocks() - e.Unit.Blocks(len(e.Chain))
		switch {
		case !k.cfg.TrackOutputBlocks:
			e.Expected = load.Unweighed
		case q.OSL > 0:
			e.Expected = (q.OSL + q.BlockSize - 1) / max(1, q.BlockSize)
		}
	}
	if !k.book.Apply(e, now) {
		return ErrBooked
	}
	if k.cfg.Peers != nil {
		k.typical.add(&e, q.blocks()-w.Reused)
	}
	if c.drawn {
		k.draws++
	}
	k.booked++
	k.moments.add(now)
	k.overlaps.add(w, q.Text || k.sources.Predicts(w.Worker, int(w.Rank)))
	l.expected = k.sources.Expect(&c.found, w.Worker, int(w.Rank), q.ISL, q.BlockSize)
	return nil
}

// grantPair books candidates i and j, or neither. If one is none, it books the other alone.
func grantPair(prefill, decode *core, cp, cd *scratch, i, j int, now time.Time) (p, d *Lease, err error) {
	if j == none {
		p, err = grantPrefill(prefill, decode, cp, cd, i, now)
		return p, nil, err
	}
	if i == none {
		d = new(Lease)
		if err = decode.grant(d, cd, j, now); err != nil {
			return nil, nil, cd.refuse(err)
		}
		return nil, d, nil
	}
	before, leases := prefill.overlaps, new([2]Lease)
	p, d = &leases[0], &leases[1]
	if err = prefill.grant(p, cp, i, now); err != nil {
		return nil, nil, cp.refuse(err)
	}
	if err = decode.grant(d, cd, j, now); err != nil {
		prefill.booked--
		prefill.overlaps = before
		p.enter(prefill, p.event(load.Free), now)
		return nil, nil, cd.refuse(err)
	}
	return p, d, nil
}

// explain passes each candidate's terms to OnChoice.
func (k *core) explain(c *scratch) {
	if k.cfg.OnChoice != nil && len(c.why.Terms) > 0 {
		k.cfg.OnChoice(c.view.pool, &c.req, c.why.Terms)
	}
}

// WorkerLoad is the load of a worker over all its ranks.
type WorkerLoad struct {
	Worker        string `json:"id"`
	ActiveBlocks  int    `json:"active_blocks"`
	PrefillTokens int    `json:"prefill_tokens"`
	Requests      int    `json:"requests"`
	CachedBlocks  int    `json:"cached_blocks"`
	// Booked counts the bookings of all gateways, see [load.Page.Booked].
	Booked uint64 `json:"-"`
	// Others is the part of it that other gateways have booked.
	Others load.Account `json:"-"`
	// RecentBlocks is the blocks sent to it within [Config.PredictedTTL]. They count as cached; they may overlap with
	// CachedBlocks.
	RecentBlocks int `json:"sent_blocks,omitempty"`
}

func (k *core) loads(v *view) []WorkerLoad {
	loads := make([]WorkerLoad, len(v.pool.Members))
	for i := range v.slots {
		s := &v.slots[i]
		l := &loads[s.member]
		l.Worker = s.worker.ID
		l.ActiveBlocks += s.page.ActiveBlocks
		l.PrefillTokens += s.page.PrefillTokens
		l.Requests += s.page.Requests
		l.Booked += s.page.Booked()
		l.Others = l.Others.Plus(s.page.Others())
		l.RecentBlocks += k.sources.Recent(v.overlaps, i)
		l.CachedBlocks += k.sources.Cached(v.overlaps, i)
	}
	return loads
}
