package simulate

import (
	"fmt"
	"slices"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router"
)

// automatic is the mode whose arms are compared with all others.
const automatic = "auto"

// prefiller is the role whose router chooses where prompts are computed.
func prefiller(has func(pools.Role) bool) pools.Role {
	for _, role := range []pools.Role{pools.Prefill, pools.Both} {
		if has(role) {
			return role
		}
	}
	return pools.Decode
}

// mode is the configured mode by which prompts are placed.
func (v *Variant) mode() string {
	return v.routers[prefiller(func(role pools.Role) bool {
		return slices.ContainsFunc(v.fleet, func(g Group) bool { return g.Role == role && g.Count > 0 })
	})].Mode
}

// chosen is the mode by which the last prompts were placed.
func (r *run) chosen() router.Mode {
	of := map[pools.Role]*pools.Pool{pools.Prefill: r.fleet.Prefill, pools.Both: r.fleet.Both, pools.Decode: r.fleet.Decode}
	role := prefiller(func(role pools.Role) bool { return len(of[role].Members) > 0 })
	return r.gateways[0].routers.For(Model, role).Mode(of[role])
}

// under names all that a router has no part in: arms that share it differ in how they schedule alone.
func (v *Variant) under() string {
	p := &v.plan
	var classes queue.Classes
	if p.Queue.Classes != nil {
		classes = *p.Queue.Classes
	}
	return fmt.Sprintf("%s %+v %v %v %+v %v %v %v %v %v %+v %+v", v.asked(), v.fleet, p.Fleet.EventDelay, p.Fleet.EventLoss, v.replicas,
		p.Router.ForecastScale, p.Router.Learns, p.Router.UnknownPrompts, p.Queue.Limit, p.Queue.Timeout, classes, p.Planner)
}
