// Package speed learns how long workers take: for a prompt, and between two tokens of an answer. It predicts from the
// first answer on.
package speed

import (
	"math"
	"sync"
	"time"
)

// Work is what a worker does: what takes time, with the terms of its law.
type Work struct {
	terms func(a, b, knot float64) [3]float64
	knots []float64 // below which a takes as long as there
	shape shape
}

// Prompt is the work on a prompt of a tokens behind b cached ones. It takes
//
//	c₀ + c₁·n + c₂·n·(b + n/2), n = max(a, knot)
//
// which are a step's overhead, the layers' work on each token, and attention. Below the knot a step takes as long as to
// read the weights. On one H200 vLLM takes 35 to 40 ms for any prompt of up to 1,200 tokens.
func Prompt() Work {
	return Work{
		terms: func(a, b, knot float64) [3]float64 {
			n := max(a, knot) / 1000
			return [3]float64{1, n, n * (b/1000 + n/2)}
		},
		knots: []float64{256, 0, 512, 1024},
		shape: shape{[3]float64{.256, 1, .035}, [3]float64{1, 1, .05}},
	}
}

// Token is the work on one token of each of a requests with b tokens in all. It takes c₀ + c₁·a + c₂·b, which are
// reading the weights, the work on each request, and reading the KV cache.
func Token() Work {
	return Work{
		terms: func(a, b, _ float64) [3]float64 { return [3]float64{1, a, b / 1000} },
		knots: []float64{0},
		shape: shape{[3]float64{1, .007, .004}, [3]float64{1, .02, .01}},
	}
}

// Fits predicts how long workers take for one kind of work. The law belongs to a kind of worker, and each worker has a
// factor of its own. Both forget, so that they follow a change. Fits is safe for concurrent use.
type Fits struct {
	work Work

	mu      sync.Mutex // guards all below
	kinds   map[Kind]*fit
	workers map[string]*own
}

// Kind groups workers of equal speed.
type Kind struct {
	Model, Engine, Device string
	BatchedTokens         int
}

const (
	// An engine's first answers and its first time are its warm-up. They count little next to others.
	warmAnswers = 20
	warmTime    = time.Minute
	cold        = .1
	// halfLife is after how long an answer counts half.
	halfLife = 5 * time.Minute
	// settled is the weight of answers from which on workers of a kind are compared with its law. An answer whose distance
	// from its prediction is over outlier, as a logarithm, then only changes its worker's factor.
	settled, outlier = 2, 1.4
	// solved is the weight from which on only one answer in each changes the law at once.
	solved, each = 40, 8
)

// The variances of a worker's factor, as its logarithm: at first, of an answer, and what it gains with each. A factor
// follows about the last ten answers. fades is what stays of it with each: what lasts becomes the law's.
const (
	firstFactor, answerFactor, gainedFactor = .0625, .04, .00044

	fades = .995
)

// own is what is known of one worker.
type own struct {
	kind        Kind
	fit         *fit
	incarnation string
	since       time.Time
	answers     int
	log         float64 // of its factor
	variance    float64 // of log
	off         float64 // the mean distance of answers from their prediction, as a logarithm
}

// fit is one kind's laws, by knot.
type fit struct {
	laws    [4]law
	best    int
	answers int
	latest  time.Time
}

// NewFits returns Fits without workers.
func NewFits(work Work) *Fits {
	return &Fits{work: work, kinds: map[Kind]*fit{}, workers: map[string]*own{}}
}

// Observe records how long a worker's process, with nothing else to do, took for a and b.
func (f *Fits) Observe(kind Kind, worker, incarnation string, a, b int, took time.Duration, now time.Time) {
	if a <= 0 || b < 0 || took <= 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	w := f.worker(kind, worker, incarnation, now)
	weight := 1.0
	if w.answers++; w.answers <= warmAnswers || now.Sub(w.since) < warmTime {
		weight = cold
	}
	seconds, learns := took.Seconds(), true
	if expected := f.predict(w.fit, a, b) * math.Exp(w.log); expected > 0 {
		distance := math.Log(seconds / expected)
		w.off += (math.Abs(distance) - w.off) / float64(min(10, w.answers))
		if w.fit.laws[w.fit.best].weight >= settled {
			learns = math.Abs(distance) <= outlier
			gain := w.variance / (w.variance + answerFactor/weight)
			w.log = fades * (w.log + gain*max(-outlier, min(outlier, distance)))
			w.variance = (1-gain)*w.variance + gainedFactor
		}
	}
	if learns {
		f.learn(w.fit, a, b, seconds/math.Exp(w.log), weight, now)
	}
}

// worker returns what is known of a worker's process. The caller holds mu.
func (f *Fits) worker(kind Kind, worker, incarnation string, now time.Time) *own {
	w := f.workers[worker]
	if w != nil && w.incarnation == incarnation && w.kind == kind {
		return w
	}
	w = &own{kind: kind, fit: f.kinds[kind], incarnation: incarnation, since: now, variance: firstFactor}
	if w.fit == nil {
		w.fit = &fit{latest: now}
		f.kinds[kind] = w.fit
	}
	f.workers[worker] = w
	return w
}

// learn adds an answer to the laws of a kind. The caller holds mu.
func (f *Fits) learn(k *fit, a, b int, seconds, weight float64, now time.Time) {
	k.answers++
	solve := k.laws[k.best].weight < solved || k.answers%each == 0
	left := kept(now.Sub(k.latest))
	k.latest = now
	for i, knot := range f.work.knots {
		l := &k.laws[i]
		l.fade(left)
		l.observe(f.work.terms(float64(a), float64(b), knot), seconds, weight)
		if !solve {
			continue
		}
		if l.solve(&f.work.shape); i == 0 || l.penalty < k.laws[k.best].penalty {
			k.best = i
		}
	}
}

// predict returns the seconds that a kind should take, 0 for unknown. The caller holds mu.
func (f *Fits) predict(k *fit, a, b int) float64 {
	return k.laws[k.best].at(f.work.terms(float64(a), float64(b), f.work.knots[k.best]))
}

// Predict returns how long the worker should take for a and b and, behind so much of a by others, first for that. It is
// false before the first answer of its kind.
func (f *Fits) Predict(kind Kind, worker string, behind, a, b int) (time.Duration, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	k, factor := f.of(kind, worker)
	if k == nil {
		return 0, false
	}
	seconds := f.predict(k, a, b)
	if c := &k.laws[k.best].c; behind > 0 { // in prompts that are unknown
		seconds += c[0] + c[1]*float64(behind)/1000
	}
	return Bounded(factor * seconds), true
}

// together is how many of the shortest prompts an engine computes in the time of one.
const together = 16

// Occupied returns how long a and b keep the worker from other work: Predict without the fixed cost and the knot, which
// prompts of one step share.
func (f *Fits) Occupied(kind Kind, worker string, a, b int) (time.Duration, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	k, factor := f.of(kind, worker)
	if k == nil {
		return 0, false
	}
	l := &k.laws[k.best]
	own := l.at(f.work.terms(float64(a), float64(b), 0)) - l.c[0]
	return Bounded(factor * max(own, f.predict(k, a, b)/together)), true
}

// of returns the laws of a worker and its factor, nil before the first answer of its kind. The caller holds mu.
func (f *Fits) of(kind Kind, worker string) (*fit, float64) {
	k, factor := f.kinds[kind], 1.0
	if w := f.workers[worker]; w != nil && w.kind == kind {
		k, factor = w.fit, coarse(w.log)
	}
	if k == nil || k.answers == 0 {
		return nil, 0
	}
	return k, factor
}

// Off returns the share by which the worker's latest answers were off their prediction, 0 while unknown: 0.1 is a tenth.
func (f *Fits) Off(worker string) float64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	if w := f.workers[worker]; w != nil {
		return math.Expm1(w.off)
	}
	return 0
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

// coarse is e to the power of a logarithm, in steps of two percent. Workers that differ by less are alike: otherwise
// chance would always have the same one of several idle workers look the fastest.
func coarse(log float64) float64 {
	const step = .02
	return math.Exp(math.Round(log/step) * step)
}

// longest is the longest time that is predicted.
const longest = 24 * time.Hour

// Bounded is a time of so many seconds, at most a day.
func Bounded(seconds float64) time.Duration {
	return time.Duration(min(seconds, longest.Seconds()) * float64(time.Second))
}
