package replay

import (
	"slices"
	"time"
)

// Limits are a request's limits; 0 is none. A request is good when it was answered within all of them.
type Limits struct {
	// TTFT bounds the time to the first token, ITL the mean time between tokens.
	TTFT, ITL time.Duration
}

// set reports whether there is a limit.
func (l Limits) set() bool { return l.TTFT > 0 || l.ITL > 0 }

// met reports whether a request was answered within the limits.
func (l Limits) met(s *Sample) bool {
	within := func(got Millis, limit time.Duration) bool { return limit <= 0 || time.Duration(got) <= limit }
	return s.Outcome == Answered && s.TTFT > 0 && within(s.TTFT, l.TTFT) && within(s.ITL, l.ITL)
}

// enough is the goodput, in percent, that a service is usually held to.
var enough = []Limit{{Name: "90 %", At: 90}}

// Parts of a run over which goodput is plotted: so many at most, and so many requests in each at least, in the mean.
const (
	mostParts     = 40
	leastRequests = 10
)

// goodputOverTime plots the share of good requests among those that were due in each part of the run.
func (r *Report) goodputOverTime() *Plot {
	p := &Plot{
		Title: "Goodput over time", Help: "share of the requests due in each part of the run that were answered within the limits",
		X: clock, Y: Axis{Name: "goodput", Unit: "%"}, Limits: enough, Steps: true,
	}
	var due []*Sample
	for i := range r.Samples {
		if s := &r.Samples[i]; s.Outcome != Cancelled {
			due = append(due, s)
		}
	}
	if len(due) == 0 || !r.Limits.set() {
		return p
	}
	last := slices.MaxFunc(due, func(a, b *Sample) int { return int(a.Scheduled - b.Scheduled) }).Scheduled
	parts := min(mostParts, max(1, len(due)/leastRequests))
	all, good := make([]int, parts), make([]int, parts)
	for _, s := range due {
		part := min(parts-1, int(float64(s.Scheduled)/float64(last+1)*float64(parts)))
		if all[part]++; r.Limits.met(s) {
			good[part]++
		}
	}
	c := Series{Name: "goodput"}
	at := func(part int) float64 { return time.Duration(last).Seconds() * float64(part) / float64(parts) }
	for part := range parts {
		if all[part] > 0 {
			c.X, c.Y = append(c.X, at(part)), append(c.Y, 100*float64(good[part])/float64(all[part]))
		}
	}
	c.X, c.Y = append(c.X, at(parts)), append(c.Y, c.Y[len(c.Y)-1])
	p.Series = []Series{c}
	return p
}
