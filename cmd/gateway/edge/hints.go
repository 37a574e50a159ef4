package edge

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/valyala/fasthttp"

	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/openai"
)

// headerIgnoredHints lists, in the answer, hints of the request that were lowered or ignored.
const headerIgnoredHints = "X-Tandem-Ignored-Hints"

// Hints is which of a client's hints count, for waiting and for the choice of workers. The zero value is none.
type Hints struct {
	// All allows every hint, of header and body.
	All bool
	// Priority is the highest allowed priority, from 0, if All is false. A strict priority and a policy class need
	// All.
	Priority int32
}

// ParseHints parses client-hints: none, priority<=N or all; auto is none if clients need keys, else all.
func ParseHints(text string, keys bool) (Hints, error) {
	switch bound, ok := strings.CutPrefix(text, "priority<="); {
	case ok:
		if n, err := strconv.ParseUint(bound, 10, 31); err == nil {
			return Hints{Priority: int32(n)}, nil
		}
	case text == "auto":
		return Hints{All: !keys}, nil
	case text == "none":
		return Hints{}, nil
	case text == "all":
		return Hints{All: true}, nil
	}
	return Hints{}, fmt.Errorf("%.64q is none of auto, none, priority<=N with N from 0 to 2147483647, and all", text)
}

// hold applies the setting to a call. Operators' keys may use every hint.
func (s *Server) hold(call *handoff.Call, ctx *fasthttp.RequestCtx) *openai.Error {
	call.IgnoredHints = append(call.IgnoredHints, call.Request.Ignored...)
	if !s.hints.All && !s.keys.Load().admin.Hold(bearer(&ctx.Request.Header)) {
		if e := s.hints.apply(call); e != nil {
			return e
		}
	}
	if len(call.IgnoredHints) > 0 {
		ctx.Response.Header.Set(headerIgnoredHints, strings.Join(call.IgnoredHints, ", "))
	}
	return nil
}

// apply restricts call to the allowed hints. Hints about waiting or expectations are lowered or dropped, and listed
// in call.IgnoredHints. Hints that choose or report workers get 403, because the client would not get what it
// requested.
func (hs Hints) apply(call *handoff.Call) *openai.Error {
	if hs.All {
		return nil
	}
	x := &call.Request.Nvext
	for _, h := range []struct {
		field string
		given bool
	}{
		{handoff.HeaderWorker, call.Pins.Worker != ""},
		{handoff.HeaderPrefill, call.Pins.Prefill != ""},
		{handoff.HeaderRank, call.Pins.Rank != nil},
		{handoff.HeaderPrefillRank, call.Pins.PrefillRank != nil},
		{"nvext.backend_instance_id", x.BackendInstanceID != ""},
		{"nvext.decode_worker_id", x.DecodeWorkerID != ""},
		{"nvext.prefill_worker_id", x.PrefillWorkerID != ""},
		{"nvext.dp_rank", x.DPRank != nil},
		{"nvext.prefill_dp_rank", x.PrefillDPRank != nil},
		{"nvext.routing_constraints.required_taints", len(x.RequiredTaints) > 0},
		{"nvext.routing_constraints.preferred_taints", len(x.PreferredTaints) > 0},
		{"nvext.router_config_override", x.Override != nil},
		{"nvext.annotations", x.QueryOnly()},
		{"nvext.extra_fields", x.Wants("routing")},
	} {
		if h.given {
			return &openai.Error{
				Status: http.StatusForbidden, Code: "hint_forbidden", Param: h.field,
				Message: h.field + ": the gateway's --client-hints does not let clients choose or see workers; an operator's key may",
			}
		}
	}
	ignore := func(field string) { call.IgnoredHints = append(call.IgnoredHints, field) }
	for _, p := range []struct {
		field string
		value *int32
	}{{strings.ToLower(headerPriority), call.Priority}, {"nvext.agent_hints.priority", x.Priority}} {
		if p.value != nil && *p.value > hs.Priority {
			*p.value = hs.Priority
			ignore(p.field)
		}
	}
	if call.PolicyClass != "" {
		call.PolicyClass = ""
		ignore(handoff.HeaderPolicyClass)
	}
	if x.TTFTTarget > 0 {
		x.TTFTTarget = 0
		ignore("nvext.router.ttft_target")
	}
	if x.SpeculativePrefill {
		x.SpeculativePrefill = false
		ignore("nvext.agent_hints.speculative_prefill")
	}
	for _, p := range []struct {
		field string
		value **uint32
	}{
		{strings.ToLower(headerStrictPriority), &call.StrictPriority},
		{"nvext.agent_hints.strict_priority", &x.StrictPriority}, {"nvext.agent_hints.osl", &x.OSL},
	} {
		if v := *p.value; v != nil && *v > 0 {
			*p.value = nil
			ignore(p.field)
		}
	}
	return nil
}
