package placement

import (
	"errors"
	"fmt"
	"slices"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
)

// Ask is one round's query for workers. It must not change while it waits.
type Ask struct {
	// Request is the query to the routers. Exclude lists the workers that the request has tried, and Pin names the prefill
	// worker; [Placer.Book] sets Ahead.
	router.Request
	// DecodePin names the worker that generates, nil for any.
	DecodePin *router.Pin
	// DecodeHashes are Hashes in the decode pool's block size, nil if it is the same.
	DecodeHashes []uint64
	Model        string
	Want         Want
	// Partner is the worker of the other leg if one leg is lacking, nil if unknown.
	Partner *pools.Worker
	// OneLeg is why the request never has a prefill leg, empty if it may.
	OneLeg string
	// AnyRole: nothing is computed, so that even a worker that needs a partner can serve it alone.
	AnyRole bool
	// Yield is the length in tokens of a prompt at another gateway that goes first; 0 for none.
	Yield int

	// Waited reports that it had to wait for room.
	Waited bool

	look   router.Look // for the next booking
	claims []router.Claim
}

// Want names the workers that an ask lacks.
type Want uint8

const (
	// Any is a prefill and a decode worker, or one worker for both legs.
	Any Want = iota
	// Pair is a prefill and a decode worker only.
	Pair
	// Prefill is another prefill worker: the booking of a decode worker is kept.
	Prefill
	// Decode is another decode worker: the prompt's KV is staged.
	Decode
	// Alone is one worker of role both.
	Alone
)

// bound reports whether the ask is limited to some workers.
func (a *Ask) bound() bool {
	return a.Pin != nil || a.DecodePin != nil || len(a.Required) > 0 || a.Adapter != "" || len(a.Exclude) > 0
}

// Lane names the workers that the ask is bound to, for a queue: asks with the same pins, taints, adapters and tried workers
// that lack the same legs block only each other. It is empty for an ask that takes any worker.
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

// pinned returns the worker that the ask names for a role, empty for any.
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

// generating returns req for the pool whose workers generate. A remote index reports in prefill's blocks.
func (a *Ask) generating(pool *pools.Pool, req router.Request) router.Request {
	req.Pin = a.DecodePin
	if a.DecodeHashes != nil && pool.Role == pools.Decode {
		req.Hashes, req.RemoteOverlap = a.DecodeHashes, nil
	}
	return req
}

// claim records the legs that a bound ask waits for, after err. A leg stays claimed while the ask waits for the other
// one, or two busy legs would starve it in turns.
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

func claimed(asks []*Ask) []router.Claim {
	var all []router.Claim
	for _, a := range asks {
		all = append(all, a.claims...)
	}
	return all
}
