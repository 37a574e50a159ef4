package simulate

import (
	"fmt"
	"time"

	"github.com/tandem-pd/tandem/pools"
)

// overloaded ends the requests of a run that was given up.
const overloaded = "fleet_overloaded"

// grace is how much longer than its workload lasts a fleet may need for what waits, before its run is given up: a peak, or a
// short stage, that is worked off afterwards is none of that.
const grace = 10 * time.Minute

// GivenUp says why a run ended before its requests did.
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

// work is what open requests take workers at the least, one after the other: their prompts, and the part of each answer that
// does not depend on what else is decoded.
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

// giveUp ends the run where what is open takes the fleet longer than the stage lasts, and the grace: waiting requests would
// only become more.
func (r *run) giveUp(last int64) bool {
	lasts := time.Duration(last - r.began)
	needs := r.needs()
	if needs <= lasts+grace {
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
			q.arrived = r.now // it never came
		}
		r.next[i] = never
		r.end(int32(i), overloaded)
	}
	r.out.GivenUp = g
	return true
}
