package replay

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Sizes of the plots, in points: more cannot be distinguished.
const (
	curvePoints = 400
	timeBins    = 240
	maxDots     = 5_000
	leftOut     = 2 // percent of many times, see cdf
)

// curve is the data of a plot, in the form the plots take: the values of x, and a list of as many values for each line.
type curve struct {
	X []float64   `json:"x"`
	Y [][]float64 `json:"y"`
}

// cdf returns the share of times (in percent) that are not above x (milliseconds): at every time where there are few,
// else at curvePoints shares. Of many times it leaves the lowest leftOut percent out: two chunks in one read are no gap
// to stretch an axis for.
func cdf(times []Millis) curve {
	slices.Sort(times)
	c := curve{X: []float64{}, Y: [][]float64{{}}}
	if len(times) == 0 {
		return c
	}
	last := -1.0
	at := func(i int) (Millis, float64) { return times[i], 100 * float64(i+1) / float64(len(times)) }
	first, points := 0, len(times)
	if len(times) > curvePoints {
		first, points = curvePoints*leftOut/100, curvePoints+1
		at = func(i int) (Millis, float64) {
			share := 100 * float64(i) / curvePoints
			return Quantile(times, share/100), share
		}
	}
	for i := first; i < points; i++ {
		value, share := at(i)
		x := max(value.Float(), 0.001) // a logarithm's axis has no zero
		if x == last {
			c.Y[0][len(c.Y[0])-1] = share
			continue
		}
		c.X, c.Y[0] = append(c.X, x), append(c.Y[0], share)
		last = x
	}
	return c
}

// ttftOverTime is a dot for each answered request.
func ttftOverTime(samples []Sample) curve {
	c := curve{X: []float64{}, Y: [][]float64{{}}}
	every := 1 + len(samples)/maxDots
	dots := make([]*Sample, 0, len(samples)/every)
	for i := 0; i < len(samples); i += every {
		if s := &samples[i]; s.Outcome == Answered && s.TTFT > 0 {
			dots = append(dots, s)
		}
	}
	slices.SortStableFunc(dots, func(a, b *Sample) int { return cmp.Compare(a.Scheduled, b.Scheduled) })
	for _, s := range dots {
		c.X, c.Y[0] = append(c.X, time.Duration(s.Scheduled).Seconds()), append(c.Y[0], s.TTFT.Float())
	}
	return c
}

// bins are equal parts of a run's time.
type bins struct {
	width Millis
	n     int
}

func newBins(wall Millis) bins {
	width := max(wall/timeBins, Millis(10*time.Millisecond))
	return bins{width, int(wall/width) + 1}
}

func (b bins) of(at Millis) int { return min(max(int(at/b.width), 0), b.n-1) }

// axis is the beginnings of the bins, in seconds.
func (b bins) axis() []float64 {
	x := make([]float64, b.n)
	for i := range x {
		x[i] = time.Duration(Millis(i) * b.width).Seconds()
	}
	return x
}

// inFlightOverTime is the most requests in flight in each bin.
func inFlightOverTime(samples []Sample, wall Millis) curve {
	b := newBins(wall)
	y := make([]float64, b.n)
	now, bin := 0.0, 0
	for _, f := range flights(samples) {
		for at := b.of(f.at); bin < at; {
			bin++
			y[bin] = now
		}
		now += float64(f.delta)
		y[bin] = max(y[bin], now)
	}
	return curve{b.axis(), [][]float64{y}}
}

// tokensOverTime is the output tokens a second in each bin. A chunk counts as its share of the answer's tokens.
func tokensOverTime(samples []Sample, wall Millis) curve {
	b := newBins(wall)
	y := make([]float64, b.n)
	for i := range samples {
		s := &samples[i]
		if s.TTFT == 0 {
			continue
		}
		each := float64(s.OutputTokens) / float64(1+len(s.Gaps)) / time.Duration(b.width).Seconds()
		at := s.Scheduled + s.TTFT
		y[b.of(at)] += each
		for _, gap := range s.Gaps {
			at += gap
			y[b.of(at)] += each
		}
	}
	for i := range y {
		y[i] = math.Round(y[i]*10) / 10
	}
	return curve{b.axis(), [][]float64{y}}
}
