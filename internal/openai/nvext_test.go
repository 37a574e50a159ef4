package openai

import (
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// Every nvext field that the seed documents and the reference name works, is reported as one without effect, or is
// refused with what to send instead.
func TestNvextFields(t *testing.T) {
	const (
		works   = "works"
		ignored = "ignored"
	)
	fields := []struct{ path, value, outcome string }{
		{"backend_instance_id", `7`, works}, {"decode_worker_id", `"d"`, works}, {"prefill_worker_id", `"p"`, works},
		{"dp_rank", `1`, works}, {"prefill_dp_rank", `1`, works},
		{"agent_hints.priority", `1`, works}, {"agent_hints.strict_priority", `1`, works}, {"agent_hints.osl", `1`, works},
		{"agent_hints.speculative_prefill", `true`, works}, {"agent_hints.latency_sensitivity", `0.5`, ignored},
		{"routing_constraints.required_taints", `["a"]`, works}, {"routing_constraints.preferred_taints", `{"a":1}`, works},
		{"router.ttft_target", `200`, works}, {"router.itl_target", `20`, ignored},
		{"cache_salt", `"s"`, works}, {"session_id", `"s"`, works},
		{"annotations", `["query_instance_id"]`, works}, {"annotations", `["query_instance_id:"]`, works},
		{"annotations", `["query_instance_id:7"]`, works}, {"annotations", `["formatted_prompt"]`, ignored},
		{"annotations", `["query_instance_id_extra:7"]`, ignored},
		{"extra_fields", `["worker_id"]`, works}, {"extra_fields", `["timing"]`, works}, {"extra_fields", `["routing"]`, works},
		{"extra_fields", `["stop_reason","engine_data"]`, ignored}, {"extra_fields", `["routed_experts"]`, ignored},
		{"request_timestamp_ms", `5`, ignored},
		{"token_data", `[1]`, "send the token ids as prompt"},
		{"use_raw_prompt", `true`, "send the rendered prompt to /v1/completions"},
		{"greed_sampling", `true`, "send temperature 0"},
		{"max_thinking_tokens", `5`, "send thinking_token_budget"},
		{"metadata_upload", `{"url":"http://x"}`, "answers hold all that engines report"},
		{"session_control", `{"session_id":"s","action":"open"}`, "send nvext.session_id"},
		{"cache_control", `{"type":"ephemeral","ttl":"1h"}`, "engines keep cached blocks by their own rules"},
		{"unheard_of", `1`, "is not a known field"},
		// No value is no hint.
		{"agent_hints.speculative_prefill", `false`, works}, {"agent_hints.latency_sensitivity", `0`, works},
		{"session_control", `null`, works}, {"greed_sampling", `false`, works},
	}
	var named []string
	for _, f := range fields {
		value, path := f.value, "nvext."+f.path
		object, member, inner := strings.Cut(f.path, ".")
		if named = append(named, object, member); inner {
			value = `{"` + member + `":` + value + `}`
		}
		r, err := scanBody(Chat, []byte(`{"model":"m","messages":[{"role":"user","content":"x"}],"nvext":{"`+object+`":`+value+`}}`))
		switch e := (*Error)(nil); {
		case f.outcome == works:
			assert.True(t, err == nil && r.Ignored == nil, "%s %s: %v, %v", path, f.value, err, r)
		case f.outcome == ignored:
			assert.True(t, err == nil && slices.Equal(r.Ignored, []string{path}), "%s %s: %v, %v", path, f.value, err, r)
		case !errors.As(err, &e) || e.Param != path || !strings.Contains(e.Message, f.outcome):
			t.Errorf("%s %s: %v", path, f.value, err)
		}
		if strings.HasPrefix(f.value, `["query_instance_id`) && err == nil {
			assert.Equal(t, f.outcome == works, r.Nvext.QueryOnly(), f.value)
		}
	}

	raw, err := os.ReadFile("../../../shared/reference/router-semantics.md")
	if err != nil {
		t.Log("the reference is absent: its table of fields was not compared")
		return
	}
	_, table, found := strings.Cut(string(raw), "| `nvext` request (")
	table, _, _ = strings.Cut(table, "\n\n")
	_, rows, _ := strings.Cut(table, "\n")
	assert.True(t, found, "the reference has no table of nvext")
	for _, cell := range regexp.MustCompile("(?m)^\\| (`[^|]*) \\|").FindAllStringSubmatch(rows, -1) {
		for _, name := range regexp.MustCompile(`[a-z]+(?:_[a-z]+)+|annotations|priority|osl|router`).FindAllString(cell[1], -1) {
			assert.True(t, slices.Contains(named, name) || slices.Contains(extraFields, name), "the table above lacks %s", name)
		}
	}
}
