package planner

import (
	"math"
	"time"
)

// pace fits the seconds between two tokens of a kind of worker as c₀ + c₁·batch + c₂·thousands of tokens in the batch:
// recursive least squares of relative errors, with forgetting. It is a pure value.
type pace struct {
	c       [3]float64
	p       [3][3]float64
	samples int
	at      time.Time
}

const (
	// leastPaces is how many samples a fit takes, and paceHalves the time after which a sample counts half.
	leastPaces = 12
	paceHalves = 10 * time.Minute
)

// prior is the variance of a coefficient before any sample, over that of a sample's relative error.
var prior = [3]float64{.1, 1e-4, 1e-4}

// observe adds the time between tokens that a worker had at a load. Times without samples between them do not forget.
func (f *pace) observe(batch, kilotokens, seconds float64, now time.Time) {
	if f.samples == 0 {
		for i := range prior {
			f.p[i][i] = prior[i]
		}
	}
	fade := math.Exp2(min(now.Sub(f.at), scaleMost).Seconds() / paceHalves.Seconds())
	if f.at.IsZero() {
		fade = 1
	}
	x := [3]float64{1 / seconds, batch / seconds, kilotokens / seconds}
	var px [3]float64
	scale, missed := 1.0, 1.0
	for i := range x {
		for j := range x {
			f.p[i][j] *= min(fade, prior[i]/f.p[i][i], prior[j]/f.p[j][j])
			px[i] += f.p[i][j] * x[j]
		}
		scale += x[i] * px[i]
		missed -= x[i] * f.c[i]
	}
	for i := range x {
		f.c[i] += px[i] / scale * missed
		for j := range x {
			f.p[i][j] -= px[i] * px[j] / scale
		}
	}
	f.samples++
	f.at = now
}

// batch returns how many sequences of so many thousands of tokens a worker runs at seconds between tokens, 0 while
// unknown: too few samples, or no load takes as long.
func (f *pace) batch(kilotokens, seconds float64) float64 {
	slope := max(0, f.c[1]) + max(0, f.c[2])*kilotokens
	if f.samples < leastPaces || slope <= 0 || f.c[0] >= seconds {
		return 0
	}
	return (seconds - max(0, f.c[0])) / slope
}
