package handoff

import (
	"slices"
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
)

// generators is the pool whose workers generate r's answer: decode's, or that of
// workers that serve alone where one of them is pinned, and where they could serve r
// now and no pair could.
func (f *Flow) generators(r *request) *pools.Pool {
	model := r.call.Request.Model
	decodes, boths := f.rooms.Decode.Pool(model, pools.Decode), f.rooms.Decode.Pool(model, pools.Both)
	switch now := time.Now(); {
	case len(boths.Members) == 0:
		return decodes
	case r.pins.alone, len(decodes.Members) == 0:
		return boths
	case r.pins.decode.Worker != "" || f.pairs(r, decodes, now):
		return decodes
	case f.takes(r, f.rooms.Decode.Router(model, pools.Both), fault.Decode, boths, now):
		return boths
	}
	return decodes
}

// pairs reports whether a pair of workers could serve r now, or a decode worker where
// one leg is all that r needs or lacks.
func (f *Flow) pairs(r *request, decodes *pools.Pool, now time.Time) bool {
	model := r.call.Request.Model
	if r.d == nil && !f.takes(r, f.rooms.Decode.Router(model, pools.Decode), fault.Decode, decodes, now) {
		return false
	}
	return f.cfg.DecodeFallback || r.p != nil || r.kv != nil || r.oneLeg() != "" || r.pins.prefill.Worker != "" ||
		f.takes(r, f.rooms.Prefill.Router(model), fault.Prefill, f.rooms.Prefill.Pool(model), now)
}

// takes reports whether a worker of pool takes requests now and could serve that leg
// of r: it has not failed r, and its circuit is closed.
func (f *Flow) takes(r *request, in *router.Router, leg fault.Leg, pool *pools.Pool, now time.Time) bool {
	blocked, req := f.rooms.Breakers.Blocked(leg), f.legQuery(r, leg)
	return slices.ContainsFunc(pool.Members, func(m pools.Member) bool {
		return m.Eligible(now) && !slices.Contains(r.tried, m.Worker.ID) && !slices.Contains(blocked, m.Worker.ID) && in.Suits(m.Worker, &req)
	})
}

// legQuery is what the router of one leg is asked for r.
func (f *Flow) legQuery(r *request, leg fault.Leg) router.Request {
	req := f.routingQuery(r, nil)
	if leg == fault.Decode {
		req.Pin = req.DecodePin
	}
	return req
}

// computers is the pool whose workers compute r's prompt, and its router.
func (f *Flow) computers(r *request) (*router.Router, *pools.Pool) {
	model := r.call.Request.Model
	if p := f.rooms.Prefill.Pool(model); len(p.Members) > 0 && f.generators(r).Role != pools.Both {
		return f.rooms.Prefill.Router(model), p
	}
	return f.rooms.Decode.Router(model, pools.Both), f.rooms.Decode.Pool(model, pools.Both)
}
