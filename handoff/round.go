package handoff

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/decode"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff/connector"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/upstream"
	"github.com/tandem-pd/tandem/models"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/placement"
)

// round makes one attempt: the legs in the order of the connector's plan, the hand-off and the stream.
func (f *Flow) round(ctx context.Context, r *request, out Sink) *fault.Error {
	f.draft(r)
	a := r.nextRound()
	speaks, failed := f.connect(r, a)
	if failed != nil {
		return failed
	}
	a.TransferID = transferID()
	r.pin(a)
	if ask := f.rooms.Reannounce; ask != nil && r.KV == nil { // of the worker that computes the prompt
		a.PReannounce = a.P != nil && ask(a.P, a.PRank)
		a.DReannounce = a.P == nil && ask(a.D, a.DRank)
	}
	plan := &r.now.plan
	if err := planInto(plan, speaks, a); err != nil {
		if errors.Is(err, connector.ErrTakesNoIDs) {
			r.NotResumable = "engine"
		}
		return &fault.Error{Class: fault.Rejected, Leg: pools.Decode, Worker: a.D.ID, Err: err}
	}
	if plan.Order == connector.Together || plan.Order == connector.DecodeFirst {
		return f.pair(ctx, r, speaks, a, plan, out)
	}
	if plan.Order == connector.PrefillFirst && r.KV == nil {
		whole, failed := f.prefillFirst(ctx, r, speaks, a, plan)
		if failed != nil {
			return failed
		}
		if whole != nil {
			return f.answered(ctx, r, a, whole, &plan.Decode, out)
		}
	}
	if r.KV != nil {
		bindKV(&plan.Decode, a.D, speaks, r.KV)
	}
	call, out, end := letAttach(ctx, plan.Attach, out)
	defer end()
	var sent *atomic.Bool
	if plan.Once {
		sent = new(atomic.Bool)
		plan.Decode.Sent = func() { sent.Store(true) }
	}
	failed = f.decode(call, r, a.D, &plan.Decode, nil, nil, out)
	if r.KV != nil && (failed == nil || r.Sent.Began || takes(plan, r, failed, sent)) {
		// Decode has computed with the KV, or was cut off while it waited for it: either way its engine notifies
		// prefill's, which lets go.
		r.KV.taken = true
	}
	if failed != nil {
		f.suspect(r, a.D, failed)
	}
	return failed
}

// Serve and what it calls wait while a stream runs, with their frames on the goroutine's stack. Together they are to stay
// well below 7 kB, so that the stack takes 8. Where large values pass by copy, a function of its own copies them, whose
// frame is gone by then.

// planInto writes the round's plan into p.
//
//go:noinline
func planInto(p *connector.Plan, speaks connector.Connector, a *connector.Round) (err error) {
	*p, err = speaks.Plan(*a)
	return err
}

// bindKV adds to the leg of decode worker w what prefill handed over.
//
//go:noinline
func bindKV(d *upstream.Leg, w *pools.Worker, speaks connector.Connector, kv *StagedKV) {
	if kv.Prompt != nil {
		connector.Pin(d, w, kv.Prompt)
	}
	speaks.Bind(d, kv.KV)
}

// prefillFirst calls the prefill leg and stages its KV, unless its answer is the whole one.
func (f *Flow) prefillFirst(ctx context.Context, r *request, speaks connector.Connector, a *connector.Round, plan *connector.Plan) (whole *prefilled, _ *fault.Error) {
	came := &r.now.came
	*came = f.prefill(ctx, r, speaks, a, plan.Prefill, nil)
	plan.Prefill.Body = nil // it is not needed while decode runs
	r.prefilled(came)
	switch {
	case came.failed != nil:
		return nil, came.failed
	case came.whole != nil:
		came.permit.end()
		return came, nil
	}
	r.now.kv = StagedKV{KV: came.kv, Cached: came.cached, connector: speaks, producer: a.P, permit: came.permit, round: a}
	r.stage(&r.now.kv)
	return nil, nil
}

// connect finds how the round's workers hand over. If they speak different protocols, decode computes the prompt
// itself, where that is allowed.
func (f *Flow) connect(r *request, a *connector.Round) (speaks connector.Connector, _ *fault.Error) {
	var why error
	switch {
	case r.KV != nil:
		if speaks, why = f.rooms.Between(a.D, a.D); speaks != r.KV.connector {
			why = errors.New("its connector is another")
		}
	case a.P != nil:
		speaks, why = f.rooms.Between(a.P, a.D)
	default:
		speaks = connector.Local{}
	}
	if why == nil {
		return speaks, nil
	}
	failed := &fault.Error{Class: fault.Rejected, Leg: pools.Prefill, Worker: r.Prefill.Worker}
	switch pin := &r.pins.prefill; {
	case pin.Worker != "":
		failed.Err = openai.BadRequest(pin.field, "%s: the worker cannot hand its KV cache over to decode worker %q: %v", pin.field, a.D.ID, why)
		return nil, failed
	case !f.cfg.DecodeFallback, !a.D.ServesAlone():
		failed.Err = r.refusal(placement.ErrNoPrefill)
		return nil, failed
	}
	r.dropPrefill(placement.ReasonNoPartner)
	a.P = nil
	return connector.Local{}, nil
}

// prefilled is what came of a prefill leg.
type prefilled struct {
	kv     prefill.KV
	whole  []byte // prefill's answer, where it is the whole one
	cached int    // prompt tokens that the worker had cached, −1 if it did not report it
	ended  time.Time
	took   time.Duration
	permit permit // of the leg that has ended well, or whose failure is disputed; its owner ends it
	failed *fault.Error
	done   router.Done // of a slice, with it
	first  bool        // it failed while nothing else had ended the round
	// panicked is what the leg's own goroutine panicked with.
	panicked any
}

// prefill calls the prefill leg and gives its booking back. It changes nothing else of r, so that a decode leg may
// run at the same time: begun is set when that has had its first token, from which on prefill's end does not matter;
// nil if decode is not running.
func (f *Flow) prefill(ctx context.Context, r *request, speaks connector.Connector, a *connector.Round, call upstream.Leg, s *sibling) prefilled {
	leg, booking := Leg{Worker: a.P, Began: time.Now()}, r.p
	call.TraceParent = f.traceLeg(r, &leg, booking.Lease)
	f.observer.LegStarted(&r.Record, leg)
	answer, failed := f.rooms.Prefill.Run(ctx, booking.Lease, call)
	out := prefilled{cached: -1}
	if failed == nil {
		out.cached = answer.Said.CachedTokens
		var whole bool
		if out.kv, whole, failed = f.handedOver(ctx, r.prompt, speaks, a, answer); whole {
			out.whole = answer.Body
		}
		if failed != nil && out.kv.Params != nil { // it cannot be bound, and names what is to be released
			f.cleanup.abandon(speaks, *a, out.kv)
		}
	}
	out.ended, out.failed, out.first = time.Now(), failed, failed != nil && ctx.Err() == nil
	out.took = out.ended.Sub(leg.Began)
	if failed == nil {
		leg.First = out.ended
		f.observer.FirstToken(&r.Record, leg)
	}
	r.Trace.end(leg.Span, leg.First, out.ended, failureOf(failed))
	f.observer.LegEnded(&r.Record, leg)
	if disputed(failed) || failed == nil && s == nil {
		if failed == nil {
			booking.Done(nil)
		}
		out.permit = r.stack.keepPermit(r.pPlace)
	} else {
		booking.Done(failed)
	}
	bindSession(booking.Lease, failed)
	if failed != nil && (s == nil || s.outcome.Load() != decodeBegan) {
		booking.Invalidate() // it may not hold the prompt
	}
	if a.Slice > 0 && failed == nil { // no other request gets the worker before r comes back, at once, for the next slice
		r.stack.disown(r.pPlace)
		out.done = booking.Lease.Computed(r.done, out.ended)
	} else {
		r.stack.free(r.pPlace)
		f.Wake(r.Call.Request.Model)
	}
	if failed == nil {
		r.compare(booking.Lease, out.cached)
	}
	return out
}

// handedOver reads what prefill's answer hands over. Of one that cannot be bound the KV's Params, where they are not
// nil, name what is to be released. whole says that it is the client's whole answer.
func (f *Flow) handedOver(ctx context.Context, prompt models.Prompt, speaks connector.Connector, a *connector.Round, answer prefill.Answer) (kv prefill.KV, whole bool, _ *fault.Error) {
	kv, whole, err := speaks.OnPrefill(*a, answer, time.Now())
	if a.ShowPrompt {
		kv.Prompt = f.compareTokens(prompt, a.P, &answer.Said)
	}
	switch {
	case err == nil:
		return kv, whole, nil
	case ctx.Err() != nil: // an engine that was left in mid-prefill owes no hand-off
		return kv, false, fault.New(pools.Prefill, a.P.ID, context.Cause(ctx), 0)
	default:
		return kv, false, garbled(a, err)
	}
}

func garbled(a *connector.Round, err error) *fault.Error {
	return fault.New(pools.Prefill, a.P.ID, fmt.Errorf("%w: %w", fault.ErrGarbled, err), 0)
}

// answered relays prefill's answer, which is the whole one. Decode's worker was booked for nothing.
func (f *Flow) answered(ctx context.Context, r *request, a *connector.Round, came *prefilled, decodes *upstream.Leg, out Sink) *fault.Error {
	req, answer := r.Call.Request, came.whole
	if req.Stream {
		var err error
		if answer, err = openai.AppendEvents(nil, answer, req.Endpoint, req.IncludeUsage); err != nil {
			return garbled(a, err)
		}
	}
	r.stage(&StagedKV{Cached: came.cached, taken: true}) // nothing is held; what was cached is the client's to know
	return f.decode(ctx, r, a.D, decodes, answer, nil, out)
}

// decode calls the decode leg and relays its answer, or relays the answer that prefill gave, unless that is nil. s is the
// prefill leg that runs at the same time, nil if none does.
func (f *Flow) decode(ctx context.Context, r *request, w *pools.Worker, leg *upstream.Leg, answer []byte, s *sibling, out Sink) *fault.Error {
	m := r.now
	m.sibling, m.worker, m.given = s, w.ID, answer != nil
	f.callInto(&m.call, r, w, leg, answer)
	failed := f.rooms.Decode.Run(ctx, &m.call, out)
	r.Sent = m.call.Sent
	f.links.ended(r, w, failed)
	f.decoded(ctx, r, failed)
	return failed
}

// decoded takes in how the decode leg has ended.
//
//go:noinline
func (f *Flow) decoded(ctx context.Context, r *request, failed *fault.Error) {
	if !r.now.given && context.Cause(ctx) != errSibling { // else nothing is known of the worker
		if disputed(failed) && !r.Sent.Began {
			r.dispute(failed, r.stack.keepPermit(r.dPlace), r.leg.Worker)
		} else {
			r.d.Done(failed)
		}
		bindSession(r.d.Lease, failed)
	}
	if failed != nil && !r.Sent.Began {
		r.d.Invalidate()
	}
	if r.Trace != nil {
		r.Trace.end(r.leg.Span, r.leg.First, time.Now(), failureOf(failed))
	}
	f.observer.LegEnded(&r.Record, r.leg)
	if failed == nil && r.KV == nil {
		r.compare(r.d.Lease, r.Sent.CachedTokens)
	}
}

// callInto begins the decode leg of worker w and writes its call.
//
//go:noinline
func (f *Flow) callInto(call *decode.Call, r *request, w *pools.Worker, leg *upstream.Leg, answer []byte) {
	r.leg = Leg{Worker: w, Began: time.Now()}
	r.HandedOver = r.leg.Began
	if answer == nil {
		leg.TraceParent = f.traceLeg(r, &r.leg, r.d.Lease)
	}
	r.startDraft(w)
	req := r.Call.Request
	*call = decode.Call{
		Lease: r.d.Lease, Leg: *leg, Answer: answer,
		Stream: req.Stream, Draft: r.draft, HideIDs: r.computesAndShows() && !asksIDs(req, w.Engine), IncludeUsage: req.IncludeUsage, Choices: max(1, req.N),
		CachedTokens: r.calls.cachedTokens, MayMove: r.calls.mayMove, Prompt: r.calls.prompt, First: r.calls.first,
		Tail: r.nvext(), Gap: f.observer.LegStarted(&r.Record, r.leg),
		HideUsage: answer == nil && connector.Counts(w, req, r.showsIDs(w)),
		Memory:    req.Memory, Large: req.ShowsMore(),
		PromptTokens: r.length(), MaxTokens: r.longestAnswer(), Longest: r.mostTokens(), Tools: req.HasTools, HandedOff: r.KV != nil,
	}
	f.links.begin(f, r, w, answer != nil)
	call.Patience, call.Leave = f.links.patience(r), r.calls.leave
}

// firstToken takes in decode's first token. It proves the worker: a long answer must not hold a half-open circuit for as
// long as it lasts. A failure after it counts.
func (f *Flow) firstToken(r *request) {
	m := r.now
	if !m.sibling.begin(r) {
		return
	}
	f.links.arrived(r)
	others := r.settle(&f.links)
	if !m.given {
		r.d.Done(nil)
		bindSession(r.d.Lease, nil)
		r.cleared(m.worker, others)
	}
	f.endRetries(r) // a long answer must not keep others from a retry
	r.stopWaiting()
	r.leg.First = time.Now()
	f.observer.FirstToken(&r.Record, r.leg)
	f.Wake(r.Call.Request.Model)
	m.sent()
}

// pair calls both legs of a round, which run at the same time and find each other by what the plan put into them.
// They are one unit: the first failure ends the other leg, unless decode has had its first token, from which on it
// has the KV. pair returns when both have ended.
func (f *Flow) pair(ctx context.Context, r *request, speaks connector.Connector, a *connector.Round, plan *connector.Plan, out Sink) *fault.Error {
	r.stage(&StagedKV{Cached: -1, connector: speaks, producer: a.P, round: a})
	both, end := context.WithCancelCause(ctx)
	defer end(nil)
	sent := make(chan struct{})
	if plan.Decode.Sent = sync.OnceFunc(func() { close(sent) }); plan.Order == connector.Together {
		plan.Decode.Sent()
	}
	s := &sibling{came: make(chan prefilled, 1)}
	go func() {
		came := prefilled{first: true}
		defer func() {
			if came.panicked = recover(); came.first {
				end(errSibling)
			}
			s.came <- came
		}()
		select {
		case <-sent:
			came = f.prefill(both, r, speaks, a, plan.Prefill, s)
		case <-both.Done(): // decode ended before it was sent
			came = prefilled{failed: fault.New(pools.Prefill, a.P.ID, context.Cause(both), 0)}
		}
		came.first = came.first && s.decide(prefillEnded)
		if came.whole != nil && s.decide(prefillEnded) { // there is nothing to decode
			end(errSibling)
		}
	}()
	failed := f.decode(both, r, a.D, &plan.Decode, nil, s, &pairSink{decode.Front{Sink: out}, s})
	if s.outcome.Load() == prefillEnded { // a token that came in the same moment went nowhere
		accepted := r.Sent.Accepted
		r.Sent = r.draft.Undo()
		r.Sent.Accepted = accepted
	}
	if failed != nil && failed.Class == fault.EngineError && !r.Sent.Began {
		s.settle(r) // a prefill that died is why decode fails, and may be noticed a moment later
		// It may be prefill that decode cannot reach: the failure counts for both, and of the two the one that is to blame
		// goes on failing. The next round leaves prefill's worker out too, where there is another.
		end(errPartner)
		if f.hasOther(r, a.P) {
			r.tried = append(r.tried, a.P.ID)
		}
	}
	end(fault.ErrClientGone) // prefill has nothing more to do
	came := s.wait(r)
	if came.whole != nil && !r.Sent.Began {
		r.dropKV()
		return f.answered(ctx, r, a, came, &plan.Decode, out)
	}
	if failed == nil {
		r.KV.taken = true
	} else { // decode's engine may take a while to notice that its caller has left
		r.dropKV()
	}
	if failed != nil && came.first {
		return came.failed
	}
	return failed
}
