package fault

import (
	"sync"

	"github.com/sony/gobreaker/v2"
)

// circuit is the breaker of one worker's leg in one incarnation.
type circuit struct {
	key         circuitKey
	incarnation string
	breaker     *gobreaker.TwoStepCircuitBreaker[struct{}]

	mu       sync.Mutex
	failures int // in a row, over whatever time: gobreaker's own figure ends with its window
	opened   int
	changes  []change // not yet told
}

// change is one change of state.
type change struct {
	to   Circuit
	from State
}

func newCircuit(key circuitKey, incarnation string, cfg BreakerConfig) *circuit {
	c := &circuit{key: key, incarnation: incarnation}
	c.breaker = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		MaxRequests:  1,
		Interval:     cfg.Window,
		BucketPeriod: max(cfg.Window/windowSteps, 1),
		Timeout:      cfg.OpenFor,
		IsExcluded: func(err error) bool {
			failed, ok := err.(failure)
			return ok && !Class(failed).Blames()
		},
		IsSuccessful:  c.count,
		ReadyToTrip:   func(n gobreaker.Counts) bool { return c.full(n, cfg) },
		OnStateChange: c.changed,
	})
	return c
}

// failure is a class as gobreaker sees it.
type failure Class

func (f failure) Error() string { return Class(f).String() }

// outcome is what gobreaker is told of a class: nil is a success.
func outcome(c Class) error {
	if c == None {
		return nil
	}
	return failure(c)
}

// count is asked by gobreaker once for every result that counts.
func (c *circuit) count(err error) (ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.failures = 0
		return true
	}
	c.failures++
	return false
}

// full says, after a failure, whether it was one too many.
func (c *circuit) full(n gobreaker.Counts, cfg BreakerConfig) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	ended := n.TotalSuccesses + n.TotalFailures
	return c.failures >= cfg.Consecutive ||
		ended >= uint32(cfg.MinCalls) && float64(n.TotalFailures) >= cfg.Ratio*float64(ended)
}

// changed notes a change of state. gobreaker calls it under its lock, so that
// it only notes.
func (c *circuit) changed(_ string, from, to gobreaker.State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch to {
	case gobreaker.StateOpen:
		c.opened++
	case gobreaker.StateClosed:
		c.failures = 0
	}
	c.changes = append(c.changes, change{to: c.locked(stateOf[to]), from: stateOf[from]})
}

// take gives the changes that were not yet told.
func (c *circuit) take() []change {
	c.mu.Lock()
	defer c.mu.Unlock()
	changes := c.changes
	c.changes = nil
	return changes
}

// view is the circuit for others to see.
func (c *circuit) view() Circuit {
	state := stateOf[c.breaker.State()] // before our own lock: it may change, and note it
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.locked(state)
}

func (c *circuit) locked(state State) Circuit {
	return Circuit{
		Worker: c.key.worker, Incarnation: c.incarnation, Leg: c.key.leg,
		State: state, Failures: c.failures, Opened: c.opened,
	}
}

// blocked says whether a call would be refused now: the circuit is open, or
// half-open with its one call under way.
func (c *circuit) blocked() bool {
	return c.breaker.State() == gobreaker.StateOpen || c.onTrial()
}

// onTrial says whether the circuit is half-open with its one call under way.
func (c *circuit) onTrial() bool {
	if c.breaker.State() != gobreaker.StateHalfOpen {
		return false
	}
	n := c.breaker.Counts()
	return n.Requests > n.TotalExclusions
}
