package planner

import (
	"cmp"
	"math"
	"time"
)

// DefaultUtilization is the share of a worker's capacity that desired_workers plans with by default.
const DefaultUtilization = 0.8

const (
	// scaleHorizon is the time in which a pool should work off its backlog.
	scaleHorizon = 10 * time.Second
	// scaleUp and scaleDown are the time constants, to reach 63 % of a change, for a growing and a falling demand. A
	// burst adds workers within seconds; a lull must last minutes before they are removed.
	scaleUp   = 15 * time.Second
	scaleDown = 5 * time.Minute
	// scaleMargin is how far demand must fall below a whole number before that number suffices. Rising has no margin,
	// so a demand that fluctuates around a whole number does not flap.
	scaleMargin = 0.1
	// scaleStep bounds the result to a multiple of the present workers: the effect of more is unknown until they are
	// there.
	scaleStep = 4
	// arrivalTime is the time constant of the observed arrival rate.
	arrivalTime = 30 * time.Second
	// scaleLeast is the least time between two readings, and scaleMost the most that a longer pause counts.
	scaleLeast = time.Second
	scaleMost  = time.Minute
)

// Load is the present load of a pool, and the capacity of one of its workers. An unknown capacity is 0, and its load not
// counted.
type Load struct {
	Present int // not draining

	BacklogTokens   float64 // uncached prompt tokens, waiting and booked
	ArrivalTokens   float64 // uncached prompt tokens per second
	TokensPerSecond float64 // computed by one worker

	Blocks       float64 // KV blocks booked, and needed by waiting requests
	WorkerBlocks float64 // of one worker

	Requests   float64 // booked and waiting
	WorkerSeqs float64 // running at once on one worker

	Generated       float64 // tokens generated per second
	WorkerGenerates float64 // by one worker at the target of the time between tokens
}

// Demand is how many workers a load fills to a utilization, in fractions of a worker, by what is scarce. A term without
// a known capacity is 0.
type Demand struct {
	Compute float64 `json:"compute"` // (BacklogTokens / 10 s + ArrivalTokens) / (TokensPerSecond × utilization)
	Memory  float64 `json:"memory"`  // Blocks / (WorkerBlocks × utilization)
	Batch   float64 `json:"batch"`   // Requests / (WorkerSeqs × utilization)
	ITL     float64 `json:"itl"`     // Generated / (WorkerGenerates × utilization)
	// Known is false while no capacity is known.
	Known bool `json:"known"`
}

// Workers returns the greatest term: the demand.
func (d Demand) Workers() float64 { return max(d.Compute, d.Memory, d.Batch, d.ITL) }

// Demand returns how many workers the load fills to a utilization from 0 to 1.
func (l Load) Demand(utilization float64) (d Demand) {
	part := func(need, capacity float64) float64 {
		if capacity <= 0 {
			return 0
		}
		d.Known = true
		return need / (capacity * utilization)
	}
	d.Compute = part(l.BacklogTokens/scaleHorizon.Seconds()+l.ArrivalTokens, l.TokensPerSecond)
	d.Memory = part(l.Blocks, l.WorkerBlocks)
	d.Batch = part(l.Requests, l.WorkerSeqs)
	d.ITL = part(l.Generated, l.WorkerGenerates)
	return d
}

// Scaler smooths readings of one pool's load into a number of workers that does not flap. It is a pure value; its owner
// guards it.
type Scaler struct {
	smooth  float64 // smoothed demand
	workers int
	began   time.Time // with the first reading
	at      time.Time // of the latest reading
}

// Read adds a reading and returns the desired number, from 1 to scaleStep times the present one. For scaleMost it is the
// present number at least, so that a new gateway, which workers join one by one, does not shrink the fleet. It is the
// present number while demand is unknown. A reading within scaleLeast of the last changes nothing else.
func (s *Scaler) Read(l Load, utilization float64, now time.Time) int {
	present, d := max(1, l.Present), l.Demand(utilization)
	if s.at.IsZero() || !d.Known {
		s.smooth, s.workers, s.at = float64(present), present, now
		if s.began.IsZero() {
			s.began = now
		}
		return s.workers
	}
	if now.Sub(s.began) < scaleMost && s.workers < present {
		s.smooth, s.workers = max(s.smooth, float64(present)), present
	}
	since := now.Sub(s.at)
	if since < scaleLeast {
		return s.workers
	}
	s.at = now
	demand := min(d.Workers(), float64(scaleStep*present))
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

// Arrivals is the smoothed growth rate of a total. It is a pure value; its owner guards it.
type Arrivals struct {
	// Over is the time constant; 0 means 30 s.
	Over time.Duration

	total     float64
	perSecond float64
	at        time.Time
}

// Read adds the total at now and returns its growth per second, 0 at the first reading.
func (a *Arrivals) Read(total float64, now time.Time) float64 {
	since := now.Sub(a.at)
	switch {
	case a.at.IsZero():
		a.total, a.at = total, now
	case since >= scaleLeast:
		rate := max(0, total-a.total) / since.Seconds()
		a.perSecond += (rate - a.perSecond) * follow(since, cmp.Or(a.Over, arrivalTime))
		a.total, a.at = total, now
	}
	return a.perSecond
}

// follow returns the weight of a new value in an exponential average after a time.
func follow(since, constant time.Duration) float64 {
	return 1 - math.Exp(-min(since, scaleMost).Seconds()/constant.Seconds())
}

// whole returns the least whole number that suffices, ignoring rounding errors.
func whole(x float64) int { return int(math.Ceil(x - 1e-9)) }

// Mean is the mean of known values.
type Mean struct{ sum, n float64 }

// Add adds a value unless it is 0: unknown.
func (m *Mean) Add(v float64) {
	if v > 0 {
		m.sum, m.n = m.sum+v, m.n+1
	}
}

// Value returns the mean, 0 while nothing is known.
func (m *Mean) Value() float64 { return m.sum / max(1, m.n) }
