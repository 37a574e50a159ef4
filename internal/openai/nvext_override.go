package openai

import (
	"math"
	"slices"
	"strings"
)

// RouterOverride is nvext.router_config_override: how the workers of this request alone are weighed. Pointers are nil
// where a field is absent.
type RouterOverride struct {
	OverlapScoreWeight    *float64
	OverlapScoreCredit    *float64
	PrefillLoadScale      *float64
	SharedCacheMultiplier *float64
	RouterTemperature     *float64
	TrackPrefillTokens    *bool
	AssumeKVReuse         *bool
}

// maxWeight bounds a request's weights: far beyond use, and far below the overflow of sums of products.
const maxWeight = 1e6

var overrideFields = newFieldSet(true, []field{
	{"nvext.router_config_override.overlap_score_weight", weight(func(o *RouterOverride) **float64 { return &o.OverlapScoreWeight })},
	{"nvext.router_config_override.overlap_score_credit", weight(func(o *RouterOverride) **float64 { return &o.OverlapScoreCredit })},
	{"nvext.router_config_override.prefill_load_scale", weight(func(o *RouterOverride) **float64 { return &o.PrefillLoadScale })},
	{"nvext.router_config_override.shared_cache_multiplier", weight(func(o *RouterOverride) **float64 { return &o.SharedCacheMultiplier })},
	{"nvext.router_config_override.router_temperature", weight(func(o *RouterOverride) **float64 { return &o.RouterTemperature })},
	{"nvext.router_config_override.track_prefill_tokens", choice(func(o *RouterOverride) **bool { return &o.TrackPrefillTokens })},
	{"nvext.router_config_override.assume_kv_reuse", choice(func(o *RouterOverride) **bool { return &o.AssumeKVReuse })},
})

// override reads the object.
func (s *scan) override() bool {
	s.req.Nvext.Override = new(RouterOverride)
	return s.object(overrideFields)
}

// weight reads a number from 0 to maxWeight.
func weight(of func(*RouterOverride) **float64) reader {
	return func(s *scan) bool {
		v, ok := s.float(0, maxWeight)
		*of(s.req.Nvext.Override) = &v
		return ok
	}
}

// choice reads true or false.
func choice(of func(*RouterOverride) **bool) reader {
	return func(s *scan) bool {
		var v bool
		*of(s.req.Nvext.Override) = &v
		return s.bool(&v)
	}
}

// QueryOnly reports whether the annotation query_instance_id requests the choice of workers instead of an answer.
func (x *Nvext) QueryOnly() bool {
	return slices.ContainsFunc(x.Annotations, queries)
}

// queries reports whether an annotation is query_instance_id, with a value or without.
func queries(annotation string) bool {
	name, _, _ := strings.Cut(annotation, ":")
	return name == "query_instance_id"
}

// checkTaints bounds a request's taints and their weights.
func (x *Nvext) checkTaints() *Error {
	const most = 64
	if len(x.RequiredTaints) > most {
		return BadRequest("nvext.routing_constraints.required_taints",
			"nvext.routing_constraints.required_taints has %d names, the limit is %d", len(x.RequiredTaints), most)
	}
	if len(x.PreferredTaints) > most {
		return BadRequest("nvext.routing_constraints.preferred_taints",
			"nvext.routing_constraints.preferred_taints has %d names, the limit is %d", len(x.PreferredTaints), most)
	}
	for _, w := range x.PreferredTaints {
		if math.Abs(w) > maxWeight {
			return BadRequest("nvext.routing_constraints.preferred_taints",
				"nvext.routing_constraints.preferred_taints has a weight that is not between -%g and %g", maxWeight, maxWeight)
		}
	}
	return nil
}
