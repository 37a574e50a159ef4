package prefill

import (
	"slices"
	"time"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
)

// latest are how long a model's latest prefills took, over what was predicted of them.
type latest struct {
	ratios [256]float64
	n      int
}

// hedgeLeast is how many prefills a percentile takes.
const hedgeLeast = 50

// took notes what a prefill of so many tokens took. The first ones of a worker have no prediction.
func (r *Room) took(w *pools.Worker, tokens int, took time.Duration) {
	perSecond := r.limits.PerSecond(w.ID)
	if r.cfg.Hedge == 0 || perSecond == 0 || tokens == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.latest[w.Model]
	if l == nil {
		l = &latest{}
		r.latest[w.Model] = l
	}
	l.ratios[l.n%len(l.ratios)] = took.Seconds() * perSecond / float64(tokens)
	l.n++
}

// HedgeAfter is how long a prefill that lease holds may take before a second worker is to be asked as well. It reports false
// where none is: without Hedge, or while too little is known.
func (r *Room) HedgeAfter(lease *router.Lease) (after time.Duration, known bool) {
	if r.cfg.Hedge == 0 {
		return 0, false
	}
	perSecond := r.limits.PerSecond(lease.Worker.ID)
	r.mu.Lock()
	defer r.mu.Unlock()
	l := r.latest[lease.Worker.Model]
	if l == nil || l.n < hedgeLeast || perSecond == 0 {
		return 0, false
	}
	sorted := slices.Clone(l.ratios[:min(l.n, len(l.ratios))])
	slices.Sort(sorted)
	ratio := sorted[min(len(sorted)-1, int(r.cfg.Hedge/100*float64(len(sorted))))]
	return time.Duration(ratio * float64(lease.BacklogTokens) / perSecond * float64(time.Second)), true
}
