package openai

import (
	"bytes"
	"strconv"
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
// releases, in the order of their uses.
var parameters = []parameter{
	{name: "add_generation_prompt", use: prompting},
	{name: "add_special_tokens", use: prompting},
	{name: "cache_salt", use: prompting},
	{name: "chat_template", use: prompting},
	{name: "chat_template_kwargs", use: prompting},
	{name: "continue_final_message", use: prompting},
	{name: "documents", use: prompting},
	{name: "functions", use: prompting},
	{name: "images_config", use: prompting},
	{name: "max_dynamic_patch", use: prompting},
	{name: "media_io_kwargs", use: prompting},
	{name: "messages", use: prompting},
	{name: "min_dynamic_patch", use: prompting},
	{name: "mm_payload", use: prompting},
	{name: "mm_processor_kwargs", use: prompting},
	{name: "prompt", use: prompting},
	{name: "reasoning_effort", use: prompting},
	{name: "return_mm_kwargs", use: prompting},
	{name: "suffix", use: prompting},
	{name: "task", use: prompting},
	{name: "thinking", use: prompting},
	{name: "tools", use: prompting},
	{name: "truncate_prompt_tokens", use: prompting},
	{name: "truncation_side", use: prompting},
	{name: "use_audio_in_video", use: prompting},
	{name: "video_config", use: prompting},
	{name: "allowed_token_ids", use: choosing},
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
	{name: "ignore_eos", use: choosing},
	{name: "include_reasoning", use: choosing, reason: "reasoning", unless: "true"},
	{name: "json_schema", use: choosing, reason: "grammar"},
	{name: "length_penalty", use: choosing},
	{name: "logit_bias", use: choosing},
	{name: "logit_processors", use: choosing, reason: "processor"},
	{name: "logits_processors", use: choosing, reason: "processor"},
	{name: "max_completion_tokens", use: choosing},
	{name: "max_tokens", use: choosing},
	{name: "min_p", use: choosing},
	{name: "n", use: choosing, reason: "n", unless: "1"},
	{name: "parallel_tool_calls", use: choosing},
	{name: "presence_penalty", use: choosing, reason: "penalties", unless: "0"},
	{name: "regex", use: choosing, reason: "grammar"},
	{name: "repetition_penalty", use: choosing, reason: "penalties", unless: "1", only: "sglang"},
	{name: "response_format", use: choosing, reason: "grammar", unless: `{"type":"text"}`},
	{name: "seed", use: choosing},
	{name: "separate_reasoning", use: choosing},
	{name: "skip_special_tokens", use: choosing},
	{name: "spaces_between_special_tokens", use: choosing},
	{name: "stream_reasoning", use: choosing},
	{name: "structural_tag", use: choosing, reason: "grammar"},
	{name: "structured_outputs", use: choosing, reason: "grammar"},
	{name: "temperature", use: choosing},
	{name: "thinking_token_budget", use: choosing},
	{name: "tool_choice", use: choosing, reason: "grammar"},
	{name: "top_k", use: choosing},
	{name: "top_p", use: choosing},
	{name: "use_beam_search", use: choosing, reason: "n", unless: "false"},
	{name: "vllm_xargs", use: choosing},
	{name: "watermark", use: choosing},
	{name: "watermarking", use: choosing},
	{name: "best_of", use: ending, reason: "n", unless: "1"},
	{name: "echo", use: ending, reason: "echo", unless: "false"},
	{name: "include_stop_str_in_output", use: ending},
	{name: "logprob_token_ids", use: ending, reason: "logprobs", unless: "[]"},
	{name: "logprobs", use: ending, reason: "logprobs", unless: "false"},
	{name: "min_completion_tokens", use: ending},
	{name: "min_tokens", use: ending},
	{name: "no_stop_trim", use: ending},
	{name: "prompt_logprobs", use: ending, reason: "logprobs", unless: "0"},
	{name: "repetition_detection", use: ending, reason: "repetition", unless: "{}"},
	{name: "return_cached_tokens_details", use: ending, reason: "details", unless: "false"},
	{name: "return_flat_raw_output_top_logprobs", use: ending},
	{name: "return_flat_raw_top_logprobs_b64", use: ending},
	{name: "return_input_ids_in_sglext", use: ending, reason: "details", unless: "false"},
	{name: "return_meta_info", use: ending, reason: "details", unless: "false"},
	{name: "return_output_ids_in_sglext", use: ending, reason: "details", unless: "false"},
	{name: "return_prompt_text", use: ending},
	{name: "return_prompt_token_ids", use: ending},
	{name: "return_routed_experts", use: ending, reason: "details", unless: "false"},
	{name: "return_sampling_mask", use: ending, reason: "details", unless: "false"},
	{name: "return_spec_tokens_details", use: ending, reason: "details", unless: "false"},
	{name: "return_token_ids", use: ending},
	{name: "return_token_offsets", use: ending},
	{name: "return_tokens_as_token_ids", use: ending},
	{name: "routed_experts_prompt_start", use: ending},
	{name: "routed_experts_start_len", use: ending},
	{name: "sampling_logprobs_mode", use: ending},
	{name: "stop", use: ending},
	{name: "stop_regex", use: ending, reason: "stop", unless: "[]"},
	{name: "stop_token_ids", use: ending},
	{name: "stream_interval", use: ending},
	{name: "stream_options", use: ending},
	{name: "top_logprobs", use: ending, reason: "logprobs", unless: "0"},
	{name: "custom_labels", use: other},
	{name: "model", use: other},
	{name: "session_id", use: other},
	{name: "stream", use: other},
	{name: "user", use: other},
	{name: "bootstrap_host", use: gateways},
	{name: "bootstrap_port", use: gateways},
	{name: "bootstrap_room", use: gateways},
	{name: "data_parallel_rank", use: gateways},
	{name: "disagg_prefill_dp_rank", use: gateways},
	{name: "ec_transfer_params", use: gateways},
	{name: "extra_key", use: gateways},
	{name: "input_ids", use: gateways},
	{name: "kv_transfer_params", use: gateways},
	{name: "lora_path", use: gateways},
	{name: "priority", use: gateways},
	{name: "prompt_embeds", use: gateways},
	{name: "request_id", use: gateways},
	{name: "return_hidden_states", use: gateways},
	{name: "rid", use: gateways},
	{name: "routed_dp_rank", use: gateways},
	{name: "session_params", use: gateways},
}

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
