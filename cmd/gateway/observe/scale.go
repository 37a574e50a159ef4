package observe

import (
	"math"
	"time"
)

// DefaultUtilization is the share of a worker's capacity that desired_workers plans with where nothing else is said.
const DefaultUtilization = 0.8

const (
	// scaleHorizon is the time in which a pool should have worked off what waits for it now.
	scaleHorizon = 10 * time.Second
	// scaleUp and scaleDown are the time constants with which desired_workers follows a demand that grows and one
	// that falls: after one of them it has gone 63 % of the way. A burst asks for workers within seconds; a lull has
	// to last for minutes before they are let go.
	scaleUp   = 15 * time.Second
	scaleDown = 5 * time.Minute
	// scaleMargin is how much below a whole number of workers the demand must be before that number is enough. Rising
	// has no such margin, so a demand that trembles about a whole number leaves the answer where it is.
	scaleMargin = 0.1
	// scaleStep bounds the answer to so many times the present workers: what more they would do is not known before
	// these are there.
	scaleStep = 4
	// arrivalTime is the time constant of the observed arrival rate.
	arrivalTime = 30 * time.Second
	// scaleLeast is the least time between two readings, and scaleMost what a reading counts for after a longer
	// pause.
	scaleLeast = time.Second
	scaleMost  = time.Minute
)

// poolLoad is what one pool is asked for at one moment, and what one of its workers can do. A capacity of 0 is
// unknown, and what it bounds not counted.
type poolLoad struct {
	Present int // workers of the pool that are not draining

	BacklogTokens   float64 // uncached prompt tokens: of those that wait, and booked
	ArrivalTokens   float64 // uncached prompt tokens that come in a second
	TokensPerSecond float64 // that one worker computes

	Blocks       float64 // KV blocks booked, and those that the waiting will need
	WorkerBlocks float64 // that one worker has

	Requests   float64 // booked and waiting
	WorkerSeqs float64 // requests that one worker runs at a time
}

// demand is how many workers the load fills to utilization (0 to 1), in fractions of a worker: the greatest of
//
//	compute   (BacklogTokens / scaleHorizon + ArrivalTokens) / (TokensPerSecond × utilization)
//	memory    Blocks / (WorkerBlocks × utilization)
//	batch     Requests / (WorkerSeqs × utilization)
//
// Compute is time over time: the seconds of one worker that a second's arrivals take, and those that the backlog
// takes in each second of the horizon. It is not known, and ok false, while no capacity is.
func (l poolLoad) demand(utilization float64) (workers float64, ok bool) {
	part := func(need, capacity float64) {
		if capacity > 0 {
			workers, ok = max(workers, need/(capacity*utilization)), true
		}
	}
	part(l.BacklogTokens/scaleHorizon.Seconds()+l.ArrivalTokens, l.TokensPerSecond)
	part(l.Blocks, l.WorkerBlocks)
	part(l.Requests, l.WorkerSeqs)
	return workers, ok
}

// scaler turns readings of one pool's load into a number of workers that does not flap. It is a pure value; its owner
// guards it.
type scaler struct {
	smooth  float64 // demand, smoothed
	workers int
	at      time.Time // of the latest reading
}

// read takes a reading in and returns the desired number: at least 1, at most scaleStep times the present one. It
// begins with the present number, so that a gateway that starts does not ask for a smaller fleet; and it is the
// present number while the demand is not known. A reading within scaleLeast of the one before changes nothing.
func (s *scaler) read(l poolLoad, utilization float64, now time.Time) int {
	present := max(1, l.Present)
	demand, known := l.demand(utilization)
	if s.at.IsZero() || !known {
		s.smooth, s.workers, s.at = float64(present), present, now
		return s.workers
	}
	since := now.Sub(s.at)
	if since < scaleLeast {
		return s.workers
	}
	s.at = now
	demand = min(demand, float64(scaleStep*present))
	constant := scaleDown
	if demand > s.smooth {
		constant = scaleUp
	}
	s.smooth += (demand - s.smooth) * follow(since, constant)
	switch up, down := whole(s.smooth), whole(s.smooth+scaleMargin); {
	case up > s.workers:
		s.workers = up
	case down < s.workers:
		s.workers = down
	}
	s.workers = min(max(1, s.workers), scaleStep*present)
	return s.workers
}

// arrivals is the rate at which a running total grows, smoothed. It is a pure value; its owner guards it.
type arrivals struct {
	total     float64
	perSecond float64
	at        time.Time
}

// read takes the total at now in and returns the rate, 0 at the first reading.
func (a *arrivals) read(total float64, now time.Time) float64 {
	since := now.Sub(a.at)
	switch {
	case a.at.IsZero():
		a.total, a.at = total, now
	case since >= scaleLeast:
		rate := max(0, total-a.total) / since.Seconds()
		a.perSecond += (rate - a.perSecond) * follow(since, arrivalTime)
		a.total, a.at = total, now
	}
	return a.perSecond
}

// follow is the share of the way to a new value that an exponential average goes in a time.
func follow(since, constant time.Duration) float64 {
	return 1 - math.Exp(-min(since, scaleMost).Seconds()/constant.Seconds())
}

// whole is the least whole number that is enough, less what is no more than an error of rounding.
func whole(x float64) int { return int(math.Ceil(x - 1e-9)) }
