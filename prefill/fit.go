package prefill

import (
	"math"
	"sync"
	"time"
)

// Fits predicts how long workers take to prefill n tokens behind cached ones, as
//
//	(c₀ + c₁·n + c₂·n·(cached + n/2)) · f
//
// The coefficients belong to a kind of worker, f to the one worker. The terms are a step's overhead, the layers' work
// on each token, and attention. They are fitted to answers by least squares of relative errors with forgetting, so that
// short prompts count as much as long ones; none is below 0. Fits is safe for concurrent use.
type Fits struct {
	mu      sync.Mutex // guards all below
	kinds   map[Kind]*fit
	workers map[string]*own
}

// Kind groups workers with equal prefill speed.
type Kind struct {
	Model, Engine, Device string
	BatchedTokens         int
}

const (
	// warmAnswers and warmTime are an engine's warm-up: its first answers and its first time are not fitted.
	warmAnswers = 20
	warmTime    = time.Minute
	// leastFitted is how many answers a kind's fit takes.
	leastFitted = 30
	// forget is the weight of an answer relative to the next one: about the last 200 count.
	forget = .995
	// steady is the same for a worker's own factor: about the last ten.
	steady = .9
	// outlier is how many times the prediction an answer counts as at most.
	outlier = 4
)

type own struct {
	kind        Kind
	incarnation string
	since       time.Time
	answers     int
	log         float64 // of its factor
}

// NewFits returns Fits without workers.
func NewFits() *Fits { return &Fits{kinds: map[Kind]*fit{}, workers: map[string]*own{}} }

// Observe records how long a worker's process, with nothing else to compute, took for a prompt with so many cached and
// uncached tokens.
func (f *Fits) Observe(kind Kind, worker, incarnation string, uncached, cached int, took time.Duration, now time.Time) {
	if uncached <= 0 || cached < 0 || took <= 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	w := f.workers[worker]
	if w == nil || w.incarnation != incarnation || w.kind != kind {
		w = &own{kind: kind, incarnation: incarnation, since: now}
		f.workers[worker] = w
	}
	if w.answers++; w.answers <= warmAnswers || now.Sub(w.since) < warmTime {
		return
	}
	k := f.kinds[kind]
	if k == nil {
		k = &fit{}
		f.kinds[kind] = k
	}
	seconds := took.Seconds()
	if predicted := k.seconds(uncached, cached) * math.Exp(w.log); k.answers >= leastFitted && predicted > 0 {
		seconds = min(seconds, outlier*predicted)
		w.log += (1 - steady) * math.Log(seconds/predicted)
	}
	k.observe(uncached, cached, seconds/math.Exp(w.log))
}

// Predict returns how long the worker should take, and false while its kind has too few observations.
func (f *Fits) Predict(kind Kind, worker string, uncached, cached int) (time.Duration, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	k := f.kinds[kind]
	if k == nil || k.answers < leastFitted {
		return 0, false
	}
	factor := 1.0
	if w := f.workers[worker]; w != nil && w.kind == kind {
		factor = coarse(w.log)
	}
	return Bounded(factor * k.seconds(uncached, cached)), true
}

// Forget drops the workers for which gone returns true, and the kinds without workers.
func (f *Fits) Forget(gone func(worker string) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	left := map[Kind]bool{}
	for id, w := range f.workers {
		if gone(id) {
			delete(f.workers, id)
		} else {
			left[w.kind] = true
		}
	}
	for kind := range f.kinds {
		if !left[kind] {
			delete(f.kinds, kind)
		}
	}
}

// fit is one kind's: the sums of weighted least squares, and the coefficients that solve them.
type fit struct {
	xx      [3][3]float64
	xy      [3]float64
	c       [3]float64
	answers int
}

// terms returns the factors of the coefficients, in thousands of tokens.
func terms(uncached, cached int) [3]float64 {
	n := float64(uncached) / 1000
	return [3]float64{1, n, n * (float64(cached)/1000 + n/2)}
}

func (k *fit) seconds(uncached, cached int) (sum float64) {
	for i, x := range terms(uncached, cached) {
		sum += k.c[i] * x
	}
	return sum
}

func (k *fit) observe(uncached, cached int, seconds float64) {
	x := terms(uncached, cached)
	weight := 1 / (seconds * seconds)
	for i := range x {
		k.xy[i] = k.xy[i]*forget + weight*x[i]*seconds
		for j := range x {
			k.xx[i][j] = k.xx[i][j]*forget + weight*x[i]*x[j]
		}
	}
	k.answers++
	k.solve()
}

// solve finds the coefficients, none below 0, of the least error: the best of all choices of those that are 0.
func (k *fit) solve() {
	best := math.Inf(1)
	for free := 1; free < 8; free++ {
		c, ok := k.with(free)
		if !ok {
			continue
		}
		loss := 0.0 // but for a constant
		for i := range c {
			loss -= 2 * c[i] * k.xy[i]
			for j := range c {
				loss += c[i] * k.xx[i][j] * c[j]
			}
		}
		if loss < best {
			best, k.c = loss, c
		}
	}
}

// with solves for the coefficients whose bit is set in free, by Gaussian elimination; false if one of them is below 0
// or not determined.
func (k *fit) with(free int) (c [3]float64, ok bool) {
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
			rows[r][col] = k.xx[at[r]][at[col]]
		}
		rows[r][n] = k.xy[at[r]]
	}
	for p := range n {
		if rows[p][p] <= 1e-9*k.xx[at[p]][at[p]] {
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
