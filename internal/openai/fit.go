package openai

import (
	"bytes"
	"encoding/json"
)

// Fit adapts e, an edit of r's body, to an engine that would reject it, where that keeps the answer's meaning. Its
// error is the 400 for a field whose loss would change it.
//
// An empty list of tools is dropped: vLLM rejects it, and clients' libraries send it (clients.md §0.7). TensorRT-LLM
// rejects every unknown field.
func (r *Request) Fit(e *Edit, engine string) error {
	if !r.Endpoint.Generates() {
		r.unwrapDocuments(e)
		return nil
	}
	r.dropNoTools(e)
	switch {
	case engine == "trtllm":
		return r.fitTensorRT(e)
	case r.BestOf > r.N: // vLLM 0.32's requests have no such field, and SGLang 0.5.23 reads it nowhere
		return BadRequest("best_of", "best_of (%d) must not be above n (%d): this model's engine does not choose among answers",
			r.BestOf, r.N)
	case engine == "sglang":
		return r.fitSGLang()
	}
	return nil
}

// fitSGLang refuses template arguments with the names of those that SGLang itself calls the template with
// (apply_chat_template in srt/entrypoints/openai/serving_chat.py of 0.5.23). A real one of that release answered each
// of them with 500, as if it had failed.
func (r *Request) fitSGLang() error {
	raw, ok := r.Field("chat_template_kwargs")
	if !ok || r.Endpoint != Chat {
		return nil
	}
	var kwargs map[string]json.RawMessage
	_ = json.Unmarshal(raw, &kwargs) // the engine rejects anything but an object
	for _, name := range []string{"tokenize", "return_dict", "tools", "messages"} {
		if _, given := kwargs[name]; given {
			field := "chat_template_kwargs." + name
			return BadRequest(field, "%s: SGLang sets %q itself when it renders the chat", field, name)
		}
	}
	return nil
}

// dropNoTools drops empty lists of tools, and with them a tool_choice without effect: engines reject both.
func (r *Request) dropNoTools(e *Edit) {
	if r.Endpoint != Chat {
		return
	}
	for _, of := range [...]struct{ list, choice string }{{"tools", "tool_choice"}, {"functions", "function_call"}} {
		if v, ok := r.Field(of.list); !ok || v[0] != '[' || !emptyArray(v) {
			continue
		}
		e.Delete(of.list)
		if v, _ := r.Field(of.choice); string(v) == `"auto"` || string(v) == `"none"` {
			e.Delete(of.choice)
		}
	}
}

// The fields of TensorRT-LLM's requests (tensorrt_llm/serve/openai_protocol.py, ChatCompletionRequest and
// CompletionRequest) that clients may send: those of releases from 1.2 on, and later ones that change the answer, which
// an earlier release rejects by itself.
var (
	tensorRTCommon = []string{
		"model", "best_of", "frequency_penalty", "logit_bias", "logprobs", "max_tokens", "n", "presence_penalty", "seed", "stop",
		"stream", "stream_options", "temperature", "top_p", "user", "use_beam_search", "top_k", "top_p_min", "min_p",
		"repetition_penalty", "length_penalty", "early_stopping", "stop_token_ids", "include_stop_str_in_output", "ignore_eos",
		"min_tokens", "skip_special_tokens", "spaces_between_special_tokens", "truncate_prompt_tokens", "add_special_tokens",
		"response_format", "echo", "disaggregated_params", "thinking_token_budget",
	}
	tensorRTFields = map[Endpoint]map[string]bool{
		Chat: known(tensorRTCommon, []string{
			"messages", "top_logprobs", "max_completion_tokens", "tools", "tool_choice", "reasoning_effort", "add_generation_prompt",
			"documents", "chat_template", "chat_template_kwargs", "cache_salt", "prompt_token_ids", "thinking", "mm_processor_kwargs",
			"media_io_kwargs",
		}),
		Completions: known(tensorRTCommon, []string{"prompt", "suffix", "return_context_logits", "detokenize"}),
	}

	// changing are the fields of other engines and of OpenAI that change the answer: they choose its tokens, constrain
	// it to a grammar, belong to the prompt, or decide what it contains. All other unknown fields (store, metadata,
	// prompt_cache_key, …) do not.
	changing = known([]string{
		"guided_json", "guided_regex", "guided_choice", "guided_grammar", "guided_json_object", "structured_outputs", "structural_tag",
		"json_schema", "regex", "ebnf", "grammar",
		"bad_words", "allowed_token_ids", "logits_processors", "custom_logit_processor", "custom_params", "logit_processors", "stop_regex",
		"min_completion_tokens", "no_stop_trim", "vllm_xargs",
		"functions", "function_call", "audio", "modalities", "web_search_options",
		"continue_final_message", "truncation_side",
		"prompt_logprobs", "return_token_ids", "return_tokens_as_token_ids", "return_prompt_token_ids", "include_reasoning",
		"separate_reasoning", "stream_reasoning",
	})

	// neutral are the values with which such a field changes nothing, where that is not false or an empty container.
	neutral = map[string]string{
		"include_reasoning": "true", "separate_reasoning": "true", "stream_reasoning": "true", "modalities": `["text"]`,
		"truncation_side": `"left"`,
		"function_call":   `"auto"`,
	}

	tensorRTStream = known([]string{"include_usage", "continuous_usage_stats"})
)

func known(lists ...[]string) map[string]bool {
	all := map[string]bool{}
	for _, list := range lists {
		for _, name := range list {
			all[name] = true
		}
	}
	return all
}

// fitTensorRT drops fields that TensorRT-LLM does not accept, or returns an error.
func (r *Request) fitTensorRT(e *Edit) error {
	fields, limit := tensorRTFields[r.Endpoint], "max_tokens"
	if newer, ok := r.Field("max_completion_tokens"); ok && r.Endpoint == Chat && string(newer) != "null" {
		limit = "max_completion_tokens"
	}
	if r.CacheSalt != "" && !fields["cache_salt"] {
		if r.Nvext.CacheSalt != "" {
			return notInTensorRT("nvext.cache_salt")
		}
		return notInTensorRT("cache_salt")
	}
	for i := range r.members {
		m := &r.members[i]
		name := string(m.name)
		switch v := m.value.of(r.Raw); {
		case name == "max_tokens" && limit != name, name == "max_completion_tokens" && limit != name:
			e.Delete(name) // both are one field there
		case name == "stream_options" && v[0] == '{':
			if options, ok := NewEdit(v); ok && options.keep(tensorRTStream) {
				e.Set(name, options.Bytes())
			}
		case fields[name]:
		case changing[name] && !saysNothing(name, v):
			return notInTensorRT(name)
		default:
			e.Delete(name)
		}
	}
	return nil
}

func notInTensorRT(field string) *Error {
	return BadRequest(field, "%s is not supported by this model's engine, TensorRT-LLM", field)
}

// saysNothing reports whether a field of changing has a value with which it changes nothing.
func saysNothing(name string, v []byte) bool {
	if silent, ok := neutral[name]; ok {
		return string(v) == silent || string(v) == "null"
	}
	switch string(v) {
	case "null", "false":
		return true
	}
	return (v[0] == '[' || v[0] == '{') && len(bytes.TrimSpace(v[1:len(v)-1])) == 0
}
