package openai

import (
	"math"
	"slices"
	"strings"
	"time"
)

// Nvext is the request's nvext object: hints to the gateway, with the names Dynamo gave them. Engines never see it.
// Pointers are nil where a hint is absent or null.
type Nvext struct {
	// ExtraFields names the fields of the answer's own nvext.
	ExtraFields []string
	// Annotations are requests for more than the answer.
	Annotations []string

	// Priority is agent_hints.priority; negative ones count as 0 when they reach a queue.
	Priority *int32
	// StrictPriority is agent_hints.strict_priority.
	StrictPriority *uint32
	// SessionID names the conversation that the request belongs to.
	SessionID string
	// OSL is agent_hints.osl, the answer's expected length in tokens.
	OSL *uint32
	// SpeculativePrefill is agent_hints.speculative_prefill: the next turn's prompt may be computed ahead. Chats only.
	SpeculativePrefill bool
	// TTFTTarget is router.ttft_target, the time to first token that the request is to have; 0 is none.
	TTFTTarget time.Duration

	// BackendInstanceID, DecodeWorkerID and PrefillWorkerID pin workers, empty where absent. Worker ids are strings; an
	// integer means its decimal text.
	BackendInstanceID, DecodeWorkerID, PrefillWorkerID string
	// DPRank and PrefillDPRank pin data-parallel ranks.
	DPRank, PrefillDPRank *uint32
	// RequiredTaints and PreferredTaints are routing_constraints'; the latter with their weights, 1 in a plain array.
	RequiredTaints  []string
	PreferredTaints map[string]float64
	// Override is router_config_override, nil where absent.
	Override *RouterOverride

	// CacheSalt separates this request's cached prefixes from others'.
	CacheSalt string
}

// Wants reports whether the client requested the extra field name.
func (x *Nvext) Wants(name string) bool { return slices.Contains(x.ExtraFields, name) }

// extraFields are the names that extra_fields may hold. Answers carry the first ones, answered in number. The others are
// Dynamo's: its clients are not refused, and the answer has no such field.
var extraFields = []string{"worker_id", "timing", "routing", "stop_reason", "routed_experts", "engine_data"}

const answered = 3

var (
	nvextFields = newFieldSet(true, []field{
		{"nvext.extra_fields", (*scan).extraFields},
		{"nvext.annotations", (*scan).annotations},
		{"nvext.agent_hints", func(s *scan) bool { return s.object(hintFields) }},
		{"nvext.backend_instance_id", func(s *scan) bool { return s.workerID(&s.req.Nvext.BackendInstanceID) }},
		{"nvext.decode_worker_id", func(s *scan) bool { return s.workerID(&s.req.Nvext.DecodeWorkerID) }},
		{"nvext.prefill_worker_id", func(s *scan) bool { return s.workerID(&s.req.Nvext.PrefillWorkerID) }},
		{"nvext.dp_rank", func(s *scan) bool { return s.uint32(&s.req.Nvext.DPRank) }},
		{"nvext.prefill_dp_rank", func(s *scan) bool { return s.uint32(&s.req.Nvext.PrefillDPRank) }},
		{"nvext.routing_constraints", func(s *scan) bool { return s.object(constraintFields) }},
		{"nvext.router_config_override", (*scan).override},
		{"nvext.router", func(s *scan) bool { return s.object(targetFields) }},
		{"nvext.session_id", func(s *scan) bool { return s.filled(&s.req.Nvext.SessionID) }},
		{"nvext.cache_salt", func(s *scan) bool { return s.filled(&s.req.Nvext.CacheSalt) }},
		{"nvext.token_data", func(s *scan) bool { return s.ids(new([]uint32)) && s.unsupported("send the token ids as prompt") }},
		{"nvext.use_raw_prompt", func(s *scan) bool { return s.unless("send the rendered prompt to /v1/completions") }},
		{"nvext.greed_sampling", func(s *scan) bool { return s.unless("send temperature 0") }},
		{"nvext.max_thinking_tokens", func(s *scan) bool {
			return s.uint32(new(*uint32)) && s.unsupported("send thinking_token_budget, which vLLM and TensorRT-LLM take")
		}},
		{"nvext.metadata_upload", func(s *scan) bool { return s.unsupported("answers hold all that engines report") }},
		{"nvext.session_control", func(s *scan) bool { return s.unsupported("send nvext.session_id") }},
		{"nvext.cache_control", func(s *scan) bool { return s.unsupported("engines keep cached blocks by their own rules") }},
		{"nvext.request_timestamp_ms", (*scan).hint},
	})
	hintFields = newFieldSet(true, []field{
		{"nvext.agent_hints.priority", (*scan).priority},
		{"nvext.agent_hints.strict_priority", func(s *scan) bool { return s.uint32(&s.req.Nvext.StrictPriority) }},
		{"nvext.agent_hints.osl", func(s *scan) bool { return s.uint32(&s.req.Nvext.OSL) }},
		{"nvext.agent_hints.latency_sensitivity", (*scan).hint},
		{"nvext.agent_hints.speculative_prefill", (*scan).speculative},
	})
	constraintFields = newFieldSet(true, []field{
		{"nvext.routing_constraints.required_taints", func(s *scan) bool { return s.strings(&s.req.Nvext.RequiredTaints) }},
		{"nvext.routing_constraints.preferred_taints", (*scan).preferredTaints},
	})
	targetFields = newFieldSet(true, []field{
		{"nvext.router.ttft_target", (*scan).target},
		{"nvext.router.itl_target", (*scan).hint},
	})
)

// nvext reads the whole object.
func (s *scan) nvext() bool {
	if !s.object(nvextFields) {
		return false
	}
	if e := s.req.Nvext.checkTaints(); e != nil {
		return s.refuse(e)
	}
	return true
}

func (s *scan) extraFields() bool {
	names := &s.req.Nvext.ExtraFields
	if !s.strings(names) {
		return false
	}
	for _, name := range *names {
		at := slices.Index(extraFields, name)
		if at < 0 {
			return s.refuse(BadRequest(s.param, "%s may hold %s; %q is none of them",
				s.param, strings.Join(extraFields, ", "), shown([]byte(name))))
		}
		s.ignoreIf(at >= answered)
	}
	return true
}

func (s *scan) annotations() bool {
	ok := s.strings(&s.req.Nvext.Annotations)
	for _, a := range s.req.Nvext.Annotations {
		s.ignoreIf(!queries(a))
	}
	return ok
}

func (s *scan) priority() bool {
	v, ok := s.int(math.MinInt32, math.MaxInt32)
	p := int32(v)
	s.req.Nvext.Priority = &p
	return ok
}

// uint32 reads an integer from 0 to 2^32−1.
func (s *scan) uint32(dst **uint32) bool {
	v, ok := s.int(0, math.MaxUint32)
	u := uint32(v)
	*dst = &u
	return ok
}

// longestTarget bounds a target; longer ones are equivalent.
const longestTarget = 24 * time.Hour

// target reads milliseconds.
func (s *scan) target() bool {
	ms, ok := s.float(0, math.Inf(1))
	s.req.Nvext.TTFTTarget = time.Duration(min(ms, float64(longestTarget.Milliseconds())) * float64(time.Millisecond))
	return ok
}

// hint checks a number of Dynamo's that has no effect here. The answer is the same without it.
func (s *scan) hint() bool {
	v, ok := s.float(0, math.Inf(1))
	s.ignoreIf(v > 0)
	return ok
}

// speculative reads whether to compute the next turn's prompt ahead.
func (s *scan) speculative() bool {
	ahead := &s.req.Nvext.SpeculativePrefill
	ok := s.bool(ahead)
	if s.req.Endpoint != Chat {
		s.ignoreIf(*ahead)
		*ahead = false
	}
	return ok
}

// ignoreIf notes that the field at hand has no effect.
func (s *scan) ignoreIf(without bool) {
	if without && !slices.Contains(s.req.Ignored, s.param) {
		s.req.Ignored = append(s.req.Ignored, s.param)
	}
}

// unsupported refuses a field that would change the answer, if the gateway had it.
func (s *scan) unsupported(instead string) bool {
	return s.refuse(BadRequest(s.param, "%s is not supported: %s", s.param, instead))
}

// unless reads false, and refuses true.
func (s *scan) unless(instead string) bool {
	var on bool
	return s.bool(&on) && (!on || s.unsupported(instead))
}

// workerID reads a worker's id: a string, or an integer in decimal. Dynamo's ids are 63-bit numbers, so it is never
// rounded.
func (s *scan) workerID(dst *string) bool {
	const want = "a worker id: a string, or a whole number that is not negative"
	b := s.peek()
	if b == '"' {
		return s.filled(dst)
	}
	if b-'0' > 9 {
		return s.wrong(want)
	}
	n, integer, ok := s.number()
	if !ok {
		return false
	}
	if !integer || n.end-n.start > 20 {
		return s.wrong(want)
	}
	*dst = string(s.data[n.start:n.end])
	return true
}

// preferredTaints reads an object of weights, or an array of names that weigh 1 each.
func (s *scan) preferredTaints() bool {
	taints := make(map[string]float64)
	s.req.Nvext.PreferredTaints = taints
	if s.peek() == '[' {
		var names []string
		if !s.strings(&names) {
			return false
		}
		for _, name := range names {
			taints[name] = 1
		}
		return true
	}
	if s.peek() != '{' {
		return s.wrong("an object of weights or an array of strings")
	}
	m := s.members()
	for m.next() {
		name := m.key.of(s.data)
		if _, ok := taints[string(name)]; ok {
			return s.twice(s.param, name)
		}
		v, ok := s.float(-math.MaxFloat64, math.MaxFloat64)
		if !ok {
			return false
		}
		taints[string(name)] = v
	}
	return s.ok()
}
