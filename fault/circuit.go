package fault

import (
	"time"

	"github.com/sony/gobreaker/v2"
)

// circuit is the breaker of one worker's leg in one incarnation. gobreaker keeps the state, the window and the time.
// The circuit adds what gobreaker lacks: a success that is taken back when its call fails, and a second trial while
// the first is silent. The caller holds the lock of guarded; gobreaker's callbacks run under it.
type circuit struct {
	key         circuitKey
	incarnation string
	cfg         *BreakerConfig
	breaker     *gobreaker.TwoStepCircuitBreaker[struct{}]

	term   int // counts the changes of state
	row    run
	last   Class // failure
	opened int

	// The trials of a half-open circuit are one call to gobreaker. The first trial with a result ends it.
	verdict func(error)
	trials  int       // under way
	alone   time.Time // until then the latest trial has the worker alone
	grace   time.Duration

	changes []change // not yet reported
}

type change struct {
	to   Circuit
	from State
}

// call is one call that a circuit let through.
type call struct {
	term    int         // in which it was let through
	trial   bool        // by a half-open circuit
	verdict func(error) // gobreaker's, of a call that is no trial; nil once it was given
	alive   bool        // it gave a sign of life
	counts  bool        // the sign is in the row
	sign    sign
	ended   bool
}

// graces is OpenFor divided by the first trial's grace; windowSteps is the number of a window's buckets.
const (
	graces      = 10
	windowSteps = 10
)

// start makes the circuit's breaker, whose callbacks point to c: c must not move.
func (c *circuit) start() {
	c.breaker = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		MaxRequests:  1,
		Interval:     c.cfg.Window,
		BucketPeriod: max(c.cfg.Window/windowSteps, 1),
		Timeout:      c.cfg.OpenFor,
		IsExcluded: func(err error) bool {
			class, ok := err.(Class)
			return ok && !class.Blames()
		},
		ReadyToTrip: func(n gobreaker.Counts) bool {
			ended := n.TotalSuccesses + n.TotalFailures
			return c.row.length() >= c.cfg.Consecutive ||
				ended >= uint32(c.cfg.MinCalls) && float64(n.TotalFailures) >= c.cfg.Ratio*float64(ended)
		},
		OnStateChange: c.changed,
	})
}

var stateOf = [...]State{gobreaker.StateClosed: Closed, gobreaker.StateHalfOpen: HalfOpen, gobreaker.StateOpen: Open}

func (c *circuit) changed(_ string, from, to gobreaker.State) {
	c.term++
	switch to {
	case gobreaker.StateOpen:
		c.opened++
	case gobreaker.StateHalfOpen:
		c.verdict, c.trials, c.grace = nil, 0, c.cfg.OpenFor/graces
	case gobreaker.StateClosed:
		c.row = run{}
	}
	c.changes = append(c.changes, change{to: c.view(stateOf[to]), from: stateOf[from]})
}

// look returns the state now: an open circuit half-opens by itself.
func (c *circuit) look() State { return stateOf[c.breaker.State()] }

// acquire lets a call through, or refuses it.
func (c *circuit) acquire(now time.Time) (*call, bool) {
	state := c.look() // one look for all: it may half-open the circuit, which is a new term
	if state == Open || c.tried(state, now) {
		return nil, false
	}
	k := &call{term: c.term, trial: state == HalfOpen}
	if k.trial && c.verdict != nil { // in addition to one that is silent
		return c.try(k, now), true
	}
	verdict, err := c.breaker.Allow()
	if err != nil {
		return nil, false
	}
	if k.trial {
		c.verdict = verdict
		return c.try(k, now), true
	}
	k.verdict = verdict
	return k, true
}

// try counts one more trial.
func (c *circuit) try(k *call, now time.Time) *call {
	c.trials++
	c.alone = now.Add(c.grace)
	c.grace = min(2*c.grace, c.cfg.OpenFor)
	return k
}

// report applies a call's result: None at its first sign of life, then its end. Reports after the end, or of calls from
// an earlier state, change nothing.
func (c *circuit) report(k *call, class Class) {
	if k.ended {
		return
	}
	state := c.look()
	current := k.term == c.term && state != Open
	switch {
	case class == None && !k.alive:
		k.alive = true
		if current {
			c.succeed(k, state)
		}
	case class.Blames():
		k.ended = true
		if current {
			c.fail(k, class, state)
		}
	default:
		k.ended = true
		if current {
			c.neither(k)
		}
	}
}

// succeed records a call's first sign of life. A trial's sign closes the circuit.
func (c *circuit) succeed(k *call, state State) {
	c.judge(k, state, nil)
	k.term, k.trial = c.term, false
	c.row.add(&k.sign)
	k.counts = true
}

// fail records a failure. A trial's failure opens the circuit, as does one too many in a row or within the window.
func (c *circuit) fail(k *call, class Class, state State) {
	if k.counts {
		c.row.takeBack(&k.sign)
	}
	c.row.fail()
	c.last = class
	c.judge(k, state, class)
}

// judge reports a success or a failure to gobreaker. Trials share one verdict; another
// call has its own. Where that was used up by a sign of life, judge takes a new one.
func (c *circuit) judge(k *call, state State, err error) {
	verdict := k.verdict
	switch k.verdict = nil; {
	case state == HalfOpen:
		verdict, c.verdict = c.verdict, nil
	case verdict == nil:
		verdict, _ = c.breaker.Allow()
	}
	if verdict != nil {
		verdict(err)
	}
}

// neither records the end of a call that did not fail. A silent trial makes room for another trial.
func (c *circuit) neither(k *call) {
	switch {
	case k.counts:
		c.row.stand(&k.sign)
	case k.trial:
		if c.trials--; c.trials == 0 {
			c.verdict(ClientGone)
			c.verdict, c.alone = nil, time.Time{}
		}
	case k.verdict != nil:
		k.verdict(ClientGone)
	}
}

// blocked reports whether a call would be refused now.
func (c *circuit) blocked(now time.Time) bool {
	state := c.look()
	return state == Open || c.tried(state, now)
}

// open reports whether no call goes through, trials included.
func (c *circuit) open(time.Time) bool { return c.look() == Open }

// onTrial reports whether the circuit is half-open and a trial has the worker alone.
func (c *circuit) onTrial(now time.Time) bool { return c.tried(c.look(), now) }

func (c *circuit) tried(state State, now time.Time) bool {
	return state == HalfOpen && c.trials > 0 && now.Before(c.alone)
}

// news are the changes that were not reported yet, for the caller to report.
func (c *circuit) news() []change {
	changes := c.changes
	c.changes = nil
	return changes
}

// view is the circuit as others see it, in that state.
func (c *circuit) view(state State) Circuit {
	return Circuit{
		Worker: c.key.worker, Adapter: c.key.adapter, Incarnation: c.incarnation, Leg: c.key.leg,
		State: state, Failures: c.row.length(), Last: c.last, Opened: c.opened,
	}
}
