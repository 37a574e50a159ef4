package simulate

import (
	"slices"
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/pools"
)

// outliers compares the workers by what a gateway observes of them, as cmd/gateway/observe does, and ejects some.
type outliers struct {
	share     float64
	all       map[pools.Role][]fault.Observed
	taken     []takenGaps // by machine
	standings map[pools.Role]map[string]fault.Standing
	ejected   map[pools.Role][]string
	judged    time.Time
}

// takenGaps sums up the gaps of a machine's tokens.
type takenGaps struct {
	n, sum int64
	since  int64
}

// takeEvery is how often gaps are taken, in nanoseconds.
const takeEvery = int64(250 * time.Millisecond)

func (r *run) newOutliers() *outliers {
	o := &outliers{
		share: r.cfg.Ejection, all: map[pools.Role][]fault.Observed{}, taken: make([]takenGaps, len(r.machines)),
		standings: map[pools.Role]map[string]fault.Standing{}, ejected: map[pools.Role][]string{},
	}
	for _, m := range r.machines {
		o.all[m.worker.Role] = append(o.all[m.worker.Role], fault.Observed{
			Worker: m.worker.ID, Kind: m.worker.DeviceClass, Prefill: new(fault.Pace), Decode: new(fault.Pace), Calls: new(fault.Share),
		})
	}
	return o
}

// Ejected is a [placement.Placer]'s.
func (o *outliers) Ejected(p *pools.Pool) []string { return o.ejected[p.Role] }

func (o *outliers) of(w *pools.Worker) fault.Observed {
	for _, all := range o.all { // its role may have changed
		for _, is := range all {
			if is.Worker == w.ID {
				return is
			}
		}
	}
	panic("simulate: no such worker")
}

// moved has a worker compared with those of the pool that it came into.
func (o *outliers) moved(w *pools.Worker, from pools.Role) {
	is := o.of(w)
	o.all[from] = slices.DeleteFunc(o.all[from], func(x fault.Observed) bool { return x.Worker == w.ID })
	o.all[w.Role] = append(o.all[w.Role], is)
}

// prefilled records a computed prompt.
func (o *outliers) prefilled(w *pools.Worker, backlog int, took time.Duration, now time.Time) {
	o.of(w).Prefill.Observe(backlog, took, now)
}

// token records the time since the previous token of a stream.
func (o *outliers) token(r *run, machine int32, gap int64) {
	t := &o.taken[machine]
	t.n, t.sum = t.n+1, t.sum+gap
	if t.n < 8 || r.now-t.since < takeEvery {
		return
	}
	m := r.machines[machine]
	o.of(m.worker).Decode.Observe(max(1, m.core.Gauges().Running), time.Duration(t.sum/t.n), r.at(r.now))
	*t = takenGaps{since: r.now}
}

// judge compares the workers once a second, at a choice.
func (o *outliers) judge(now time.Time) {
	if now.Sub(o.judged) < time.Second {
		return
	}
	o.judged = now
	for role, all := range o.all {
		o.standings[role] = fault.Judge(all, o.standings[role], now)
		able := make([]string, len(all))
		for i := range all {
			able[i] = all[i].Worker
		}
		o.ejected[role] = fault.Ejected(o.standings[role], able, o.share)
	}
}
