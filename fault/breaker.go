package fault

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sony/gobreaker/v2"
)

// ErrCircuitOpen is the error of a call that was not made because its worker's
// circuit is open. Classify calls it Refused: the worker has seen nothing.
var ErrCircuitOpen = errors.New("worker failed too often: its circuit is open")

// BreakerConfig says when a worker is left alone and for how long. The zero
// value of a field takes its default.
type BreakerConfig struct {
	// Consecutive is how many calls in a row must fail to open a circuit, over
	// whatever time. Default 3.
	Consecutive int
	// Ratio is the share of failed calls within Window that opens it, above 0
	// and at most 1, once MinCalls have ended. Default 0.5.
	Ratio float64
	// MinCalls is how many calls within Window the ratio needs. Default 20.
	MinCalls int
	// Window is how far back the ratio looks, in steps of a tenth. Default 10 s.
	Window time.Duration
	// OpenFor is how long an open circuit lets no call through; then one may
	// try. Default 5 s.
	OpenFor time.Duration
	// OnChange is told of every change, outside any lock; nil for nobody. Of
	// changes that happen at the same moment the order is not kept.
	OnChange func(c Circuit, from State)
}

// windowSteps is how many buckets a window has.
const windowSteps = 10

// Validate checks the bounds.
func (c BreakerConfig) Validate() error {
	switch {
	case c.Consecutive < 0:
		return errors.New("breaker's failures in a row are negative")
	case !(c.Ratio >= 0 && c.Ratio <= 1): // not a number either
		return errors.New("breaker's failure ratio is not from 0 to 1")
	case c.MinCalls < 0:
		return errors.New("breaker's least calls are negative")
	case c.Window < 0 || c.OpenFor < 0:
		return errors.New("breaker's window or open time is negative")
	}
	return nil
}

// orDefault fills in the defaults.
func (c BreakerConfig) orDefault() BreakerConfig {
	c.Consecutive = cmp.Or(max(c.Consecutive, 0), 3)
	if !(c.Ratio > 0 && c.Ratio <= 1) {
		c.Ratio = 0.5
	}
	c.MinCalls = cmp.Or(max(c.MinCalls, 0), 20)
	c.Window = cmp.Or(max(c.Window, 0), 10*time.Second)
	c.OpenFor = cmp.Or(max(c.OpenFor, 0), 5*time.Second)
	return c
}

// State is a circuit's state.
type State string

// The states of a circuit.
const (
	Closed   State = "closed"    // calls go through
	HalfOpen State = "half_open" // one call tries; its end decides
	Open     State = "open"      // no call goes through
)

// stateOf names gobreaker's states.
var stateOf = map[gobreaker.State]State{
	gobreaker.StateClosed: Closed, gobreaker.StateHalfOpen: HalfOpen, gobreaker.StateOpen: Open,
}

// Circuit is the state of one worker's leg.
type Circuit struct {
	Worker string `json:"worker"`
	// Incarnation is the process that the state is about.
	Incarnation string `json:"incarnation"`
	Leg         Leg    `json:"leg"`
	State       State  `json:"state"`
	// Failures is how many calls in a row have failed.
	Failures int `json:"failures"`
	// Opened counts how often the circuit has opened.
	Opened int `json:"opened"`
}

// Breakers are one circuit for each worker, leg and incarnation: a worker that
// comes back as another process begins anew. They read the wall clock. A nil
// *Breakers lets every call through. They are safe for concurrent use.
//
// Whoever chooses a worker keeps to one rule:
//
//   - A closed circuit lets every call through.
//   - An open one lets none through for OpenFor. Where the circuits of all of a
//     pool's workers are open, whoever chooses may ask those whose circuits are
//     open all the same, without leave: a pool that answers some requests is
//     worth more than one that is left alone. What becomes of such a call is
//     not counted.
//   - A half-open one lets exactly one call through, the trial, and nobody else,
//     not even where every other circuit is open: the others take another
//     worker, or wait for the trial's end, which is the first sign of an answer
//     or the failure. A trial that says nothing about the worker, as when its
//     client leaves, makes place for another; one that fails opens the circuit
//     for another OpenFor. So a worker that stays dead costs one call in OpenFor.
//
// Allow gives the leave, or the trial, to one of any number that ask at once.
// It is to be asked where the worker is booked and not where it is called, so
// that of many requests that choose at once only one has chosen the trial.
type Breakers struct {
	cfg BreakerConfig

	mu       sync.RWMutex
	circuits map[circuitKey]*circuit
	tripped  map[circuitKey]*circuit // those that are not closed, of circuits
}

type circuitKey struct {
	worker string
	leg    Leg
}

// NewBreakers makes breakers without circuits. Values of cfg that Validate
// refuses take their defaults.
func NewBreakers(cfg BreakerConfig) *Breakers {
	return &Breakers{cfg: cfg.orDefault(), circuits: map[circuitKey]*circuit{}, tripped: map[circuitKey]*circuit{}}
}

// Allow asks whether a worker may be called. Its error is ErrCircuitOpen. When
// it is nil, done must be called with what became of the call; a half-open
// circuit lets no other call through before. done may be called twice: with
// None at the first sign of an answer, so that a long stream does not keep a
// circuit half-open, and with the failure that ended it after all.
//
// None is a success. A class that does not blame the worker, as a client's
// leaving, counts neither way.
func (b *Breakers) Allow(worker, incarnation string, leg Leg) (done func(Class), err error) {
	if b == nil {
		return func(Class) {}, nil
	}
	c := b.circuit(worker, incarnation, leg)
	step, err := c.breaker.Allow()
	b.settle(c)
	if err != nil {
		return nil, ErrCircuitOpen
	}
	var mu sync.Mutex
	ended := false
	return func(class Class) {
		mu.Lock()
		again := ended
		ended = true
		mu.Unlock()
		switch {
		case !again:
			step(outcome(class))
		case class.Blames():
			if late, err := c.breaker.Allow(); err == nil {
				late(outcome(class))
			}
		}
		b.settle(c)
	}, nil
}

// State is the state of a worker's leg, Closed where nothing is known of it.
func (b *Breakers) State(worker string, leg Leg) State {
	if b == nil {
		return Closed
	}
	b.mu.RLock()
	c := b.circuits[circuitKey{worker, leg}]
	b.mu.RUnlock()
	if c == nil {
		return Closed
	}
	defer b.settle(c)
	return stateOf[c.breaker.State()]
}

// Blocked lists the workers that Allow would refuse for that leg now, in
// order: whoever chooses a worker leaves them out. It costs next to nothing
// while every circuit is closed.
func (b *Breakers) Blocked(leg Leg) []string {
	if b == nil {
		return nil
	}
	var list []string
	for _, c := range b.inTrouble() {
		if c.key.leg == leg && c.blocked() {
			list = append(list, c.key.worker)
		}
		b.settle(c)
	}
	slices.Sort(list)
	return list
}

// OnTrial lists the workers, in order, whose half-open circuit for that leg has
// given its one trial away: not to be asked by anyone before it has ended.
func (b *Breakers) OnTrial(leg Leg) []string {
	if b == nil {
		return nil
	}
	var list []string
	for _, c := range b.inTrouble() {
		if c.key.leg == leg && c.onTrial() {
			list = append(list, c.key.worker)
		}
		b.settle(c)
	}
	slices.Sort(list)
	return list
}

// States is the state of every circuit, by worker and leg.
func (b *Breakers) States() []Circuit {
	if b == nil {
		return nil
	}
	b.mu.RLock()
	all := slices.Collect(maps.Values(b.circuits))
	b.mu.RUnlock()
	list := make([]Circuit, 0, len(all))
	for _, c := range all {
		list = append(list, c.view())
		b.settle(c)
	}
	slices.SortFunc(list, func(a, b Circuit) int {
		return cmp.Or(cmp.Compare(a.Worker, b.Worker), cmp.Compare(a.Leg, b.Leg))
	})
	return list
}

// Forget drops what is known of a worker that has left the roster.
func (b *Breakers) Forget(worker string) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, leg := range []Leg{Prefill, Decode} {
		delete(b.circuits, circuitKey{worker, leg})
		delete(b.tripped, circuitKey{worker, leg})
	}
}

// circuit finds or makes the circuit of a worker's leg. Another incarnation's
// is replaced.
func (b *Breakers) circuit(worker, incarnation string, leg Leg) *circuit {
	key := circuitKey{worker, leg}
	b.mu.RLock()
	c := b.circuits[key]
	b.mu.RUnlock()
	if c != nil && c.incarnation == incarnation {
		return c
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if c := b.circuits[key]; c != nil && c.incarnation == incarnation {
		return c
	}
	c = newCircuit(key, incarnation, b.cfg)
	b.circuits[key] = c
	delete(b.tripped, key)
	return c
}

// inTrouble lists the circuits that are not closed.
func (b *Breakers) inTrouble() []*circuit {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if len(b.tripped) == 0 {
		return nil
	}
	return slices.Collect(maps.Values(b.tripped))
}

// settle takes over what changed in a circuit and tells of it.
func (b *Breakers) settle(c *circuit) {
	changes := c.take()
	if len(changes) == 0 {
		return
	}
	b.mu.Lock()
	if b.circuits[c.key] == c { // neither forgotten nor replaced
		if c.breaker.State() == gobreaker.StateClosed {
			delete(b.tripped, c.key)
		} else {
			b.tripped[c.key] = c
		}
	}
	b.mu.Unlock()
	if b.cfg.OnChange == nil {
		return
	}
	for _, ch := range changes {
		b.cfg.OnChange(ch.to, ch.from)
	}
}
