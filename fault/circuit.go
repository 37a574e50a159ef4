package fault

import "time"

// circuit is the breaker of one worker's leg in one incarnation: a core.
type circuit struct {
	key         circuitKey
	incarnation string
	cfg         *BreakerConfig
	made        time.Time

	state  State
	term   int       // of the state: it counts the changes
	until  time.Time // an open one is open until after this
	row    run
	window window
	opened int

	trials int       // calls under way that a half-open one let through
	alone  time.Time // the latest of them has the worker to itself until this
	grace  time.Duration

	changes []change // not yet reported
}

// change is one change of state.
type change struct {
	to   Circuit
	from State
}

// call is one call that a circuit let through.
type call struct {
	term  int   // in which it was let through
	trial bool  // by a half-open circuit
	alive bool  // it gave a sign of life
	sign  *sign // that sign, where it counts
	ended bool
}

func newCircuit(key circuitKey, incarnation string, cfg *BreakerConfig, now time.Time) circuit {
	return circuit{key: key, incarnation: incarnation, cfg: cfg, made: now, state: Closed, window: window{step: max(cfg.Window/windowSteps, 1)}}
}

// graces is how many times a first trial's grace goes into OpenFor.
const graces = 10

// look brings the state up to date: an open circuit half-opens by itself.
func (c *circuit) look(now time.Time) State {
	if c.state == Open && now.After(c.until) {
		c.change(HalfOpen)
		c.trials, c.grace = 0, c.cfg.OpenFor/graces
	}
	return c.state
}

// allow lets a call through, or does not.
func (c *circuit) allow(now time.Time) (*call, bool) {
	if c.blocked(now) {
		return nil, false
	}
	k := &call{term: c.term, trial: c.state == HalfOpen}
	if k.trial {
		c.trials++
		c.alone = now.Add(c.grace)
		c.grace = min(2*c.grace, c.cfg.OpenFor)
	}
	return k, true
}

// report takes in what came of a call: None at its first sign of life, and then
// how it ended. What comes after its end is nothing new, and what became of a call
// of an earlier state says nothing of this one.
func (c *circuit) report(k *call, class Class, now time.Time) {
	if k.ended {
		return
	}
	c.look(now)
	current := k.term == c.term
	switch {
	case class == None && !k.alive:
		k.alive = true
		if current && c.state != Open {
			c.succeed(k, now)
		}
	case class.Blames():
		k.ended = true
		if current && c.state != Open {
			c.fail(k, now)
		}
	default:
		k.ended = true
		if current {
			c.leave(k)
		}
	}
}

// succeed takes a call's first sign of life in. A trial's closes the circuit.
func (c *circuit) succeed(k *call, now time.Time) {
	if c.state == HalfOpen {
		c.row, c.window = run{}, window{step: c.window.step, now: c.window.now}
		c.change(Closed)
		k.term, k.trial = c.term, false
	}
	k.sign = c.row.sign()
	c.window.add(now.Sub(c.made), false)
}

// fail takes a failure in: a trial's, one too many in a row or within the window
// opens the circuit.
func (c *circuit) fail(k *call, now time.Time) {
	c.row.fail(k.sign)
	c.window.add(now.Sub(c.made), true)
	failed, ended := c.window.sums()
	if k.trial || c.row.length() >= c.cfg.Consecutive || ended >= c.cfg.MinCalls && float64(failed) >= c.cfg.Ratio*float64(ended) {
		c.opened++
		c.until = now.Add(c.cfg.OpenFor)
		c.change(Open)
	}
}

// leave takes the end of a call in that has not failed. A trial that said nothing
// makes place for another.
func (c *circuit) leave(k *call) {
	switch {
	case k.sign != nil:
		c.row.stand(k.sign)
	case k.trial:
		if c.trials--; c.trials == 0 {
			c.alone = time.Time{}
		}
	}
}

// change changes the state.
func (c *circuit) change(to State) {
	from := c.state
	c.state = to
	c.term++
	c.changes = append(c.changes, change{to: c.view(), from: from})
}

// blocked says whether a call would be refused now.
func (c *circuit) blocked(now time.Time) bool {
	return c.look(now) == Open || c.onTrial(now)
}

// onTrial says whether the circuit is half-open and a trial has the worker to
// itself.
func (c *circuit) onTrial(now time.Time) bool {
	return c.look(now) == HalfOpen && c.trials > 0 && now.Before(c.alone)
}

// view is the circuit for others to see.
func (c *circuit) view() Circuit {
	return Circuit{
		Worker: c.key.worker, Incarnation: c.incarnation, Leg: c.key.leg,
		State: c.state, Failures: c.row.length(), Opened: c.opened,
	}
}

// window counts the calls of the latest windowSteps steps.
type window struct {
	step    time.Duration
	now     int64 // the latest step
	buckets [windowSteps]bucket
}

type bucket struct{ ended, failed int }

// windowSteps is how many buckets a window has.
const windowSteps = 10

// add counts one call, at a time that does not go back.
func (w *window) add(at time.Duration, failed bool) {
	step := int64(at / w.step)
	w.now = max(w.now, step-windowSteps) // what lies before that is gone in any case
	for w.now < step {
		w.now++
		w.buckets[w.now%windowSteps] = bucket{}
	}
	b := &w.buckets[step%windowSteps]
	b.ended++
	if failed {
		b.failed++
	}
}

// sums are the calls of the window that ends with the latest one.
func (w *window) sums() (failed, ended int) {
	for _, b := range w.buckets {
		failed += b.failed
		ended += b.ended
	}
	return failed, ended
}
