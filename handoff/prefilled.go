package handoff

import (
	"context"
	"fmt"
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/handoff/connector"
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/models"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
	"github.com/tandem-pd/tandem/router"
)

// prefilled is the result of a prefill leg.
type prefilled struct {
	kv     prefill.KV
	whole  []byte // prefill's answer, if it is the whole one
	cached int    // prompt tokens that the worker had cached, −1 if unreported
	ended  time.Time
	took   time.Duration
	permit permit // of a leg that succeeded or whose failure is disputed; its owner ends it
	failed *fault.Error
	done   router.Done // including this slice
	first  bool        // it failed before anything else ended the round
	// panicked is the value of a panic on the leg's own goroutine.
	panicked any
}

// prefill calls the prefill leg and returns its booking. It changes nothing else of r, so that decode may run in
// parallel. s is nil if decode is not running.
func (f *Flow) prefill(
	ctx context.Context, r *request, speaks connector.Connector, round *connector.Round, call http1.Leg, s *sibling,
) prefilled {
	leg, booking := Leg{Worker: round.P, Began: time.Now(), Backlog: r.p.BacklogTokens}, r.p
	call.TraceParent = f.traceLeg(r, &leg, booking.Lease)
	f.observer.LegStarted(&r.Record, leg)
	answer, failed := f.rooms.Prefill.Run(ctx, booking.Lease, call)
	out := prefilled{cached: -1}
	if failed == nil {
		out.cached = answer.Info.CachedTokens
		var whole bool
		if out.kv, whole, failed = f.handedOver(ctx, r.prompt, speaks, round, answer); whole {
			out.whole = answer.Body
		}
		if failed != nil && out.kv.Params != nil { // it cannot be bound, but names what to release
			f.cleanup.release(speaks, *round, out.kv)
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
	if round.Slice > 0 && failed == nil { // keep the booking until r returns for the next slice
		r.stack.disown(r.pPlace)
		out.done = booking.Lease.Computed(r.done, out.ended)
	} else {
		r.stack.releaseAt(r.pPlace)
		f.Wake(r.Call.Request.Model)
	}
	if failed == nil {
		r.compare(booking.Lease, out.cached)
	}
	return out
}

// handedOver reads the hand-off from prefill's answer. If it cannot be bound, the KV's Params, if not nil, name what
// to release. whole reports that it is the client's whole answer.
func (f *Flow) handedOver(
	ctx context.Context, prompt models.Prompt, speaks connector.Connector, round *connector.Round, answer prefill.Answer,
) (kv prefill.KV, whole bool, _ *fault.Error) {
	kv, whole, err := speaks.OnPrefill(*round, answer, time.Now())
	if round.ShowPrompt {
		kv.Prompt = f.compareTokens(prompt, round.P, &answer.Info)
	}
	switch {
	case err == nil:
		return kv, whole, nil
	case ctx.Err() != nil: // a cut prefill owes no hand-off
		return kv, false, fault.New(pools.Prefill, round.P.ID, context.Cause(ctx), 0)
	default:
		return kv, false, garbled(round, err)
	}
}

func garbled(round *connector.Round, err error) *fault.Error {
	return fault.New(pools.Prefill, round.P.ID, fmt.Errorf("%w: %w", fault.ErrGarbled, err), 0)
}

// relayPrefill relays prefill's answer, which is the whole one. Decode's booking is not used.
func (f *Flow) relayPrefill(
	ctx context.Context, r *request, round *connector.Round, result *prefilled, decodes *http1.Leg, out Sink,
) *fault.Error {
	req, answer := r.Call.Request, result.whole
	if req.Stream {
		var err error
		if answer, err = openai.AppendEvents(nil, answer, req.Endpoint, req.IncludeUsage); err != nil {
			return garbled(round, err)
		}
	}
	r.stage(&StagedKV{Cached: result.cached, taken: true}) // holds nothing; the client gets the cached tokens
	return f.decode(ctx, r, round.D, decodes, answer, nil, out)
}
