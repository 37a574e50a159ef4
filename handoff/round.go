package handoff

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/decode"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff/connector"
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/placement"
)

// round runs the legs in the order of the connector's plan, the hand-off and the stream.
func (f *Flow) round(ctx context.Context, r *request, out Sink) *fault.Error {
	f.draft(r)
	round := r.nextRound()
	speaks, failed := f.connect(r, round)
	if failed != nil {
		return failed
	}
	round.TransferID = transferID()
	r.pin(round)
	if ask := f.rooms.Reannounce; ask != nil && r.KV == nil && r.Call.Request.Endpoint.Generates() { // on the worker that computes the prompt
		round.PReannounce = round.P != nil && ask(round.P, round.PRank)
		round.DReannounce = round.P == nil && ask(round.D, round.DRank)
	}
	plan := &r.cur.plan
	if err := planInto(plan, speaks, round); err != nil {
		if errors.Is(err, connector.ErrTakesNoIDs) {
			r.NotResumable = "engine"
		}
		return &fault.Error{Class: fault.Rejected, Leg: pools.Decode, Worker: round.D.ID, Err: err}
	}
	if plan.Order == connector.Together || plan.Order == connector.DecodeFirst {
		return f.pair(ctx, r, speaks, round, plan, out)
	}
	if plan.Order == connector.PrefillFirst && r.KV == nil {
		whole, failed := f.prefillFirst(ctx, r, speaks, round, plan)
		if failed != nil {
			return failed
		}
		if whole != nil {
			return f.relayPrefill(ctx, r, round, whole, &plan.Decode, out)
		}
	}
	if r.KV != nil {
		bindKV(&plan.Decode, round.D, speaks, r.KV)
	}
	callCtx, out, end := letAttach(ctx, plan.Attach, out)
	defer end()
	var sent *atomic.Bool
	if plan.Once {
		sent = new(atomic.Bool)
		plan.Decode.Sent = func() { sent.Store(true) }
	}
	failed = f.decode(callCtx, r, round.D, &plan.Decode, nil, nil, out)
	if r.KV != nil && (failed == nil || r.Sent.HasToken || ownsKV(plan, r, failed, sent)) {
		// Decode used the KV, or was cut while it waited for it. Either way its engine makes prefill's release it.
		r.KV.taken = true
	}
	if failed != nil {
		f.suspect(r, round.D, failed)
	}
	return failed
}

// Serve and its callees wait while a stream runs, so their frames stay on the stack. Together they must stay well
// below 7 kB to fit a stack of 8. Functions that copy large values are separate, so that their frames are gone by
// then.

// planInto writes the round's plan into p.
//
//go:noinline
func planInto(p *connector.Plan, speaks connector.Connector, round *connector.Round) (err error) {
	*p, err = speaks.Plan(*round)
	return err
}

// bindKV adds prefill's hand-off to the leg of decode worker w.
//
//go:noinline
func bindKV(d *http1.Leg, w *pools.Worker, speaks connector.Connector, kv *StagedKV) {
	if kv.Prompt != nil {
		connector.Pin(d, w, kv.Prompt)
	}
	speaks.Bind(d, kv.KV)
}

// prefillFirst calls the prefill leg and stages its KV, unless its answer is the whole one.
func (f *Flow) prefillFirst(
	ctx context.Context, r *request, speaks connector.Connector, round *connector.Round, plan *connector.Plan,
) (whole *prefilled, _ *fault.Error) {
	result := &r.cur.result
	*result = f.prefill(ctx, r, speaks, round, plan.Prefill, nil)
	plan.Prefill.Body = nil // unused while decode runs
	r.prefilled(result)
	switch {
	case result.failed != nil:
		return nil, result.failed
	case result.whole != nil:
		result.permit.end()
		return result, nil
	}
	r.cur.kv = StagedKV{KV: result.kv, Cached: result.cached, connector: speaks, producer: round.P, permit: result.permit, round: round}
	r.stage(&r.cur.kv)
	return nil, nil
}

// connect finds the round's connector. If the workers speak different protocols, decode computes the prompt itself,
// where that is allowed.
func (f *Flow) connect(r *request, round *connector.Round) (speaks connector.Connector, _ *fault.Error) {
	var why error
	switch {
	case r.KV != nil:
		if speaks, why = f.rooms.Between(round.D, round.D); speaks != r.KV.connector {
			why = errors.New("its connector is another")
		}
	case round.P != nil:
		speaks, why = f.rooms.Between(round.P, round.D)
	default:
		speaks = connector.Local{}
	}
	if why == nil {
		return speaks, nil
	}
	failed := &fault.Error{Class: fault.Rejected, Leg: pools.Prefill, Worker: r.Prefill.Worker}
	switch pin := &r.pins.prefill; {
	case pin.Worker != "":
		failed.Err = openai.BadRequest(pin.field, "%s: the worker cannot hand its KV cache over to decode worker %q: %v", pin.field, round.D.ID, why)
		return nil, failed
	case !f.cfg.DecodeFallback, !round.D.ServesAlone():
		failed.Err = r.refusal(placement.ErrNoPrefill)
		return nil, failed
	}
	r.releasePrefill(placement.ReasonNoPartner)
	round.P = nil
	return connector.Local{}, nil
}

// decode calls the decode leg, or takes prefill's answer if that is not nil, and relays it. s is the prefill leg that
// runs in parallel, or nil.
func (f *Flow) decode(
	ctx context.Context, r *request, w *pools.Worker, leg *http1.Leg, answer []byte, s *sibling, out Sink,
) *fault.Error {
	m := r.cur
	m.sibling, m.worker, m.fromPrefill = s, w.ID, answer != nil
	f.callInto(&m.call, r, w, leg, answer)
	failed := f.rooms.Decode.Run(ctx, &m.call, out)
	r.Sent = m.call.Sent
	f.links.ended(r, w, failed)
	f.decoded(ctx, r, failed)
	return failed
}

// decoded records how the decode leg ended.
//
//go:noinline
func (f *Flow) decoded(ctx context.Context, r *request, failed *fault.Error) {
	if !r.cur.fromPrefill && context.Cause(ctx) != errSibling { // else nothing was learned about the worker
		if disputed(failed) && !r.Sent.HasToken {
			r.dispute(failed, r.stack.keepPermit(r.dPlace), r.leg.Worker)
		} else {
			r.d.Done(failed)
		}
		bindSession(r.d.Lease, failed)
	}
	if failed != nil && !r.Sent.HasToken {
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
func (f *Flow) callInto(call *decode.Call, r *request, w *pools.Worker, leg *http1.Leg, answer []byte) {
	r.leg = Leg{Worker: w, Began: time.Now(), Backlog: r.d.BacklogTokens}
	r.HandedOver = r.leg.Began
	if answer == nil {
		leg.TraceParent = f.traceLeg(r, &r.leg, r.d.Lease)
	}
	r.startDraft(w)
	req := r.Call.Request
	*call = decode.Call{
		Client: r, Lease: r.d.Lease, Leg: *leg, Answer: answer,
		Endpoint: req.Endpoint, Stream: req.Stream, Draft: r.draft, HideIDs: r.computesAndShows() && !asksIDs(req, w.Engine),
		IncludeUsage: req.IncludeUsage, Choices: max(1, req.N),
		HasNvext: r.wantsNvext(), HideUsage: answer == nil && connector.Counts(w, req, r.showsIDs(w)),
		Memory: req.Memory, Large: req.ShowsMore() || !req.Endpoint.Generates(),
		PromptTokens: r.length(), MaxTokens: r.longestAnswer(), Longest: r.mostTokens(), Tools: req.HasTools, HandedOff: r.KV != nil,
	}
	r.onToken = f.observer.LegStarted(&r.Record, r.leg)
	f.links.begin(f, r, w, answer != nil)
	if r.leaves {
		call.Patience = r.transfer.Patience()
	}
}

// pair calls both legs in parallel; they find each other by the plan. The first failure ends the other leg, unless
// decode has had its first token and so has the KV. pair returns when both have ended.
func (f *Flow) pair(
	ctx context.Context, r *request, speaks connector.Connector, round *connector.Round, plan *connector.Plan, out Sink,
) *fault.Error {
	r.stage(&StagedKV{Cached: -1, connector: speaks, producer: round.P, round: round})
	both, end := context.WithCancelCause(ctx)
	defer end(nil)
	sent := make(chan struct{})
	if plan.Decode.Sent = sync.OnceFunc(func() { close(sent) }); plan.Order == connector.Together {
		plan.Decode.Sent()
	}
	s := &sibling{result: make(chan prefilled, 1)}
	body, memory := r.Call.Body, round.Memory
	r.Retain()
	body.Retain()
	memory.Retain()
	go func() {
		defer memory.Release()
		defer body.Release()
		defer r.Release()
		result := prefilled{first: true}
		defer func() {
			if result.panicked = recover(); result.first {
				end(errSibling)
			}
			s.result <- result
		}()
		select {
		case <-sent:
			result = f.prefill(both, r, speaks, round, plan.Prefill, s)
		case <-both.Done(): // decode ended before it was sent
			result = prefilled{failed: fault.New(pools.Prefill, round.P.ID, context.Cause(both), 0)}
		}
		result.first = result.first && s.decide(prefillEnded)
		if result.whole != nil && s.decide(prefillEnded) { // nothing to decode
			end(errSibling)
		}
	}()
	failed := f.decode(both, r, round.D, &plan.Decode, nil, s, &pairSink{out, s})
	if s.outcome.Load() == prefillEnded { // a token of the same moment was not sent
		accepted := r.Sent.Accepted
		r.Sent = r.draft.Undo()
		r.Sent.Accepted = accepted
	}
	if failed != nil && failed.Class == fault.EngineError && !r.Sent.HasToken {
		s.awaitBriefly(r) // a prefill that died is why decode fails, and may show a moment later
		// Decode may be unable to reach prefill: the failure counts for both, and the culprit will fail again. The
		// next round excludes prefill's worker too if there is another.
		end(errPartner)
		if f.hasOther(r, round.P) {
			r.tried = append(r.tried, round.P.ID)
		}
	}
	end(fault.ErrClientGone) // prefill is done
	result := s.wait(r)
	if result.whole != nil && !r.Sent.HasToken {
		r.releaseKV()
		return f.relayPrefill(ctx, r, round, result, &plan.Decode, out)
	}
	if failed == nil {
		r.KV.taken = true
	} else { // decode's engine may notice late that its caller has left
		r.releaseKV()
	}
	if failed != nil && result.first {
		return result.failed
	}
	return failed
}
