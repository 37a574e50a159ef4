package fault

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"
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
	// try. Default 5 s. A trial that says nothing has its worker to itself for a
	// tenth of OpenFor, the next for twice as long, and so on up to OpenFor.
	OpenFor time.Duration
	// OnChange is told of every change, outside any lock; nil for nobody. Of
	// changes that happen at the same moment the order is not kept.
	OnChange func(c Circuit, from State)
}

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
//   - A half-open one lets one call through, the trial, and no other, not even
//     where every other circuit is open: the others take another worker, or wait
//     for the trial's end, which is the first sign of an answer or the failure. A
//     trial that says nothing about the worker, as when its client leaves, makes
//     place for another; one that fails opens the circuit for another OpenFor. So
//     a worker that stays dead costs one call in OpenFor.
//   - A trial that is silent does not keep the others off for as long as it lasts:
//     an answer that is not streamed says nothing before its end. Another trial
//     may begin after a tenth of OpenFor, the next after twice that, and so on up
//     to OpenFor. The first sign of life of any closes the circuit.
//
// Allow gives the leave, or the trial, to one of any number that ask at once.
// It is to be asked where the worker is booked and not where it is called, so
// that of many requests that choose at once only one has chosen the trial.
type Breakers struct {
	cfg    BreakerConfig
	onRoom func() // nil for none; set before the first call

	mu       sync.RWMutex
	circuits map[circuitKey]*guarded
	tripped  map[circuitKey]*guarded // those that are not closed, of circuits
}

// guarded is a circuit that several goroutines ask.
type guarded struct {
	mu sync.Mutex
	circuit
}

type circuitKey struct {
	worker string
	leg    Leg
}

// NewBreakers makes breakers without circuits. Values of cfg that Validate
// refuses take their defaults.
func NewBreakers(cfg BreakerConfig) *Breakers {
	return &Breakers{cfg: cfg.orDefault(), circuits: map[circuitKey]*guarded{}, tripped: map[circuitKey]*guarded{}}
}

// OnRoom has f called, outside any lock, when time alone has made place at a
// worker: its open circuit half-opens, or its trial was silent for long enough. All
// else that makes place is an end that done reports. It is set before the first
// call; f must not wait.
func (b *Breakers) OnRoom(f func()) {
	if b != nil {
		b.onRoom = f
	}
}

// Allow asks whether a worker may be called. Its error is ErrCircuitOpen. When
// it is nil, done must be called with what became of the call. It may be called
// twice: with None at the first sign of an answer, so that a long stream does not
// keep a circuit half-open, and with how it ended after all. A failure then takes
// the sign back: it ends no row of failures. Further calls of done change nothing.
//
// None is a success. A class that does not blame the worker, as a client's
// leaving, counts neither way.
func (b *Breakers) Allow(worker, incarnation string, leg Leg) (done func(Class), err error) {
	if b == nil {
		return func(Class) {}, nil
	}
	c := b.circuit(worker, incarnation, leg)
	now := time.Now()
	c.mu.Lock()
	k, ok := c.allow(now)
	trial, grace := ok && k.trial, c.alone.Sub(now)
	c.mu.Unlock()
	b.settle(c)
	if !ok {
		return nil, ErrCircuitOpen
	}
	if trial {
		time.AfterFunc(grace, b.room)
	}
	return func(class Class) {
		c.mu.Lock()
		c.report(k, class)
		c.mu.Unlock()
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
	return b.view(c).State
}

// Blocked lists the workers that Allow would refuse for that leg now, in
// order: whoever chooses a worker leaves them out. It costs next to nothing
// while every circuit is closed.
func (b *Breakers) Blocked(leg Leg) []string { return b.which(leg, (*circuit).blocked) }

// OnTrial lists the workers, in order, whose half-open circuit for that leg has
// given its trial away: not to be asked by anyone before that has ended, or has
// had the worker to itself for long enough.
func (b *Breakers) OnTrial(leg Leg) []string { return b.which(leg, (*circuit).onTrial) }

// which lists the workers of which something is true.
func (b *Breakers) which(leg Leg, is func(c *circuit, now time.Time) bool) []string {
	if b == nil {
		return nil
	}
	var list []string
	for _, c := range b.inTrouble() {
		if c.key.leg != leg {
			continue
		}
		c.mu.Lock()
		yes := is(&c.circuit, time.Now())
		c.mu.Unlock()
		if yes {
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
		list = append(list, b.view(c))
	}
	slices.SortFunc(list, func(a, b Circuit) int {
		return cmp.Or(cmp.Compare(a.Worker, b.Worker), cmp.Compare(a.Leg, b.Leg))
	})
	return list
}

// view is a circuit as it is now.
func (b *Breakers) view(c *guarded) Circuit {
	c.mu.Lock()
	is := c.circuit.view(c.look())
	c.mu.Unlock()
	b.settle(c)
	return is
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
func (b *Breakers) circuit(worker, incarnation string, leg Leg) *guarded {
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
	c = &guarded{circuit: newCircuit(key, incarnation, &b.cfg)}
	c.start()
	b.circuits[key] = c
	delete(b.tripped, key)
	return c
}

// inTrouble lists the circuits that are not closed.
func (b *Breakers) inTrouble() []*guarded {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if len(b.tripped) == 0 {
		return nil
	}
	return slices.Collect(maps.Values(b.tripped))
}

// settle takes over what changed in a circuit and reports it.
func (b *Breakers) settle(c *guarded) {
	c.mu.Lock()
	changes := c.changes
	c.changes = nil
	c.mu.Unlock()
	if len(changes) == 0 {
		return
	}
	b.mu.Lock()
	if b.circuits[c.key] == c { // neither forgotten nor replaced
		c.mu.Lock()
		if c.look() == Closed {
			delete(b.tripped, c.key)
		} else {
			b.tripped[c.key] = c
		}
		c.mu.Unlock()
	}
	b.mu.Unlock()
	for _, ch := range changes {
		if ch.to.State == Open {
			time.AfterFunc(b.cfg.OpenFor+1, func() {
				b.view(c) // which half-opens it
				b.room()
			})
		}
		if b.cfg.OnChange != nil {
			b.cfg.OnChange(ch.to, ch.from)
		}
	}
}

// room says that time has made place at a worker.
func (b *Breakers) room() {
	if b.onRoom != nil {
		b.onRoom()
	}
}
