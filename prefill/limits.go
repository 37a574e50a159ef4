package prefill

import (
	"iter"
	"sync"
	"time"
)

// Limits bounds how long workers may take to compute a prompt, each by its own observed speed. A worker without
// observations uses the slowest of its pool. A pool without observations uses 30 s, doubled up to 8 min after each
// prompt that exceeds it: the limit itself may prevent an observation. Limits is safe for concurrent use.
type Limits struct {
	mu       sync.Mutex               // guards all below
	rates    map[string]*Rate         // by worker
	patience map[string]time.Duration // by model: the limit without an observed speed
}

// NewLimits returns Limits without workers.
func NewLimits() *Limits {
	return &Limits{rates: map[string]*Rate{}, patience: map[string]time.Duration{}}
}

// For returns how long the worker may take for that many tokens. pool is the workers of its pool.
func (l *Limits) For(model, worker string, pool iter.Seq[string], tokens int) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known := l.rates[worker]; known != nil {
		return known.Limit(tokens)
	}
	if slowest := l.slowest(pool); slowest != nil {
		return slowest.Limit(tokens)
	}
	return max(leastLimit, l.patience[model])
}

// Observe records that the worker computed tokens within took.
func (l *Limits) Observe(model, worker string, tokens int, took time.Duration) {
	if tokens <= 0 || took <= 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	known := l.rates[worker]
	if known == nil {
		known = &Rate{}
		l.rates[worker] = known
	}
	known.Observe(tokens, took)
	delete(l.patience, model)
}

// Exceeded records that a prompt took longer than the limit.
func (l *Limits) Exceeded(model string, pool iter.Seq[string], limit time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.slowest(pool) == nil {
		l.patience[model] = max(l.patience[model], min(2*limit, maxPatience))
	}
}

// PerSecond is the worker's observed speed in tokens a second, 0 while unknown.
func (l *Limits) PerSecond(worker string) float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if known := l.rates[worker]; known != nil {
		return known.PerSecond()
	}
	return 0
}

// Forget drops the workers and the models for which the funcs return true.
func (l *Limits) Forget(worker, model func(name string) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id := range l.rates {
		if worker(id) {
			delete(l.rates, id)
		}
	}
	for name := range l.patience {
		if model(name) {
			delete(l.patience, name)
		}
	}
}

// slowest returns the lowest observed speed of the pool, nil without any. The caller holds mu.
func (l *Limits) slowest(pool iter.Seq[string]) (slowest *Rate) {
	for id := range pool {
		if known := l.rates[id]; known != nil && (slowest == nil || known.PerSecond() < slowest.PerSecond()) {
			slowest = known
		}
	}
	return slowest
}
