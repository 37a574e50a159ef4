package speed

import (
	"math"
	"time"
)

// law is y = c·x with coefficients that are not below 0. It is learnt from answers by least squares of relative errors,
// which forget, towards a shape that holds while the answers do not tell. It is a pure value.
type law struct {
	xx      [3][3]float64 // sums over answers, each weighed by 1/y²
	xy      [3]float64
	weight  float64 // of the answers that count
	c       [3]float64
	penalty float64 // of c, by which laws compare
}

// shape is what is assumed of a law: the coefficients in proportion, and by how much of the whole each may differ.
type shape struct{ typical, spread [3]float64 }

// The variance of relative errors that is assumed at first, and its bounds.
const leastVariance, firstVariance, mostVariance = .0025, .04, 1

// fade has all answers so far count less.
func (l *law) fade(kept float64) {
	l.weight *= kept
	for i := range l.xy {
		l.xy[i] *= kept
		for j := range l.xy {
			l.xx[i][j] *= kept
		}
	}
}

func (l *law) observe(x [3]float64, y, weight float64) {
	l.weight += weight
	weight /= y * y
	for i := range x {
		l.xy[i] += weight * x[i] * y
		for j := range x {
			l.xx[i][j] += weight * x[i] * x[j]
		}
	}
}

func (l *law) at(x [3]float64) (sum float64) {
	for i := range x {
		sum += l.c[i] * x[i]
	}
	return sum
}

// variance is that of the relative errors that c leaves.
func (l *law) variance() float64 {
	loss := l.weight
	for i, c := range l.c {
		loss -= 2 * c * l.xy[i]
		for j := range l.c {
			loss += c * l.xx[i][j] * l.c[j]
		}
	}
	return min(mostVariance, max(leastVariance, (loss+firstVariance)/(l.weight+1)))
}

// solve finds the coefficients of the least error and penalty: the best of all choices of those that are 0.
func (l *law) solve(s *shape) {
	var above, below float64 // of the shape's one factor that fits best
	for i := range s.typical {
		above += s.typical[i] * l.xy[i]
		for j := range s.typical {
			below += s.typical[i] * l.xx[i][j] * s.typical[j]
		}
	}
	factor, variance := above/below, firstVariance
	if l.c != [3]float64{} {
		variance = l.variance()
	}
	xx, xy, fixed := l.xx, l.xy, l.weight
	for i := range xx {
		sd := s.spread[i] * factor
		xx[i][i] += variance / (sd * sd)
		xy[i] += variance / (sd * sd) * factor * s.typical[i]
		fixed += variance * s.typical[i] * s.typical[i] / (s.spread[i] * s.spread[i])
	}
	l.penalty = math.Inf(1)
	for free := 1; free < 8; free++ {
		c, ok := with(&xx, &xy, free)
		if !ok {
			continue
		}
		penalty := fixed
		for i := range c {
			penalty -= c[i] * xy[i] // at the least: cᵀ·xx·c = c·xy
		}
		if penalty < l.penalty {
			l.penalty, l.c = penalty, c
		}
	}
}

// with solves for the coefficients whose bit is set in free, by Gaussian elimination; false if one of them is below 0
// or not determined.
func with(xx *[3][3]float64, xy *[3]float64, free int) (c [3]float64, ok bool) {
	var rows [3][4]float64
	var at [3]int
	n := 0
	for i := range 3 {
		if free&(1<<i) != 0 {
			at[n] = i
			n++
		}
	}
	for r := range n {
		for col := range n {
			rows[r][col] = xx[at[r]][at[col]]
		}
		rows[r][n] = xy[at[r]]
	}
	for p := range n {
		if rows[p][p] <= 1e-12*xx[at[p]][at[p]] {
			return c, false
		}
		for r := range n {
			if r == p {
				continue
			}
			times := rows[r][p] / rows[p][p]
			for col := p; col <= n; col++ {
				rows[r][col] -= times * rows[p][col]
			}
		}
	}
	for r := range n {
		if c[at[r]] = rows[r][n] / rows[r][r]; c[at[r]] < 0 {
			return c, false
		}
	}
	return c, true
}

// kept is the weight that time leaves to an answer.
func kept(ago time.Duration) float64 {
	return math.Exp2(-min(10, max(0, ago.Seconds())/halfLife.Seconds()))
}
