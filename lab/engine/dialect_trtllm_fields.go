package engine

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"

	"github.com/tandem-pd/tandem/internal/openai"
)

// Fields of the requests (openai_protocol.py), by model.
var (
	tensorRTCommon = `model best_of frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop stream stream_options ` +
		`temperature top_p user lora_request prompt_ignore_length use_beam_search top_k top_p_min min_p repetition_penalty ` +
		`length_penalty early_stopping stop_token_ids include_stop_str_in_output ignore_eos min_tokens skip_special_tokens ` +
		`spaces_between_special_tokens truncate_prompt_tokens thinking_token_budget add_special_tokens response_format echo ` +
		`disaggregated_params priority conversation_params`
	tensorRTCompletion = strings.Fields(tensorRTCommon + ` prompt suffix return_context_logits detokenize`)
	tensorRTChat       = strings.Fields(tensorRTCommon +
		` messages prompt_token_ids prompt_token_ids_b64 top_logprobs max_completion_tokens tools ` +
		`tool_choice parallel_tool_calls reasoning_effort thinking add_generation_prompt documents chat_template chat_template_kwargs ` +
		`injected_chat_template_kwargs media_io_kwargs cache_salt agent_hierarchy mm_processor_kwargs`)
	tensorRTOldParams = strings.Fields(`request_type first_gen_tokens first_gen_log_probs first_gen_logits ctx_request_id encoded_opaque_state ` +
		`draft_tokens disagg_request_id`)
	tensorRTNewer    = strings.Fields(`ctx_dp_rank ctx_info_endpoint schedule_style ctx_usage return_prompt_token_ids_b64 resolved_thinking`)
	tensorRTFunction = strings.Fields(`name description parameters strict`)
)

// check is the validation of the request's model.
func (d *tensorRT) check(c *call, f *fields) {
	known := tensorRTCompletion
	if c.endpoint == openai.Chat {
		known = tensorRTChat
		if _, ok := f.raw["max_tokens"]; ok { // an alias of the other, which then is one too many
			known = slices.DeleteFunc(slices.Clone(known), func(name string) bool { return name == "max_completion_tokens" })
		}
	}
	if f.err = forbidden(f.raw, known); f.err != nil {
		return
	}
	if _, ok := f.raw["model"]; !ok {
		f.err = invalid("model", "Field required")
		return
	}
	f.number("priority", 0.5, 0, 1)
	f.integer("truncate_prompt_tokens", 1, 1, math.MaxInt32)
	if f.get("cache_salt") != nil && strings.TrimSpace(f.text("cache_salt")) == "" {
		f.fail("cache_salt", "Parameter 'cache_salt' must be a non-empty string if provided.")
	}
	if f.get("stream_options") != nil && !f.flag("stream") {
		f.fail("stream_options", "stream_options can only be set if stream is true")
	}
	if c.endpoint == openai.Completions {
		return
	}
	var tools []struct {
		Function json.RawMessage `json:"function"`
	}
	f.decode("tools", &tools, "a list of tools")
	for i, tool := range tools {
		if failure := forbid(tool.Function, tensorRTFunction, fmt.Sprintf("tools', %d, 'function", i)); failure != nil && f.err == nil {
			f.err = failure
		}
	}
	if choice := string(f.get("tool_choice")); choice != "" && choice != `"none"` && choice != `"auto"` && len(tools) == 0 {
		f.fail("tool_choice", "When using `tool_choice`, `tools` must be set.")
	}
	if f.get("top_logprobs") != nil && !f.flag("logprobs") {
		f.fail("top_logprobs", "logprobs must be true when using top_logprobs")
	}
}

// forbid refuses an object's unknown members.
func forbid(raw json.RawMessage, known []string, place string) *apiError {
	var members map[string]json.RawMessage
	if json.Unmarshal(raw, &members) != nil {
		return invalid(place, "Input should be a valid dictionary")
	}
	if failure := forbidden(members, known); failure != nil {
		return invalid(place+"', '"+*failure.Param, failure.Message)
	}
	return nil
}

// forbidden refuses the first unknown member, by name.
func forbidden(members map[string]json.RawMessage, known []string) *apiError {
	var extra []string
	for name := range members {
		if !slices.Contains(known, name) {
			extra = append(extra, name)
		}
	}
	if len(extra) == 0 {
		return nil
	}
	return invalid(slices.Min(extra), "Extra inputs are not permitted")
}

// invalid is pydantic's refusal of a field.
func invalid(place, message string) *apiError {
	return newError(http.StatusBadRequest, place, "%s", message)
}

// exception is one of the server's own: each is a 400.
func exception(format string, args ...any) *apiError {
	return newError(http.StatusBadRequest, "", format, args...)
}
