package simulate

import (
	"fmt"
	"slices"
	"strings"

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
	return fmt.Sprintf("%s %+v %v %v %+v %v %v %v %v %v %+v", v.asked(), v.fleet, p.Fleet.EventDelay, p.Fleet.EventLoss, v.replicas,
		p.Router.ForecastScale, p.Router.Learns, p.Router.UnknownPrompts, p.Queue.Limit, p.Queue.Timeout, classes)
}

// Margin is how a figure of an arm in mode auto differs from that of another arm with the same workload, limits and
// workers.
type Margin struct {
	Arm     string  `json:"arm"`
	Against string  `json:"against"`
	Best    bool    `json:"best"` // of all other arms by this metric; otherwise the first of mode kv
	Metric  string  `json:"metric"`
	Own     Stat    `json:"own"`
	Other   Stat    `json:"other"`
	Better  float64 `json:"better"` // a share of the other's figure; negative where auto is worse
	Sure    bool    `json:"sure"`   // the runs distinguish the two
}

// margined are the metrics that arms in mode auto are compared by.
func (r *Report) margined() []string {
	if r.Capacity != nil { // other figures are each of a load of its own
		return []string{"capacity"}
	}
	return []string{"goodput", "ttft_s.mean", "hit_rate", "itl_ms.mean", "ttft_s.p99"}
}

// lessIsBetter reports whether a lower figure is the better one.
func lessIsBetter(metric string) bool {
	return strings.HasPrefix(metric, "ttft_s") || strings.HasPrefix(metric, "itl_ms")
}

// Margins compares each arm in mode auto with the first one in mode kv that has the same workload, limits and
// workers; and with the best of all of those by each metric.
func (r *Report) Margins() (all []Margin) {
	for i := range r.Arms {
		a := &r.Arms[i]
		if a.Mode != automatic {
			continue
		}
		var others []*ArmReport
		for k := range r.Arms {
			if b := &r.Arms[k]; b.under == a.under && b.Mode != automatic {
				others = append(others, b)
			}
		}
		kv := slices.IndexFunc(others, func(b *ArmReport) bool { return b.Mode == "kv" })
		for _, m := range r.margined() {
			if kv >= 0 {
				all = appendMargin(all, a, others[kv], m, false)
			}
			if best := bestBy(others, m); best != nil {
				all = appendMargin(all, a, best, m, true)
			}
		}
	}
	return all
}

// bestBy is the arm of the best figure, nil where none has one.
func bestBy(arms []*ArmReport, metric string) (best *ArmReport) {
	for _, b := range arms {
		s, ok := b.Stats[metric]
		if ok && (best == nil || s.Mean != best.Stats[metric].Mean && (s.Mean < best.Stats[metric].Mean) == lessIsBetter(metric)) {
			best = b
		}
	}
	return best
}

func appendMargin(all []Margin, a, b *ArmReport, metric string, best bool) []Margin {
	own, ok := a.Stats[metric]
	other, has := b.Stats[metric]
	if !ok || !has || other.Mean == 0 {
		return all
	}
	better := own.Mean/other.Mean - 1
	if lessIsBetter(metric) {
		better = -better
	}
	return append(all, Margin{Arm: a.Name, Against: b.Name, Best: best, Metric: metric, Own: own, Other: other, Better: better,
		Sure: differ(a, b, metric)})
}
