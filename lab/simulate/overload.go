package simulate

import (
	"fmt"
	"math"
	"time"

	"github.com/tandem-pd/tandem/pools"
)

// overloaded ends the requests of a run that was given up.
const overloaded = "fleet_overloaded"

// A run is given up if its waiting requests take longer than the workload, or than patience if that is less, plus
// grace: a peak that is worked off afterwards is no reason. Without patience a long workload would fill the memory.
const (
	patience = 20 * time.Minute
	grace    = 10 * time.Minute
)

// GivenUp is why a run ended before its requests did.
type GivenUp struct {
	At    time.Duration // since the stage began
	Lasts time.Duration // from the stage's first request to its last
	Open  int           // requests that had come and not ended
	Needs time.Duration // least that the fleet would have needed for them
}

func (g *GivenUp) String() string {
	return fmt.Sprintf("the fleet cannot keep up: after %v of %v, %d requests were open that it needs %v for or longer, and the run was stopped",
		g.At.Round(time.Second), g.Lasts.Round(time.Second), g.Open, g.Needs.Round(time.Second))
}

// work is what open requests take workers at the least, one after the other: their prompts, and the part of each answer
// that does not depend on what else is decoded.
type work struct{ prefill, decode float64 } // ms

// owe takes the work of a request in: so many of its tokens are cached.
func (r *run) owe(q *request, uncached int) {
	for _, m := range r.machines {
		cfg := m.core.Config()
		if m.worker.Role != pools.Decode && q.owed.prefill == 0 {
			q.owed.prefill = cfg.Latency.ChunkMillis(uncached, q.isl-uncached) / cfg.Speedup
		}
		if m.worker.Role != pools.Prefill && q.owed.decode == 0 {
			context := float64(q.isl+q.OutputTokens/2) / 1000
			q.owed.decode = float64(float64(q.OutputTokens)*(cfg.Latency.B+float64(cfg.Latency.Ctx*context))) / cfg.Speedup
		}
	}
	r.owed.prefill += q.owed.prefill
	r.owed.decode += q.owed.decode
}

// pay takes it out: that of its prompt, or all.
func (r *run) pay(q *request, all bool) {
	r.owed.prefill -= q.owed.prefill
	q.owed.prefill = 0
	if all {
		r.owed.decode -= q.owed.decode
		q.owed.decode = 0
	}
}

// needs is how long the fleet takes at the least for all that is open.
func (r *run) needs() time.Duration {
	var prefill, decode, both float64
	for _, m := range r.machines {
		switch m.worker.Role {
		case pools.Prefill:
			prefill++
		case pools.Decode:
			decode++
		default:
			both++
		}
	}
	longest := ratio(r.owed.prefill+r.owed.decode, prefill+decode+both)
	if prefill+both > 0 {
		longest = max(longest, ratio(r.owed.prefill, prefill+both))
	}
	return time.Duration(max(longest, ratio(r.owed.decode, decode+both)) * 1e6)
}

// giveUp ends the run if open requests take the fleet too long.
func (r *run) giveUp(last int64) bool {
	lasts := time.Duration(last - r.began)
	needs := r.needs()
	if needs <= min(lasts, patience)+grace {
		return false
	}
	g := &GivenUp{At: time.Duration(r.now - r.began), Lasts: lasts, Needs: needs}
	for i := range r.requests {
		q := &r.requests[i]
		if q.over {
			continue
		}
		if q.arrived > 0 || q.owed != (work{}) {
			g.Open++
		} else {
			q.arrived = r.now // it never arrived
		}
		r.next[i] = never
		r.end(int32(i), overloaded)
	}
	r.out.GivenUp = g
	return true
}

// A run keeps its requests and the hashes of their blocks in memory from its start to its end: about two kilobytes
// for a request and eight bytes for a block; as many runs as there are processors are made at once.
const (
	mostRequests = 1 << 20
	mostBlocks   = 1 << 28
)

// checkSize refuses to make up more than a run can keep.
func (v *Variant) checkSize() error {
	w := &v.plan.Workload
	var requests, tokens float64
	turns := float64(max(1, w.Turns))
	for _, s := range w.Stages {
		n := float64(s.Requests)
		if byTime := float64(s.Rate * s.Duration.Seconds()); n == 0 || byTime > 0 && byTime < n {
			n = byTime
		}
		requests += float64(n * turns)
		grown := float64(float64(w.InputTokens) + float64((turns-1)/2*float64(w.InputTokens+w.OutputTokens)))
		tokens += float64(n * turns * (float64(w.SharedTokens) + grown))
	}
	for _, f := range w.Families {
		n := float64(f.Rate * f.Duration.Seconds())
		requests += n
		tokens += float64(n * (float64(f.SharedTokens) + f.Input.mean()))
	}
	if blocks := tokens / float64(v.blockTokens()); requests > mostRequests || blocks > mostBlocks {
		return v.doc.Errorf("workload", "makes up about %.0f requests with %.0f blocks of prompt, and a run can keep %d and %d: shorten it, or lower its rate", requests, blocks, mostRequests, mostBlocks)
	}
	return nil
}

// mean returns the mean of the cut distribution.
func (s Spread) mean() float64 {
	sigma := math.Log(float64(s.P99)/float64(s.P50)) / z99
	return float64(float64(s.P50) * math.Exp(float64(sigma*sigma)/2))
}
