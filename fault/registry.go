package fault

import (
	"cmp"
	"context"
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/pools"
)

// Registered is a fault that a scenario can name. It has one of call and answer, which keep the promises of
// [http1.Transport]: their error is an *http1.Error, the context ends them, and closing their stream closes the
// worker's.
type Registered struct {
	Name string // in a scenario, and of its file: fault_NAME.go
	Help string // one line about what happens

	legs []pools.Role // the calls that it can befall; nil means all
	uses []string     // the rule's fields that shape it; a scenario that sets others is refused

	call   func(c *injected) (http1.Stream, error)                 // takes the transport's place
	answer func(c *injected, s http1.Stream) (http1.Stream, error) // changes the worker's answer
}

// injected is one call that a rule hits.
type injected struct {
	ctx  context.Context
	leg  http1.Leg
	next http1.Transport
	rule *Rule
	rng  *rand.Rand // the call's own: the same seed and call draw the same numbers
}

func (c *injected) pass() (http1.Stream, error) { return c.next.Call(c.ctx, c.leg) }

// broken is the error of the call where it fails.
func (c *injected) broken(op http1.Op, err error) error {
	return &http1.Error{Worker: c.leg.Worker, Op: op, Err: err}
}

// on lets c go wrong.
func (r *Registered) on(c *injected) (http1.Stream, error) {
	if r.call != nil {
		return r.call(c)
	}
	s, err := c.pass()
	if err != nil {
		return nil, err
	}
	return r.answer(c, s)
}

// befalls reports whether the fault can happen to calls of that purpose.
func (r *Registered) befalls(purpose string) bool {
	return r.legs == nil || slices.Contains(r.legs, pools.Role(purpose))
}

var faults = map[string]Registered{}

// register makes a fault known under its name. It is called from init functions, and panics when the name is taken.
func register(r Registered) {
	if _, taken := faults[r.Name]; taken {
		panic("fault: " + r.Name + " is registered twice")
	}
	faults[r.Name] = r
}

// Faults lists the registered faults by name.
func Faults() []Registered {
	return slices.SortedFunc(maps.Values(faults), func(a, b Registered) int { return cmp.Compare(a.Name, b.Name) })
}
