package placement

import (
	"errors"
	"fmt"
	"slices"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
)

// Ask is what one round of a request asks of the choice of its workers. It must not be changed while it waits.
type Ask struct {
	// Request is what the routers are asked. Exclude lists the workers that the request has tried, and Pin the worker
	// that shall compute the prompt for another; Ahead is set by [Placer.Book].
	router.Request
	// DecodePin names the worker that shall generate, nil for any.
	DecodePin *router.Pin
	// DecodeHashes are Hashes in blocks of the decode pool's size, nil where both pools have blocks of one size.
	DecodeHashes []uint64
	Model        string
	Want         Want
	// Partner is the worker of the other leg where one leg is lacking, nil if it is not known.
	Partner *pools.Worker
	// OneLeg is why the request never has a prefill leg, empty if it may.
	OneLeg string
	// Yield is the length of a prompt at another gateway that goes before the ask, in tokens; 0 for none.
	Yield int

	// Waited: it had to wait for room before.
	Waited bool

	look   router.Look // for the next booking
	claims []router.Claim
}

// Want is which workers an ask lacks.
type Want uint8

const (
	// Any is a prefill and a decode worker, or one worker that stands in for the two.
	Any Want = iota
	// Pair is a prefill and a decode worker, though others could stand in.
	Pair
	// Prefill is another prefill worker: the booking of a decode worker is kept.
	Prefill
	// Decode is another decode worker: the prompt's KV is staged.
	Decode
	// Alone is one worker of role both.
	Alone
)

// bound reports whether the ask takes some workers only.
func (a *Ask) bound() bool {
	return a.Pin != nil || a.DecodePin != nil || len(a.Required) > 0 || a.Adapter != "" || len(a.Exclude) > 0
}

// Lane names the workers that the ask is bound to, for a queue: asks of the same pins, taints, adapters and tried workers that
// lack the same legs hold up each other and no others. It is empty for an ask that takes any worker.
func (a *Ask) Lane() string {
	if !a.bound() {
		if a.Want == Decode {
			return "decode" // who waits for one delays no prompt
		}
		return ""
	}
	required, tried := slices.Sorted(slices.Values(a.Required)), slices.Sorted(slices.Values(a.Exclude))
	return fmt.Sprintf("%d %#v %#v %q %q %q", a.Want, a.Pin, a.DecodePin, required, a.Adapter, tried)
}

// pinned is the worker that the ask names for a role, empty for any.
func (a *Ask) pinned(role pools.Role) string {
	if p := a.pin(role); p != nil {
		return p.Worker
	}
	return ""
}

func (a *Ask) pin(role pools.Role) *router.Pin {
	if role == pools.Prefill {
		return a.Pin
	}
	return a.DecodePin
}

// generating is req as the pool whose workers generate is asked. A remote index reports in prefill's blocks.
func (a *Ask) generating(pool *pools.Pool, req router.Request) router.Request {
	req.Pin = a.DecodePin
	if a.DecodeHashes != nil && pool.Role == pools.Decode {
		req.Hashes, req.RemoteOverlap = a.DecodeHashes, nil
	}
	return req
}

// claim notes the legs for which a bound ask has to wait, after err. A leg stays claimed once the ask waits for the
// other one, or two busy legs would take turns at starving it.
func (a *Ask) claim(generates pools.Role, err error) {
	roles := []pools.Role{pools.Prefill, generates}
	if pool, ok := errors.AsType[*router.PoolError](err); ok {
		roles = []pools.Role{pool.Role}
	}
	for _, role := range roles {
		if !slices.ContainsFunc(a.claims, func(c router.Claim) bool { return c.Role == role }) {
			a.claims = append(a.claims, router.Claim{Role: role, Pin: a.pin(role), Required: a.Required, Adapter: a.Adapter, Exclude: a.Exclude})
		}
	}
}

// claimed is what the asks wait for.
func claimed(asks []*Ask) []router.Claim {
	var all []router.Claim
	for _, a := range asks {
		all = append(all, a.claims...)
	}
	return all
}
