package replay

import (
	"math"
	"slices"
	"time"

	"github.com/tandem-pd/tandem/lab/plot"
)

// Limits are a request's limits; 0 is none. A request is good when it was answered within all of them.
type Limits struct {
	// TTFT bounds the time to the first token, ITL the mean time between tokens.
	TTFT, ITL time.Duration
}

// set reports whether there is a limit.
func (l Limits) set() bool { return l.TTFT > 0 || l.ITL > 0 }

// stretch is by what factor the limits would have to be wider for a request to be good: up to 1 it is good, and none
// is wide enough for one that was not answered.
func (l Limits) stretch(s *Sample) float64 {
	if s.Outcome != Answered || s.TTFT <= 0 {
		return math.Inf(1)
	}
	worst := 0.0
	for _, c := range []struct {
		got   Millis
		limit time.Duration
	}{{s.TTFT, l.TTFT}, {s.ITL, l.ITL}} {
		if c.limit > 0 {
			worst = max(worst, float64(c.got)/float64(c.limit))
		}
	}
	return worst
}

// enough is the goodput, in percent, that a service is usually held to.
var enough = []plot.Limit{{Name: "90 %", At: 90}}

// Parts of a run over which goodput is plotted: so many at most, and so many requests in each at least, in the mean.
const (
	mostParts     = 40
	leastRequests = 10
)

// goodputOverTime plots the share of good requests among those that were due in each part of the run.
func (r *Report) goodputOverTime() *plot.Plot {
	p := &plot.Plot{
		Title: "Goodput over time", Help: "share of the requests due in each part of the run that were answered within the limits",
		X: clock, Y: plot.Axis{Name: "goodput", Unit: "%"}, Limits: enough, Steps: true,
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
		if all[part]++; r.Limits.stretch(s) <= 1 {
			good[part]++
		}
	}
	c := curve{Y: [][]float64{{}}}
	at := func(part int) float64 { return time.Duration(last).Seconds() * float64(part) / float64(parts) }
	for part := range parts {
		if all[part] > 0 {
			c.X, c.Y[0] = append(c.X, at(part)), append(c.Y[0], 100*float64(good[part])/float64(all[part]))
		}
	}
	c.X, c.Y[0] = append(c.X, at(parts)), append(c.Y[0], c.Y[0][len(c.Y[0])-1])
	p.Series = one("goodput", c)
	return p
}

// beyond is to what factor the plot of other limits goes at the least: past the limits that were set.
const beyond = 1.25

// goodputByLimits plots what goodput would be were both limits tighter or wider by a factor.
func (r *Report) goodputByLimits() *plot.Plot {
	p := &plot.Plot{
		Title: "Goodput if the limits were others", Help: "share of requests answered within both limits, each multiplied by the factor",
		X: plot.Axis{Name: "factor on the limits", Log: true}, Y: plot.Axis{Name: "goodput", Unit: "%"}, Steps: true,
		Limits: append([]plot.Limit{{Name: "as set", At: 1, OnX: true}}, enough...),
	}
	if !r.Limits.set() {
		return p
	}
	var factors []float64
	all := 0
	for i := range r.Samples {
		s := &r.Samples[i]
		if s.Outcome == Cancelled {
			continue
		}
		all++
		if f := r.Limits.stretch(s); !math.IsInf(f, 1) {
			factors = append(factors, max(f, 0.001)) // a logarithm's axis has no zero
		}
	}
	if len(factors) == 0 {
		return p
	}
	slices.Sort(factors)
	c := curve{Y: [][]float64{{}}}
	every := max(1, len(factors)/curvePoints)
	add := func(factor float64, good int) {
		c.X, c.Y[0] = append(c.X, factor), append(c.Y[0], 100*float64(good)/float64(all))
	}
	for i := every - 1; i < len(factors); i += every {
		add(factors[i], i+1)
	}
	if last := factors[len(factors)-1]; c.X[len(c.X)-1] < max(last, beyond) { // wider limits make no more requests good
		add(max(last, beyond), len(factors))
	}
	p.Series = one("goodput", c)
	return p
}
