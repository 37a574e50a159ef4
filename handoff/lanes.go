package handoff

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
)

// lane names what r is bound to, for the queue: requests of the same pins, taints
// and tried workers that lack the same legs hold up each other and no others. It is
// empty for a request that takes any worker.
func (r *request) lane() string {
	x := &r.call.Request.Nvext
	p, d := &r.pins.prefill.Pin, &r.pins.decode.Pin
	if *p == (router.Pin{}) && *d == (router.Pin{}) && len(x.RequiredTaints) == 0 && len(r.tried) == 0 {
		return ""
	}
	lacks := "both"
	switch {
	case r.d != nil:
		lacks = "prefill"
	case r.kv != nil:
		lacks = "decode"
	}
	parts := []string{lacks, p.Worker, rankOf(p), d.Worker, rankOf(d), strconv.Itoa(len(x.RequiredTaints))}
	parts = append(parts, slices.Sorted(slices.Values(x.RequiredTaints))...)
	parts = append(parts, slices.Sorted(slices.Values(r.tried))...)
	return strings.Join(parts, "\x00")
}

// rankOf is the rank that p names, empty for none.
func rankOf(p *router.Pin) string {
	if !p.Ranked {
		return ""
	}
	return strconv.Itoa(p.Rank)
}

// claims is what a request of a lane waits for: the workers of each leg that it had
// to wait for since it was queued. A leg stays claimed once the request waits for
// the other one, or two busy legs would take turns at starving it. Only reserve,
// which the queue never runs twice at once, reads and writes it.
type claims struct{ legs []router.Claim }

// add claims the legs for whose want of room r was not served.
func (c *claims) add(f *Flow, r *request, err error) {
	roles := []pools.Role{pools.Prefill, f.generators(r).Role}
	if pool, ok := errors.AsType[*router.PoolError](err); ok {
		roles = []pools.Role{pool.Role}
	}
	for _, role := range roles {
		if slices.ContainsFunc(c.legs, func(l router.Claim) bool { return l.Role == role }) {
			continue
		}
		pin := &r.pins.decode
		if role == pools.Prefill {
			pin = &r.pins.prefill
		}
		c.legs = append(c.legs, router.Claim{Role: role, Pin: pin.asked(), Required: r.call.Request.Nvext.RequiredTaints, Exclude: r.tried})
	}
}

// claimed is the claims that the queue handed over, for the router.
func claimed(ahead []any) []router.Claim {
	var out []router.Claim
	for _, a := range ahead {
		out = append(out, a.(*claims).legs...)
	}
	return out
}
