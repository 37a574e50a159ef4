package handoff

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff/connector"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/models"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/placement"
)

// Outcomes of a next turn's prompt that a client wants computed ahead (nvext.agent_hints.speculative_prefill); metric
// labels.
const (
	Warmed     = "warmed"  // the worker has it in its cache
	WarmCached = "cached"  // it had nearly all of it already
	WarmYield  = "yielded" // a request came
	WarmBusy   = "busy"    // no time was free, or too many prompts wait for it
	WarmFailed = "failed"  // the call failed, or the worker is gone
	WarmNone   = "unknown" // the next prompt is not known
)

// WarmOutcomes are all of them.
var WarmOutcomes = []string{Warmed, WarmCached, WarmYield, WarmBusy, WarmFailed, WarmNone}

// Bounds of prompts that are computed ahead.
const (
	warmAtOnce = 16                    // wait or are computed
	warmWithin = 5 * time.Second       // they wait
	warmEvery  = 50 * time.Millisecond // they look for a worker without work
	warmLeast  = 64                    // tokens: fewer take no longer within the next turn's own step
)

// errWarmYields ends a call that no request waits for.
var errWarmYields = fmt.Errorf("a request needs the worker: %w", fault.ErrClientGone)

// warming computes next turns' prompts on idle workers. Each is a goroutine of the clean-up, which a shutdown ends. A
// booking steers no request away from the worker: a request that arrives takes its tokens off the books, and one that
// is placed there or waits ends the call.
type warming struct {
	ctx  context.Context
	stop context.CancelCauseFunc

	running atomic.Int32 // calls: without any, requests have nothing to end

	mu       sync.Mutex // guards all below; held while a router books
	list     int        // prompts that wait or are computed
	calls    map[string]warmCall
	idle     map[string]*placement.Idle // by model
	gateways int
}

// warmCall is the one call on its worker.
type warmCall struct {
	*router.Lease
	cancel context.CancelCauseFunc
}

func newWarming() *warming {
	w := &warming{calls: map[string]warmCall{}, idle: map[string]*placement.Idle{}}
	w.ctx, w.stop = context.WithCancelCause(context.Background())
	return w
}

// arrived records a request for a model before it chooses workers.
func (w *warming) arrived(model string, now time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := w.idle[model]
	if i == nil {
		i = new(placement.Idle)
		w.idle[model] = i
	}
	i.Arrived(now)
	for _, c := range w.calls {
		if c.Worker.Model == model {
			c.PrefillDone(now)
		}
	}
}

// yields ends the call on a worker that got a request or, without a worker, all calls of a model whose request waits.
func (w *warming) yields(model, worker string) {
	if w.running.Load() == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, c := range w.calls {
		if id == worker || worker == "" && c.Worker.Model == model {
			c.cancel(errWarmYields)
		}
	}
}

// enter adds a prompt to the list, unless it is full.
func (w *warming) enter() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.list >= warmAtOnce || w.ctx.Err() != nil {
		return false
	}
	w.list++
	return true
}

func (w *warming) leave() {
	w.mu.Lock()
	w.list--
	w.mu.Unlock()
}

// turnSink collects the answer for the next turn's prompt.
type turnSink struct {
	Sink
	turn *openai.Turn
}

// Write implements [Sink], as do the methods below.
func (s *turnSink) Write(b []byte) error {
	s.turn.Write(b)
	return s.Sink.Write(b)
}

func (s *turnSink) Last(b []byte) error {
	s.turn.Write(b)
	return s.Sink.Last(b)
}

func (s *turnSink) TryWrite(b []byte) error {
	s.turn.Write(b)
	return s.Sink.TryWrite(b)
}

// ahead is a next turn's prompt.
type ahead struct {
	id, model string
	req       *openai.Request
	card      models.Card
	worker    *pools.Worker // that computed the present turn's
	rank      int
	prompt    models.Prompt
	ask       router.Request // its ID is empty before the prompt was read
}

// warm has the next turn's prompt computed after r's answer, if that is known and a worker is idle.
func (f *Flow) warm(r *request, turn *openai.Turn) {
	w, round := f.warming, &r.cur.round
	a := &ahead{id: f.ids.next(), model: r.Call.Request.Model, card: r.card, worker: round.D, rank: round.DRank}
	if round.P != nil {
		a.worker, a.rank = round.P, round.PRank
	} else if r.KV != nil && r.KV.producer != nil {
		a.worker, a.rank = r.KV.producer, r.KV.round.PRank
	}
	if !w.enter() {
		f.observer.Warmed(a.model, WarmBusy)
		return
	}
	a.req, _ = r.Call.Request.Next(turn)
	if a.req == nil || a.worker.Role == pools.Decode && !a.worker.ServesAlone() {
		w.leave()
		f.observer.Warmed(a.model, WarmNone)
		return
	}
	f.cleanup.calls.Go(func() {
		defer w.leave()
		f.observer.Warmed(a.model, f.warmAhead(a))
	})
}

// warmAhead waits until a's worker is idle, and calls it.
func (f *Flow) warmAhead(a *ahead) (outcome string) {
	tick := time.NewTicker(warmEvery)
	defer tick.Stop()
	for end := time.Now().Add(warmWithin); time.Now().Before(end); {
		if outcome = f.tryWarm(a); outcome != WarmBusy {
			return outcome
		}
		select {
		case <-f.warming.ctx.Done():
			return WarmYield
		case <-tick.C:
		}
	}
	return WarmBusy
}

// tryWarm calls a's worker if that is idle now.
func (f *Flow) tryWarm(a *ahead) (outcome string) {
	now, w, role := time.Now(), f.warming, pools.Prefill
	if a.worker.Role != pools.Prefill {
		role = pools.Decode // in which it is called
	}
	q, err := f.queue(a.model)
	pool := f.rooms.Roster.Snapshot(a.model, a.worker.Role)
	m, known := pool.Member(a.worker.ID)
	if err != nil || !known || m.Worker.Incarnation != a.worker.Incarnation || !m.Eligible(now) ||
		f.rooms.Breakers.State(a.worker.ID, role) != fault.Closed { // a trial is for requests
		return WarmFailed
	}
	in := f.rooms.Routers.For(a.model, a.worker.Role)
	spare := func(uncached int, forecast time.Duration, known bool) bool {
		for _, load := range in.Loads(pool) {
			if load.Worker == a.worker.ID {
				w.mu.Lock()
				idle := w.idle[a.model].Expect(len(pool.Members), w.gateways, now)
				w.mu.Unlock()
				return placement.Spare(q.Stats().Waiting, load, a.worker.Role != pools.Prefill, idle, uncached, forecast, known)
			}
		}
		return false
	}
	if !spare(0, 0, true) {
		return WarmBusy
	}
	if a.ask.ID == "" && !f.readAhead(a) {
		return WarmNone
	}
	at := 0
	for id := range pool.IDs() {
		if id == a.worker.ID {
			break
		}
		at++
	}
	cached := min(in.Held(pool, a.ask, now)[at]*a.worker.BlockSize, a.ask.ISL)
	uncached := a.ask.ISL - cached
	if uncached < max(warmLeast, 2*a.worker.BlockSize) {
		return WarmCached
	}
	forecast, known := f.rooms.Prefill.Forecast(a.worker, 0, uncached, cached)
	if !spare(uncached, forecast, known) {
		return WarmBusy
	}
	return f.warmCall(a, in, pool, role)
}

// readAhead makes a's prompt and the query for its worker.
func (f *Flow) readAhead(a *ahead) bool {
	var err error
	if a.prompt, _, err = a.card.Tokens(a.req, f.rooms.Languages.Of(a.model)); err != nil {
		return false
	}
	a.ask = router.Request{
		ID: a.id, Attempt: 1, ISL: len(a.prompt.IDs), Text: a.prompt.IDs == nil, Adapter: a.req.Adapter,
		Pin: &router.Pin{Worker: a.worker.ID, Ranked: a.worker.Ranks() > 1, Rank: a.rank},
	}
	if a.ask.Text {
		a.ask.ISL, _ = a.card.Estimate(a.req)
	}
	a.ask.Hashes, _ = a.card.Hashes(a.req, a.prompt)
	return true
}

// yieldToOthers ends a call, which ctx is of, when another gateway places a request on its worker.
func yieldToOthers(ctx context.Context, cancel context.CancelCauseFunc, in *router.Router, pool *pools.Pool, worker string) {
	tick := time.NewTicker(warmEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, l := range in.Loads(pool) {
			if l.Worker == worker && (l.Others.PrefillTokens > 0 || pool.Role != pools.Prefill && l.Others.Requests > 0) {
				cancel(errWarmYields)
			}
		}
	}
}

// warmCall books a's worker and calls it. Requests may end the call from when it is booked.
func (f *Flow) warmCall(a *ahead, in *router.Router, pool *pools.Pool, role pools.Role) (outcome string) {
	w := f.warming
	ctx, cancel := context.WithCancelCause(w.ctx)
	defer cancel(nil)
	w.mu.Lock()
	_, taken := w.calls[a.worker.ID]
	var lease *router.Lease
	var err error
	if !taken {
		w.running.Add(1) // before the booking: a request that is booked after it looks for the call
		if lease, err = in.Reserve(pool, a.ask, time.Now()); err == nil {
			w.calls[a.worker.ID] = warmCall{lease, cancel}
		} else {
			w.running.Add(-1)
		}
	}
	w.mu.Unlock()
	if taken || err != nil {
		return WarmBusy
	}
	worked := false
	defer func() {
		w.mu.Lock()
		delete(w.calls, a.worker.ID)
		w.mu.Unlock()
		w.running.Add(-1)
		if !worked {
			lease.Invalidate()
		}
		lease.Release(time.Now())
		f.Wake(a.model)
	}()
	if lease.BacklogTokens > lease.PrefillTokens { // a request was faster
		return WarmBusy
	}
	round := connector.Round{ID: a.id + "-1", Request: a.req, IDs: a.prompt.IDs, P: a.worker, PRank: lease.Rank, Kept: a.card.Kept(a.req)}
	if a.prompt.IDs != nil && a.prompt.Pins(a.worker) {
		round.PinnedIDs = a.prompt.JSON()
	}
	leg, err := connector.Warm(round)
	if err != nil {
		return WarmFailed
	}
	done, err := f.rooms.Breakers.Acquire(a.worker.ID, a.worker.Incarnation, role, a.req.Adapter, false)
	if err != nil {
		return WarmFailed
	}
	f.cleanup.calls.Go(func() { yieldToOthers(ctx, cancel, in, pool, a.worker.ID) })
	_, failed := f.rooms.Prefill.Run(ctx, lease, leg)
	if failed == nil {
		worked = true
		done(nil)
		return Warmed
	}
	done(failed)
	if ctx.Err() != nil {
		return WarmYield
	}
	return WarmFailed
}
