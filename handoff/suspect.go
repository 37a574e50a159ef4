package handoff

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/placement"
)

// permit takes how a call ended that has shown a sign of life: a [placement.Booking]'s Done. nil is none.
type permit func(err error)

// end ends a call that has not failed.
func (p permit) end() {
	if p != nil {
		p(context.Canceled)
	}
}

// suspicion is that a prefill worker is to blame for a decode worker's error: its KV cannot be pulled. The zero suspicion
// is none.
type suspicion struct {
	decode   string   // the worker that reported the error, and may be tried again with another's KV
	producer string   // that holds the KV
	permit   permit   // of the call that made the KV
	others   []string // decode workers that the next round leaves out, so that it shows which one is to blame
}

// errNotPulled is a prefill whose KV a decode worker could not use, though it can use another's.
var errNotPulled = fmt.Errorf("decode could not pull its KV: %w", fault.ErrEngine)

// suspect keeps KV that decode cannot pull from being what every further round is given. One round does not show which of
// the two workers is to blame: the next one leaves the producer out, or has decode prefill itself where there is no other,
// and goes to the same decode worker. If that fails again, it is to blame.
func (f *Flow) suspect(r *request, d *pools.Worker, failed *fault.Error) {
	before := r.suspected
	r.suspected = suspicion{}
	before.permit.end()
	switch kv := r.KV; {
	case r.Sent.Began, failed.Leg != pools.Decode:
	case before.decode == d.ID:
		r.tried = slices.DeleteFunc(r.tried, func(id string) bool { return id == before.producer })
	case kv == nil || kv.producer == nil || r.pins.prefill.Worker != "":
	case failed.Class == fault.Timeout: // it may have pulled in silence, and is left out for that
		if f.hasOther(r, kv.producer) {
			r.tried = append(r.tried, kv.producer.ID)
		} else if !f.hasOther(r, d) && f.cfg.DecodeFallback && d.ServesAlone() { // it is asked again, without the KV
			r.Reason, r.suspected = placement.ReasonPrefillFailed, suspicion{decode: d.ID}
		}
	case failed.Class != fault.EngineError:
	case f.hasOther(r, kv.producer):
		r.tried = append(r.tried, kv.producer.ID)
		r.suspected = f.suspicion(r, kv, d)
	case f.cfg.DecodeFallback && d.ServesAlone():
		r.Reason = placement.ReasonPrefillFailed
		r.suspected = f.suspicion(r, kv, d)
	}
}

// suspicion is that of the KV which d could not use. The next round is d's, if it may be called.
func (f *Flow) suspicion(r *request, kv *StagedKV, d *pools.Worker) suspicion {
	s := suspicion{decode: d.ID, producer: kv.producer.ID, permit: kv.permit}
	kv.permit = nil
	f.look(kv.producer.ID)
	if slices.Contains(f.rooms.Breakers.Blocked(pools.Decode, r.Call.Request.Adapter), d.ID) {
		return s
	}
	for _, m := range f.rooms.Roster.Snapshot(d.Model, d.Role).Members {
		if m.Worker.ID != d.ID {
			s.others = append(s.others, m.Worker.ID)
		}
	}
	return s
}

// look has a worker asked at once what it is now.
func (f *Flow) look(worker string) {
	if f.rooms.Look != nil {
		f.rooms.Look(worker)
	}
}

// cleared takes in a decode worker's first token: one that reported an error with another's KV was not to blame for it.
// Nor was the producer, where others can use its KV.
func (r *request) cleared(decode string, others bool) {
	if before := r.suspected; before.decode == decode && before.permit != nil && !others {
		before.permit(errNotPulled)
	}
	r.suspected.permit.end()
	r.suspected = suspicion{}
}

// dispute is an error of a worker's own before its first token, which counts only once another worker has answered the request: engines
// report a client's mistake so too. vLLM 0.32 answers 500 to a grammar that does not compile (grammar_compile_error_reqs in
// v1/core/sched/scheduler.py, _raise_if_error in entrypoints/generate/base/serving.py), SGLang 0.5.23 to a stop_regex that does
// not parse. One client could open every circuit with it.
type dispute struct {
	failed *fault.Error
	permit permit
	p, d   *pools.Worker // of the hand-off that failed; nil for none
}

// disputed reports whether a leg's failure may be the request's own. A 4xx of this class is between gateway and worker.
func disputed(failed *fault.Error) bool {
	return failed != nil && failed.Class == fault.EngineError && failed.Status/100 != 4
}

// dispute keeps the permit of a call that ended in one; nil is none. It was decode worker d's, nil for a prefill worker's.
func (r *request) dispute(failed *fault.Error, p permit, d *pools.Worker) {
	if p == nil {
		return
	}
	r.disputes = append(r.disputes, dispute{failed: failed, permit: p})
	if d != nil && r.KV != nil {
		last := &r.disputes[len(r.disputes)-1]
		last.p, last.d = r.KV.producer, d
	}
}

// settle ends all disputes: where the request was answered, by the workers of the round at hand, the others are to blame, and
// links take in which pairs failed; nil where it was not answered. It reports whether others can use the KV that they could not.
func (r *request) settle(in *links) (others bool) {
	for _, d := range r.disputes {
		if in != nil && d.p != nil {
			others = in.failed(d.p, d.d) || others
		}
		switch id := d.failed.Worker; {
		case in == nil, id == r.now.worker, r.KV != nil && id == r.Prefill.Worker:
			d.permit.end()
		default:
			d.permit(d.failed)
		}
	}
	r.disputes = nil
	return others
}

// hasOther reports whether a worker of w's pool other than w, that has not failed the request yet, can be chosen.
func (f *Flow) hasOther(r *request, w *pools.Worker) bool {
	now := time.Now()
	return slices.ContainsFunc(f.rooms.Roster.Snapshot(w.Model, w.Role).Members, func(m pools.Member) bool {
		return m.Worker.ID != w.ID && m.Eligible(now) && !slices.Contains(r.tried, m.Worker.ID)
	})
}

// errPartner ends a prefill leg whose decode worker reported an error of its own before its first token.
var errPartner = fmt.Errorf("decode reported an error: %w", fault.ErrEngine)
