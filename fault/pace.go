package fault

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Pace is how long one worker took for its latest units of work, each with its load: a prompt with the prompt tokens ahead of
// its answer, a token with the requests that ran. It is a pure value of fixed size; its owner guards it.
type Pace struct {
	times [paceKeeps]paceTime
	next  int
}

// paceTime is one time, as the logarithm of its seconds.
type paceTime struct {
	load int // its step of two an octave
	log  float64
	at   time.Time
}

const (
	// paceKeeps is how many times count, and paceWindow how old they may be.
	paceKeeps  = 24
	paceWindow = 5 * time.Minute
	paceLoads  = 40 // steps of loads, up to 2^19.5, 741,455
)

// Observe records that a unit of work took so long at a load of at least 1.
func (p *Pace) Observe(load int, took time.Duration, now time.Time) {
	if load < 1 || took <= 0 {
		return
	}
	step := min(paceLoads-1, int(math.Round(2*math.Log2(float64(load)))))
	p.times[p.next] = paceTime{step, math.Log(took.Seconds()), now}
	p.next = (p.next + 1) % paceKeeps
}

// counting returns the times that count now.
func (p *Pace) counting(now time.Time) []paceTime {
	all := make([]paceTime, 0, paceKeeps)
	for _, t := range p.times {
		if !t.at.IsZero() && now.Sub(t.at) < paceWindow {
			all = append(all, t)
		}
	}
	return all
}

// Typical returns the median time at whatever load, 0 if too few count now.
func (p *Pace) Typical(now time.Time) time.Duration {
	all := p.counting(now)
	if len(all) < leastForgotten {
		return 0
	}
	slices.SortFunc(all, func(a, b paceTime) int { return cmp.Compare(a.log, b.log) })
	return time.Duration(math.Exp(all[len(all)/2].log) * float64(time.Second))
}

// Share is how many of a worker's latest calls failed: about the last 64. It is a pure value.
type Share struct {
	calls, failed float64
	latest        time.Time
}

// Observe records the end of a call.
func (s *Share) Observe(failed bool, now time.Time) {
	kept := s.left(now) * (1 - 1./64)
	s.calls, s.failed, s.latest = s.calls*kept+1, s.failed*kept, now
	if failed {
		s.failed++
	}
}

// Failed returns the failed share, and false if too few calls count now.
func (s *Share) Failed(now time.Time) (float64, bool) {
	return s.failed / max(1, s.calls), s.calls*s.left(now) >= leastCalls
}

// left returns the share of its weight that time has left: after 5 minutes without a call a twentieth.
func (s *Share) left(now time.Time) float64 {
	return math.Exp(-3 * max(0, now.Sub(s.latest).Seconds()) / paceWindow.Seconds())
}
