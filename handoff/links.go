package handoff

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/placement"
)

// errSlowTransfer ends a decode call whose KV transfers more slowly than decode computes the prompt. It blames no
// worker.
var errSlowTransfer = fmt.Errorf("the KV comes more slowly than it is computed: %w", fault.ErrMoved)

// links guards a placement.Links for concurrent use.
type links struct {
	mu   sync.Mutex
	core *placement.Links
}

// The methods of placement.Transfers.

func (l *links) Shut(model string, tokens int, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.core.Shut(model, tokens, now)
}

func (l *links) Opens(p, d *pools.Worker, tokens int, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.core.Opens(p, d, tokens, now)
}

func (l *links) Placed(p, d *pools.Worker, tokens int, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.core.Placed(p, d, tokens, now)
}

func (l *links) Why(prefill *pools.Pool, d *pools.Worker, tokens int, now time.Time) (string, placement.Price) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.core.Why(prefill, d, tokens, now)
}

// begin starts measuring the transfer of r's prompt to w. An answer that is not streamed is not measured: only its
// end is visible.
func (l *links) begin(f *Flow, r *request, w *pools.Worker, fromPrefill bool) {
	if r.KV == nil || r.KV.producer == nil || fromPrefill || !r.Call.Request.Stream {
		return
	}
	own := f.rooms.Decode.Gap(w.ID)
	if p := r.p.Lease; p != nil { // it computes at the same time
		takes, known := f.rooms.Prefill.Forecast(p.Worker, max(0, p.BacklogTokens-p.PrefillTokens), r.length(), 0)
		if !known {
			return
		}
		own += 2 * takes
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.core.Begin(&r.transfer, r.KV.producer, w, r.length()-r.d.Lease.Overlap*w.BlockSize, own, r.leg.Began)
	m := r.cur // KV that decode alone can free, or that prefill still computes, is not released early
	r.leaves = f.cfg.DecodeFallback && w.ServesAlone() && r.pins.prefill.Worker == "" && m.plan.Attach == 0 && m.sibling == nil
}

// leave returns the error that ends decode's call, nil to keep waiting. A worker without a sign of life since the
// call may hang: its time-out decides.
func (l *links) leave(f *Flow, r *request) error {
	if f.rooms.Decode.Latest(r.leg.Worker.ID).Before(r.leg.Began) {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.core.Leave(&r.transfer, time.Now()) {
		return errSlowTransfer
	}
	return nil
}

// arrived records r's first token, of a prompt that was handed over or computed locally.
func (l *links) arrived(r *request) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.core.Arrived(&r.transfer, r.leg.Began.Add(r.cur.call.Taken), now)
	if r.KV == nil && r.Call.Request.Stream {
		l.core.Computed(r.leg.Worker, r.length(), now.Sub(r.leg.Began))
	}
}

// ended records the end of a decode call of w. A transfer still in flight then has failed.
func (l *links) ended(r *request, w *pools.Worker, failed *fault.Error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.core.Left(&r.transfer, time.Now())
	switch {
	case failed == nil || r.Sent.HasToken || r.KV == nil || r.KV.producer == nil:
	case failed.Class == fault.Timeout:
		l.core.Failed(r.KV.producer, w, time.Now())
	case errors.Is(failed.Err, errSlowTransfer):
		r.slow = true
	}
}

// left ends r's transfer after a panic.
func (l *links) left(r *request) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.core.Left(&r.transfer, time.Now())
}

// failed records a failed hand-off that was not the request's own fault. It reports whether p hands over to others,
// so that the pair alone is to blame.
func (l *links) failed(p, d *pools.Worker) (others bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.core.Failed(p, d, time.Now())
	return l.core.Works(p, d)
}

// Links calls emit with the count of each model's pairs that are shut, because they are too slow or failing.
func (f *Flow) Links(emit func(model string, slow, failing int)) {
	f.links.mu.Lock()
	defer f.links.mu.Unlock()
	f.links.core.Pairs(emit)
}

// forgetLinks drops the pairs of processes that are gone.
func (f *Flow) forgetLinks() {
	f.links.mu.Lock()
	defer f.links.mu.Unlock()
	f.links.core.Forget(func(worker, incarnation string) bool {
		w, known := f.rooms.Roster.Lookup(worker)
		return !known || w.Worker.Incarnation != incarnation
	})
}
