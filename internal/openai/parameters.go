package openai

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
)

// parameter is an engine's request field that the gateway changes: in the body of a prefill leg, or in that of an
// answer that another worker continues.
type parameter struct {
	name string
	use  use
	// reason is why an answer with this field cannot continue elsewhere: the engine's state covers generated tokens,
	// and counts those of another engine as prompt. Empty: the answer continues, since the field does not depend on
	// such tokens, the engine finds its place by the prompt (vLLM's thinking_token_budget, whose
	// v1/sample/thinking_budget_state.py looks for the start of the reasoning there), or Resume sets the rest.
	reason string
	// unless is a value without effect, in addition to null.
	unless string
	// only is the engine that the reason holds for, empty for all.
	only string
}

// use is the effect of a field.
type use uint8

const (
	prompting use = iota // the prompt: both legs have it alike
	choosing             // which token is next: the same on both legs
	// ending is when an answer ends, or additional output. A prefill leg of vLLM has none of these: they concern a
	// token that decode computes again, and may depend on each other (logprob_token_ids needs logprobs: check_logprobs
	// in entrypoints/openai/chat_completion/protocol.py of 0.32).
	ending
	other    // nothing of these
	gateways // only the gateway sends it
)

// parameters are the fields of the requests of vLLM 0.32.0 and SGLang 0.5.23 (testdata/schemas), with some of earlier
// releases: those that may tie an answer to its engine, and those that never do.
var parameters = func() []parameter {
	all := []parameter{
		{name: "bad_words", use: choosing, reason: "bad_words", unless: "[]"},
		{name: "custom_logit_processor", use: choosing, reason: "processor", unless: "[]"},
		{name: "custom_params", use: choosing, reason: "processor", unless: "{}"},
		{name: "ebnf", use: choosing, reason: "grammar"},
		{name: "frequency_penalty", use: choosing, reason: "penalties", unless: "0"},
		{name: "grammar", use: choosing, reason: "grammar"},
		{name: "guided_choice", use: choosing, reason: "grammar"},
		{name: "guided_grammar", use: choosing, reason: "grammar"},
		{name: "guided_json", use: choosing, reason: "grammar"},
		{name: "guided_json_object", use: choosing, reason: "grammar", unless: "false"},
		{name: "guided_regex", use: choosing, reason: "grammar"},
		{name: "include_reasoning", use: choosing, reason: "reasoning", unless: "true"},
		{name: "json_schema", use: choosing, reason: "grammar"},
		{name: "logit_processors", use: choosing, reason: "processor"},
		{name: "logits_processors", use: choosing, reason: "processor"},
		{name: "n", use: choosing, reason: "n", unless: "1"},
		{name: "presence_penalty", use: choosing, reason: "penalties", unless: "0"},
		{name: "regex", use: choosing, reason: "grammar"},
		{name: "repetition_penalty", use: choosing, reason: "penalties", unless: "1", only: "sglang"},
		{name: "response_format", use: choosing, reason: "grammar", unless: `{"type":"text"}`},
		{name: "structural_tag", use: choosing, reason: "grammar"},
		{name: "structured_outputs", use: choosing, reason: "grammar"},
		{name: "tool_choice", use: choosing, reason: "grammar"},
		{name: "use_beam_search", use: choosing, reason: "n", unless: "false"},
		{name: "best_of", use: ending, reason: "n", unless: "1"},
		{name: "echo", use: ending, reason: "echo", unless: "false"},
		{name: "logprob_token_ids", use: ending, reason: "logprobs", unless: "[]"},
		{name: "logprobs", use: ending, reason: "logprobs", unless: "false"},
		{name: "prompt_logprobs", use: ending, reason: "logprobs", unless: "0"},
		{name: "repetition_detection", use: ending, reason: "repetition", unless: "{}"},
		{name: "return_cached_tokens_details", use: ending, reason: "details", unless: "false"},
		{name: "return_input_ids_in_sglext", use: ending, reason: "details", unless: "false"},
		{name: "return_meta_info", use: ending, reason: "details", unless: "false"},
		{name: "return_output_ids_in_sglext", use: ending, reason: "details", unless: "false"},
		{name: "return_routed_experts", use: ending, reason: "details", unless: "false"},
		{name: "return_sampling_mask", use: ending, reason: "details", unless: "false"},
		{name: "return_spec_tokens_details", use: ending, reason: "details", unless: "false"},
		{name: "stop_regex", use: ending, reason: "stop", unless: "[]"},
		{name: "top_logprobs", use: ending, reason: "logprobs", unless: "0"},
	}
	for use, names := range map[use]string{
		prompting: `
			add_generation_prompt add_special_tokens cache_salt chat_template chat_template_kwargs
			continue_final_message documents functions images_config max_dynamic_patch media_io_kwargs messages
			min_dynamic_patch mm_payload mm_processor_kwargs prompt reasoning_effort return_mm_kwargs suffix task
			thinking tools truncate_prompt_tokens truncation_side use_audio_in_video video_config`,
		choosing: `
			allowed_token_ids ignore_eos length_penalty logit_bias max_completion_tokens max_tokens min_p
			parallel_tool_calls seed separate_reasoning skip_special_tokens spaces_between_special_tokens
			stream_reasoning temperature thinking_token_budget top_k top_p vllm_xargs watermark watermarking`,
		ending: `
			include_stop_str_in_output min_completion_tokens min_tokens no_stop_trim
			return_flat_raw_output_top_logprobs return_flat_raw_top_logprobs_b64 return_prompt_text
			return_prompt_token_ids return_token_ids return_token_offsets return_tokens_as_token_ids
			routed_experts_prompt_start routed_experts_start_len sampling_logprobs_mode stop stop_token_ids
			stream_interval stream_options`,
		other: `
			custom_labels model session_id stream user`,
		gateways: `
			bootstrap_host bootstrap_port bootstrap_room data_parallel_rank disagg_prefill_dp_rank ec_transfer_params
			extra_key input_ids kv_transfer_params lora_path priority prompt_embeds request_id return_hidden_states
			rid routed_dp_rank session_params`,
	} {
		for name := range strings.FieldsSeq(names) {
			all = append(all, parameter{name: name, use: use})
		}
	}
	return all
}()

var parameterOf = func() map[string]*parameter {
	all := make(map[string]*parameter, len(parameters))
	for i := range parameters {
		all[parameters[i].name] = &parameters[i]
	}
	return all
}()

// EndFields returns the fields that a prefill leg of vLLM omits.
func EndFields() (names []string) {
	for _, p := range parameters {
		if p.use == ending {
			names = append(names, p.name)
		}
	}
	slices.Sort(names)
	return names
}

// binds reports whether a value of the field ties an answer to its engine.
func (p *parameter) binds(engine string, value []byte) bool {
	if p.unless != "" && len(value) > 2 && value[0] == '"' { // "1" is 1 to engines
		value = value[1 : len(value)-1]
	}
	if p.reason == "" || p.only != "" && p.only != engine || string(value) == "null" || string(value) == p.unless {
		return false
	}
	switch n, err := strconv.ParseFloat(string(value), 64); {
	case err == nil:
		neutral, err := strconv.ParseFloat(p.unless, 64)
		return err != nil || n != neutral
	case value[0] == '[' || value[0] == '{': // {} or [], with white space
		return p.unless == "" || p.unless[0] != value[0] || len(bytes.TrimSpace(value[1:len(value)-1])) > 0
	}
	return true
}
