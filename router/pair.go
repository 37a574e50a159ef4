package router

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tandem-pd/tandem/pools"
)

// Pairer picks a prefill and a decode worker together. It is bound to the rules
// of a [Policy].
type Pairer interface {
	// PickPair returns indices into the prefill candidates ps and the decode
	// candidates ds, and sets the costs in why; not ok where it wants none.
	PickPair(req Request, ps, ds []Candidate, link Link, now time.Time, rng *rand.Rand, why *PairWhy) (p, d int, ok bool)
}

// Link predicts how long a number of blocks takes from a prefill worker to a
// decode worker. It is nil where nothing is known about that.
type Link func(p, d *pools.Worker, blocks int) time.Duration

// PairWhy says how the choice of a pair came about, for each leg.
type PairWhy struct {
	Prefill, Decode Why
}

// pairMaker is a registered pairer.
type pairMaker struct {
	help string
	make func(prefill, decode Policy) Pairer
}

// pairers by canonical name; filled by the init functions of pair_*.go, and not
// written later.
var pairers = map[string]pairMaker{}

// RegisterPairer makes a pairer known under a name. It is called from init
// functions, and panics on a name that is taken.
func RegisterPairer(name, help string, make func(prefill, decode Policy) Pairer) {
	name = Canonical(name)
	if _, taken := pairers[name]; taken {
		panic("router: pairer " + name + " is registered twice")
	}
	pairers[name] = pairMaker{help, make}
}

// Pairers lists the registered pairers by name.
func Pairers() []Registered {
	var list []Registered
	for name, m := range pairers {
		list = append(list, Registered{name, m.help})
	}
	slices.SortFunc(list, func(a, b Registered) int { return cmp.Compare(a.Name, b.Name) })
	return list
}

// NewPairer returns the named pairer over the policies of two routers. The error
// is that of a name that is not registered.
func NewPairer(name string, prefill, decode *Router) (Pairer, error) {
	m, ok := pairers[Canonical(name)]
	if !ok {
		return nil, fmt.Errorf("router: pairer %q is none of %s", name, names(Pairers()))
	}
	return m.make(prefill.policy, decode.policy), nil
}
