package replay

import (
	"cmp"
	"slices"
	"time"
)

// Sizes of the plots, in points: more cannot be distinguished.
const (
	curvePoints = 400
	maxDots     = 5_000
	leftOut     = 2 // percent of many times, see cdf
)

// cdf returns the share of times (in percent) that are not above x (milliseconds): at every time where there are few,
// else at curvePoints shares. Of many times it leaves the lowest leftOut percent out: two chunks in one read are no gap
// to stretch an axis for.
func cdf(name string, times []Millis) Series {
	slices.Sort(times)
	c := Series{Name: name}
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
			c.Y[len(c.Y)-1] = share
			continue
		}
		c.X, c.Y = append(c.X, x), append(c.Y, share)
		last = x
	}
	return c
}

// ttftOverTime is a dot for each answered request, and one for each refusal at the time that it took.
func ttftOverTime(samples []Sample) []Series {
	answered, refused := Series{Name: "TTFT"}, Series{Name: "refused"}
	every := 1 + len(samples)/maxDots
	dots := make([]*Sample, 0, len(samples)/every)
	for i := 0; i < len(samples); i += every {
		dots = append(dots, &samples[i])
	}
	slices.SortStableFunc(dots, func(a, b *Sample) int { return cmp.Compare(a.Scheduled, b.Scheduled) })
	for _, s := range dots {
		c, y := &answered, s.TTFT
		if s.Refused() {
			c, y = &refused, s.E2E
		}
		if s.Outcome == Answered && y > 0 || c == &refused {
			c.X, c.Y = append(c.X, time.Duration(s.Scheduled).Seconds()), append(c.Y, max(y.Float(), 0.001))
		}
	}
	if len(refused.X) == 0 {
		return []Series{answered}
	}
	return []Series{answered, refused}
}
