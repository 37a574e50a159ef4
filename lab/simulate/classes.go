package simulate

import (
	"hash/fnv"
	"math/rand/v2"

	"github.com/tandem-pd/tandem/lab/replay"
)

// checkClasses refuses shares that no class can have.
func (v *Variant) checkClasses() error {
	shares, sum := v.plan.Workload.Classes, 0.0
	if v.plan.Queue.Classes == nil {
		return nil // an arm without classes may get the same
	}
	for i, s := range shares {
		if _, known := v.plan.Queue.Classes.Find(s.Class, 0); !known {
			return v.doc.Errorf("workload.classes", "number %d: %q is neither a family of queue.classes nor a class without one", i+1, s.Class)
		}
		if !(s.Share >= 0) || s.Share > 1e6 {
			return v.doc.Errorf("workload.classes", "%v, the share of %s, is not from 0 to 1e6", s.Share, s.Class)
		}
		sum += s.Share
	}
	if len(shares) > 0 && sum == 0 {
		return v.doc.Errorf("workload.classes", "all shares are 0")
	}
	return nil
}

// class draws a request's class; a session's requests share one.
func (w *WorkloadPlan) class(seed uint64) func(q *replay.Request) string {
	if len(w.Classes) == 0 {
		return nil
	}
	sum := 0.0
	for _, s := range w.Classes {
		sum += s.Share
	}
	return func(q *replay.Request) string {
		at := uint64(q.Index)
		if q.Session != "" {
			h := fnv.New64a()
			_, _ = h.Write([]byte(q.Session))
			at = h.Sum64()
		}
		left := rand.New(rand.NewPCG(seed, at)).Float64() * sum
		for _, s := range w.Classes {
			if left -= s.Share; left < 0 {
				return s.Class
			}
		}
		return w.Classes[len(w.Classes)-1].Class
	}
}
