package fault

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/pools"
)

// ErrCircuitOpen is the error of a call that was not made because its worker's
// circuit is open. Classify calls it Refused: the worker has seen nothing.
var ErrCircuitOpen = errors.New("worker failed too often: its circuit is open")

// BreakerConfig is when a worker's circuit opens, and for how long. The zero value of a field takes its default.
type BreakerConfig struct {
	// Consecutive is the number of failures in a row that opens a circuit, over any time.
	Consecutive int `default:"3" range:"0.."`
	// Ratio is the share of failed calls within Window that opens it once MinCalls have ended.
	Ratio float64 `default:"0.5" range:"0..1"`
	// MinCalls is the number of calls within Window that Ratio needs.
	MinCalls int `default:"20" range:"0.."`
	// Window is the time that Ratio looks back, in steps of a tenth.
	Window time.Duration `default:"10s" range:"0s.."`
	// OpenFor is the time for which an open circuit lets no call through; then it half-opens. A silent trial holds its
	// worker alone for a tenth of OpenFor, the next one for twice as long, and so on up to OpenFor.
	OpenFor time.Duration `default:"5s" range:"0s.."`
	// OnChange, unless nil, is called with every change, outside any lock. Changes of the same moment may be reported in
	// any order.
	OnChange func(c Circuit, from State)
}

// Validate returns every setting that is out of range.
func (c BreakerConfig) Validate() error { return setting.Check(&c) }

// State is a circuit's state.
type State string

// The states of a circuit.
const (
	Closed   State = "closed"    // calls go through
	HalfOpen State = "half_open" // one call tries; its end decides
	Open     State = "open"      // no call goes through
)

// Circuit is the state of one worker's leg, or of an adapter on it.
type Circuit struct {
	Worker string `json:"worker"`
	// Adapter is the one that the state is about, empty for the worker itself.
	Adapter string `json:"adapter,omitempty"`
	// Incarnation is the process that the state is about.
	Incarnation string     `json:"incarnation"`
	Leg         pools.Role `json:"leg"`
	State       State      `json:"state"`
	// Failures is how many calls in a row have failed, and Last the class of the latest failure.
	Failures int   `json:"failures"`
	Last     Class `json:"-"`
	// Opened counts how often the circuit has opened.
	Opened int `json:"opened"`
}

// Breakers are the circuits of all workers: one for each worker, leg and incarnation, so that a worker that comes
// back as another process starts with a closed one. They read the wall clock. A nil *Breakers lets every call
// through. Breakers are safe for concurrent use.
//
// A call for an adapter has a circuit of its own, too. So a broken adapter takes no worker from the model and its
// other adapters: of its failures only [Refused] counts for the worker. It goes nowhere where the worker's own
// circuit is open, and is no trial of it.
//
// The states:
//
//   - A closed circuit lets every call through.
//   - An open one lets no call through for OpenFor. When the circuits of all workers
//     of a pool are open, the caller may call those workers without a permit: a pool
//     that answers some requests is better than one that gets none. The results of
//     such calls are not counted.
//   - A half-open one lets one call through, the trial, even when every other circuit
//     is open: other requests take another worker or wait for the trial's result, which
//     is the first sign of an answer or the failure. A trial with neither, as when its
//     client leaves, makes room for another trial. A failed trial opens the circuit for
//     another OpenFor, so a worker that stays dead costs one call each OpenFor.
//   - A silent trial does not block its worker until it ends: an answer that is not
//     streamed gives no sign before its end. A second trial may begin after a tenth of
//     OpenFor, the next after twice that, and so on up to OpenFor. The first sign of
//     life of any trial closes the circuit.
//
// Acquire the permit where a worker is booked, not where it is called: of many
// requests that choose at the same time, only one may become the trial.
type Breakers struct {
	cfg         BreakerConfig
	onAvailable func() // nil for none; set before the first call

	mu       sync.RWMutex
	circuits map[circuitKey]*guarded
	tripped  map[circuitKey]map[string]*guarded // of circuits those that are not closed: by leg and adapter, by worker
}

// guarded is a circuit with its lock.
type guarded struct {
	mu sync.Mutex
	circuit
}

type circuitKey struct {
	worker  string
	leg     pools.Role
	adapter string
}

// without is the key of a leg and adapter on every worker.
func (k circuitKey) without() circuitKey { return circuitKey{"", k.leg, k.adapter} }

// NewBreakers makes breakers without circuits. cfg must be valid.
func NewBreakers(cfg BreakerConfig) *Breakers {
	setting.Fill(&cfg)
	return &Breakers{cfg: cfg, circuits: map[circuitKey]*guarded{}, tripped: map[circuitKey]map[string]*guarded{}}
}

// OnAvailable sets the function that is called, outside any lock, when a worker becomes available by time alone: its
// open circuit half-opens, or its trial has been silent for long enough. Every other way to become available is a
// call's end, which done reports. Set it before the first call; f must not block.
func (b *Breakers) OnAvailable(f func()) {
	if b != nil {
		b.onAvailable = f
	}
}

// Acquire takes a permit to call a worker for an adapter, empty for none, or fails with ErrCircuitOpen. failOpen
// permits the call although the circuit is open, unless it is half-open; the result of such a call is not counted.
//
// The holder must call done with the call's result: nil, a [Class], an [*Error] or an error for [Classify]. It may
// call done twice: with nil at the first sign of an answer, so that a long stream does not keep a circuit half-open,
// and with the call's end. A failure then takes the sign back: the sign interrupts no row of failures. Further calls
// of done change nothing. A class that does not blame the worker, as when a client leaves, counts neither way.
func (b *Breakers) Acquire(worker, incarnation string, leg pools.Role, adapter string, failOpen bool) (done func(error), err error) {
	key := circuitKey{worker, leg, adapter}
	switch {
	case b == nil:
		return uncounted, nil
	case adapter == "":
		return b.acquire(key, incarnation, failOpen)
	}
	whole := uncounted
	if b.State(worker, leg) != HalfOpen {
		if whole, err = b.acquire(circuitKey{worker, leg, ""}, incarnation, failOpen); err != nil {
			return nil, err
		}
	}
	own, err := b.acquire(key, incarnation, failOpen)
	if err != nil {
		whole(ClientGone)
		return nil, err
	}
	return func(err error) {
		class := classOf(err)
		of := ClientGone
		if class == None || class == Refused {
			of = class
		}
		whole(of)
		if class == NotServed { // the roster is about to learn it
			class = ClientGone
		}
		own(class)
	}, nil
}

func (b *Breakers) acquire(key circuitKey, incarnation string, failOpen bool) (done func(error), err error) {
	c := b.circuit(key, incarnation)
	now := time.Now()
	c.mu.Lock()
	k, ok := c.acquire(now)
	trial, grace, changes := ok && k.trial, c.alone.Sub(now), c.news()
	c.mu.Unlock()
	b.report(c, changes)
	switch {
	case !ok && failOpen && b.view(c).State == Open:
		return uncounted, nil
	case !ok:
		return nil, ErrCircuitOpen
	}
	if trial {
		time.AfterFunc(grace, b.available)
	}
	return func(err error) {
		c.mu.Lock()
		c.report(k, classOf(err))
		changes := c.news()
		c.mu.Unlock()
		b.report(c, changes)
	}, nil
}

// Warn records that a worker's circuit opened at another gateway. The circuit here stays as it is, and the worker's
// next failure opens it: one gateway that is cut off must not take a worker from all others.
func (b *Breakers) Warn(worker, incarnation string, leg pools.Role) {
	c := b.circuit(circuitKey{worker, leg, ""}, incarnation)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.row.warn(b.cfg.Consecutive - 1)
}

// uncounted is the done of a call whose result is not counted.
func uncounted(error) {}

// State is the state of a worker's circuit for a leg, Closed for an unknown worker.
func (b *Breakers) State(worker string, leg pools.Role) State {
	if b == nil {
		return Closed
	}
	b.mu.RLock()
	c := b.circuits[circuitKey{worker, leg, ""}]
	b.mu.RUnlock()
	if c == nil {
		return Closed
	}
	return b.view(c).State
}

// Blocked lists the workers whose permit Acquire would refuse for that leg and adapter now, in order. It costs next to
// nothing while every circuit is closed.
func (b *Breakers) Blocked(leg pools.Role, adapter string) []string {
	list := b.which(circuitKey{"", leg, adapter}, (*circuit).blocked)
	if adapter == "" {
		return list
	}
	list = append(list, b.which(circuitKey{"", leg, ""}, (*circuit).open)...)
	slices.Sort(list)
	return slices.Compact(list)
}

// OnTrial lists the workers, in order, whose half-open circuit for that leg and adapter has a trial under way: no other
// call may go there until the trial ends or has been silent for long enough.
func (b *Breakers) OnTrial(leg pools.Role, adapter string) []string {
	return b.which(circuitKey{"", leg, adapter}, (*circuit).onTrial)
}

// which lists the workers whose circuit of a leg and adapter satisfies is.
func (b *Breakers) which(of circuitKey, is func(c *circuit, now time.Time) bool) []string {
	if b == nil {
		return nil
	}
	var list []string
	for _, c := range b.inTrouble(of) {
		c.mu.Lock()
		yes, changes := is(&c.circuit, time.Now()), c.news()
		c.mu.Unlock()
		if yes {
			list = append(list, c.key.worker)
		}
		b.report(c, changes)
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
		return cmp.Or(cmp.Compare(a.Worker, b.Worker), cmp.Compare(a.Leg, b.Leg), cmp.Compare(a.Adapter, b.Adapter))
	})
	return list
}

// Breaker is the circuit of one callee that is no worker, such as a remote index.
type Breaker struct {
	of   *Breakers
	name string
}

// NewBreaker makes a closed circuit. In OnChange, name is the Worker.
func NewBreaker(name string, cfg BreakerConfig) *Breaker { return &Breaker{NewBreakers(cfg), name} }

// Acquire is as [Breakers.Acquire].
func (b *Breaker) Acquire() (done func(error), err error) {
	return b.of.Acquire(b.name, "", "", "", false)
}

// State is the circuit's state.
func (b *Breaker) State() State { return b.of.State(b.name, "") }

func (b *Breakers) view(c *guarded) Circuit {
	c.mu.Lock()
	is := c.circuit.view(c.look())
	changes := c.news()
	c.mu.Unlock()
	b.report(c, changes)
	return is
}

// Forget drops the circuits that gone reports: of workers that have left the roster, of adapters that were unloaded.
func (b *Breakers) Forget(gone func(worker, adapter string) bool) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for key := range b.circuits {
		if gone(key.worker, key.adapter) {
			delete(b.circuits, key)
			b.close(key)
		}
	}
}

// close takes a circuit out of the tripped ones. The caller holds b.mu.
func (b *Breakers) close(key circuitKey) {
	of := key.without()
	if delete(b.tripped[of], key.worker); len(b.tripped[of]) == 0 {
		delete(b.tripped, of)
	}
}

// circuit finds or makes a circuit. Another incarnation's is replaced.
func (b *Breakers) circuit(key circuitKey, incarnation string) *guarded {
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
	c = &guarded{circuit: circuit{key: key, incarnation: incarnation, cfg: &b.cfg}}
	c.start()
	b.circuits[key] = c
	b.close(key)
	return c
}

// inTrouble lists the circuits of a leg and adapter that are not closed.
func (b *Breakers) inTrouble(of circuitKey) []*guarded {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return slices.Collect(maps.Values(b.tripped[of]))
}

// report reports changes of a circuit and updates the list of tripped ones.
func (b *Breakers) report(c *guarded, changes []change) {
	if len(changes) == 0 {
		return
	}
	b.mu.Lock()
	if b.circuits[c.key] == c { // neither forgotten nor replaced
		c.mu.Lock()
		if c.look() == Closed {
			b.close(c.key)
		} else {
			of := c.key.without()
			if b.tripped[of] == nil {
				b.tripped[of] = map[string]*guarded{}
			}
			b.tripped[of][c.key.worker] = c
		}
		c.mu.Unlock()
	}
	b.mu.Unlock()
	for _, ch := range changes {
		if ch.to.State == Open {
			time.AfterFunc(b.cfg.OpenFor+1, func() {
				b.view(c) // which half-opens it
				b.available()
			})
		}
		if b.cfg.OnChange != nil {
			b.cfg.OnChange(ch.to, ch.from)
		}
	}
}

// available reports that a worker became available by time alone.
func (b *Breakers) available() {
	if b.onAvailable != nil {
		b.onAvailable()
	}
}
