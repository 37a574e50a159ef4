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

// permit records how a call ended that has shown a sign of life: a [placement.Booking]'s Done, or nil.
type permit func(err error)

// end records a call that has not failed.
func (p permit) end() {
	if p != nil {
		p(context.Canceled)
	}
}

// suspicion is that a decode worker's error is a prefill worker's fault: its KV cannot be pulled. The zero value is
// none.
type suspicion struct {
	decode   string   // the worker that reported the error; it may be retried with another's KV
	producer string   // holds the KV
	permit   permit   // of the call that made the KV
	others   []string // decode workers that the next round excludes, to find the culprit
}

// errNotPulled blames a prefill worker whose KV decode could not use, though it can use another's.
var errNotPulled = fmt.Errorf("decode could not pull its KV: %w", fault.ErrEngine)

// suspect finds the culprit when decode cannot pull KV. The next round excludes the producer, or has decode prefill
// if there is no other, on the same decode worker. If that fails again, decode is to blame.
func (f *Flow) suspect(r *request, d *pools.Worker, failed *fault.Error) {
	before := r.suspected
	r.suspected = suspicion{}
	before.permit.end()
	switch kv := r.KV; {
	case r.Sent.HasToken, failed.Leg != pools.Decode:
	case before.decode == d.ID:
		r.tried = slices.DeleteFunc(r.tried, func(id string) bool { return id == before.producer })
	case kv == nil || kv.producer == nil || r.pins.prefill.Worker != "":
	case failed.Class == fault.Timeout: // it may have pulled without an answer; exclude it
		if f.hasOther(r, kv.producer) {
			r.tried = append(r.tried, kv.producer.ID)
		} else if !f.hasOther(r, d) && f.cfg.DecodeFallback && d.ServesAlone() { // call it again, without the KV
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

// suspicion suspects the producer of kv, which d could not use. The next round is d's, if it may be called.
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

// look probes a worker at once.
func (f *Flow) look(worker string) {
	if f.rooms.Look != nil {
		f.rooms.Look(worker)
	}
}

// cleared records a decode worker's first token: an error that it reported with another's KV was not its fault. It
// was not the producer's either if others can use its KV.
func (r *request) cleared(decode string, others bool) {
	if before := r.suspected; before.decode == decode && before.permit != nil && !others {
		before.permit(errNotPulled)
	}
	r.suspected.permit.end()
	r.suspected = suspicion{}
}

// dispute is a worker's own error before its first token. It counts only once another worker has answered the
// request, since engines report client mistakes in the same way, and one client could open every circuit. vLLM 0.32
// answers 500 to a grammar that does not compile (grammar_compile_error_reqs in v1/core/sched/scheduler.py,
// _raise_if_error in entrypoints/generate/base/serving.py), SGLang 0.5.23 to a stop_regex that does not parse.
type dispute struct {
	failed *fault.Error
	permit permit
	p, d   *pools.Worker // of the failed hand-off, or nil
}

// disputed reports whether a failure may be the request's own. A 4xx of this class concerns gateway and worker only.
func disputed(failed *fault.Error) bool {
	return failed != nil && failed.Class == fault.EngineError && failed.Status/100 != 4
}

// dispute keeps the permit, which may be nil, of a call that failed so. d is its decode worker, nil for a prefill
// call.
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

// endDisputes ends all disputes. If the request was answered, the workers outside the current round are to blame, and in
// records which pairs failed; in is nil otherwise. It reports whether others can use the disputed KV.
func (r *request) endDisputes(in *links) (others bool) {
	for _, d := range r.disputes {
		if in != nil && d.p != nil {
			others = in.failed(d.p, d.d) || others
		}
		switch id := d.failed.Worker; {
		case in == nil, id == r.cur.worker, r.KV != nil && id == r.Prefill.Worker:
			d.permit.end()
		default:
			d.permit(d.failed)
		}
	}
	r.disputes = nil
	return others
}

// hasOther reports whether w's pool has another eligible worker that has not failed the request.
func (f *Flow) hasOther(r *request, w *pools.Worker) bool {
	now := time.Now()
	return slices.ContainsFunc(f.rooms.Roster.Snapshot(w.Model, w.Role).Members, func(m pools.Member) bool {
		return m.Worker.ID != w.ID && m.Eligible(now) && !slices.Contains(r.tried, m.Worker.ID)
	})
}

// errPartner ends a prefill leg whose decode worker reported an error before its first token.
var errPartner = fmt.Errorf("decode reported an error: %w", fault.ErrEngine)
