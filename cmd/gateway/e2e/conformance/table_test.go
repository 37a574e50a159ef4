package conformance

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// row is a request of the conformance run. Each is sent whole and, where it has a body, streamed.
type row struct {
	name, method, path string
	body               string
}

const (
	chatPath       = "/v1/chat/completions"
	completionPath = "/v1/completions"
)

// values are those of the parameters of the engines' request schemas: TestConformance fails where a schema has one without
// a row. Rows of one parameter stand for chats and completions, and for both engines, whether or not they take it: an
// unknown one must be passed, or refused, as the engine does alone.
var values = []struct{ param, value string }{
	{"frequency_penalty", `0.5`}, {"presence_penalty", `0.5`}, {"repetition_penalty", `1.8`}, {"logit_bias", `{"9707":5}`},
	{"max_tokens", `3`}, {"max_tokens", `0`}, {"max_tokens", `1`}, {"max_completion_tokens", `4`}, {"n", `2`}, {"best_of", `1`},
	{"seed", `7`}, {"stop", `["e"]`}, {"stop", `"zz"`}, {"stop", `[]`}, {"stream", `false`}, {"suffix", `"end"`},
	{"temperature", `0`}, {"top_p", `0.5`}, {"top_k", `1`}, {"min_p", `0.1`}, {"user", `"u-1"`},
	{"use_beam_search", `false`}, {"watermarking", `false`}, {"watermark", `{}`}, {"length_penalty", `1.5`},
	{"stop_token_ids", `[220]`}, {"include_stop_str_in_output", `true`}, {"no_stop_trim", `true`}, {"ignore_eos", `true`},
	{"min_tokens", `2`}, {"skip_special_tokens", `false`}, {"spaces_between_special_tokens", `false`},
	{"truncate_prompt_tokens", `4`}, {"truncation_side", `"left"`}, {"allowed_token_ids", `[220,330]`}, {"prompt_logprobs", `1`},
	{"logprob_token_ids", `[220]`}, {"bad_words", `["zz"]`}, {"prompt_embeds", `null`}, {"add_special_tokens", `false`},
	{"response_format", `{"type":"text"}`}, {"response_format", `{"type":"json_object"}`},
	{"structured_outputs", `{"choice":["red","green"]}`}, {"structured_outputs", `{"regex":"[ab]{3}"}`}, {"priority", `1`},
	{"request_id", `"r-1"`}, {"rid", `"r-1"`}, {"session_id", `"s-1"`}, {"session_params", `null`}, {"return_tokens_as_token_ids", `true`},
	{"return_token_ids", `true`}, {"routed_experts_prompt_start", `0`}, {"routed_experts_start_len", `0`}, {"return_routed_experts", `false`},
	{"return_token_offsets", `false`}, {"return_prompt_text", `true`}, {"mm_payload", `"none"`}, {"return_mm_kwargs", `false`},
	{"cache_salt", `"salt"`}, {"extra_key", `"key"`}, {"kv_transfer_params", `null`}, {"ec_transfer_params", `null`},
	{"vllm_xargs", `{"a":1}`},
	{"repetition_detection", `null`}, {"thinking_token_budget", `null`}, {"stream_interval", `2`}, {"echo", `true`},
	{"logprobs", `true`}, {"logprobs", `2`}, {"top_logprobs", `2`}, {"return_cached_tokens_details", `true`},
	{"return_spec_tokens_details", `true`},
	{"return_hidden_states", `false`}, {"return_prompt_token_ids", `true`}, {"return_meta_info", `true`},
	{"return_input_ids_in_sglext", `true`}, {"return_output_ids_in_sglext", `true`}, {"return_sampling_mask", `false`},
	{"sampling_logprobs_mode", `null`}, {"return_flat_raw_output_top_logprobs", `false`}, {"return_flat_raw_top_logprobs_b64", `false`},
	{"json_schema", `null`}, {"regex", `null`}, {"ebnf", `null`}, {"stop_regex", `"[0-9]"`}, {"lora_path", `null`},
	{"custom_params", `null`}, {"custom_logit_processor", `null`}, {"images_config", `null`}, {"video_config", `null`},
	{"mm_processor_kwargs", `null`}, {"media_io_kwargs", `null`}, {"data_parallel_rank", `0`}, {"routed_dp_rank", `0`},
	{"disagg_prefill_dp_rank", `null`}, {"bootstrap_host", `null`}, {"bootstrap_port", `null`}, {"bootstrap_room", `null`},
	{"custom_labels", `{"a":"b"}`}, {"max_dynamic_patch", `null`}, {"min_dynamic_patch", `null`}, {"use_audio_in_video", `false`},
	{"tools", `[{"type":"function","function":{"name":"look","parameters":{"type":"object","properties":{"at":{"type":"string"}}}}}]`},
	{"tool_choice", `"none"`}, {"parallel_tool_calls", `false`}, {"reasoning_effort", `"low"`}, {"include_reasoning", `false`},
	{"separate_reasoning", `true`}, {"stream_reasoning", `true`}, {"thinking", `null`}, {"task", `null`}, {"input_ids", `null`},
	{"add_generation_prompt", `false`}, {"continue_final_message", `false`}, {"documents", `[{"title":"t","text":"x"}]`},
	{"chat_template", `null`}, {"chat_template_kwargs", `{"enable_thinking":false}`}, {"stream_options", `{"include_usage":true}`},
	{"stream_options", `{"include_usage":true,"continuous_usage_stats":true}`}, {"model", `"other"`}, {"an_unknown_one", `1`},
	// Values that no engine takes: the error is the engine's.
	{"temperature", `-1`}, {"temperature", `"hot"`}, {"top_p", `2`}, {"max_tokens", `-1`}, {"max_tokens", `1000000`}, {"n", `0`},
	{"logit_bias", `{"x":1}`}, {"stop", `7`}, {"min_tokens", `-1`}, {"top_k", `-2`}, {"frequency_penalty", `9`}, {"top_logprobs", `-3`},
	{"stop_token_ids", `["a"]`}, {"response_format", `{"type":"poem"}`}, {"tool_choice", `"other"`}, {"priority", `"x"`},
}

// prompts of completions, and messages of chats.
var (
	prompts = []string{`"Hello"`, `""`, `" "`, `"äöü 漢字 🙂"`, `[9707,11,1879]`, `["one","two"]`, `[[9707],[11,1879]]`, `[]`,
		`7`, `null`,
		`"A long one: ` + strings.Repeat("The gateway measures every worker. ", 40) + `"`, `"line\nline\u0000x"`}
	messages = []string{
		`[{"role":"user","content":"Hello"}]`, `[{"role":"system","content":"Be short."},{"role":"user","content":"Hello"}]`,
		`[{"role":"user","content":[{"type":"text","text":"one"},{"type":"text","text":"two"}]}]`,
		`[{"role":"user","content":"a"},{"role":"assistant","content":"b"},{"role":"user","content":"c"}]`,
		`[{"role":"user","content":"a"},{"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"look","arguments":"{}"}}]},{"role":"tool","tool_call_id":"c1","content":"seen"}]`,
		`[{"role":"user","content":"äöü 漢字 🙂"}]`, `[{"role":"user","content":""}]`,
		`[{"role":"user","name":"n","content":"named"}]`, `[{"role":"developer","content":"d"},{"role":"user","content":"u"}]`,
		`[]`, `null`, `"text"`, `[{"role":"nobody","content":"x"}]`, `[{"content":"x"}]`, `[{"role":"user"}]`,
		`[{"role":"user","content":7}]`, `[7]`,
	}
)

// real are the real engines' model and the ids of a word, of the ends of a turn and of a thought, and of a call's beginning.
// Names of rows have them, whatever their bodies have in their places.
var real = []string{"tiny", "9707", "151645", "151666", "151657"}

// table returns the rows for a kind of engine, in an order that is always the same, with other values in the places of real.
func table(kind string, own []string) []row {
	const chat, completion = `{"model":"tiny","messages":[{"role":"user","content":"Hello there"}],"max_tokens":6,"temperature":0}`,
		`{"model":"tiny","prompt":"Hello there","max_tokens":6,"temperature":0}`
	var rows []row
	add := func(name, path, base, key, value string) {
		rows = append(rows, row{name: name + " " + key + " " + short(value), method: "POST", path: path, body: put(base, key, value)})
	}
	for _, v := range values {
		add("chat", chatPath, chat, v.param, v.value)
		add("completion", completionPath, completion, v.param, v.value)
	}
	add("completion", completionPath, completion, "max_tokens", `null`) // a chat's would end with the context
	for _, p := range prompts {
		add("completion", completionPath, completion, "prompt", p)
	}
	for _, m := range messages {
		add("chat", chatPath, chat, "messages", m)
	}
	both := func(name, chatMore, completionMore string) {
		rows = append(rows, row{name: "chat: " + name, method: "POST", path: chatPath, body: with(chat, chatMore)},
			row{name: "completion: " + name, method: "POST", path: completionPath, body: with(completion, completionMore)})
	}
	both("logprobs", `{"logprobs":true,"top_logprobs":3}`, `{"logprobs":3}`)
	both("logprobs and ids", `{"logprobs":true,"top_logprobs":1,"return_token_ids":true}`, `{"logprobs":1,"return_token_ids":true}`)
	both("a stop string in the middle", `{"stop":["i","o"],"max_tokens":24,"repetition_penalty":1.8}`,
		`{"stop":["i","o"],"max_tokens":24,"repetition_penalty":1.8}`)
	both("a stop string that is shown", `{"stop":["i"],"include_stop_str_in_output":true,"no_stop_trim":true,"max_tokens":24}`,
		`{"stop":["i"],"include_stop_str_in_output":true,"no_stop_trim":true,"max_tokens":24}`)
	both("many tokens", `{"max_tokens":64,"repetition_penalty":1.8}`, `{"max_tokens":64,"repetition_penalty":1.8}`)
	both("the end of the text by bias", `{"logit_bias":{"151645":100}}`, `{"logit_bias":{"151645":100}}`)
	both("the end ignored", `{"logit_bias":{"151645":100},"ignore_eos":true}`, `{"logit_bias":{"151645":100},"ignore_eos":true}`)
	// With a seed, since several tokens may be the most likely ones in bf16.
	both("a temperature and one candidate", `{"temperature":0.7,"top_k":1,"seed":7}`, `{"temperature":null,"top_k":1,"seed":7}`)
	both("all penalties", `{"frequency_penalty":1,"presence_penalty":1,"repetition_penalty":1.2,"min_tokens":4}`,
		`{"frequency_penalty":1,"presence_penalty":1,"repetition_penalty":1.2,"min_tokens":4}`)
	both("tools, required", `{"tools":[{"type":"function","function":{"name":"look","parameters":{"type":"object","properties":{}}}}],"tool_choice":"required"}`, `{"echo":true,"max_tokens":1}`)
	both("echo and logprobs", `{"echo":true,"logprobs":true}`, `{"echo":true,"logprobs":1}`)
	for _, c := range calls {
		rows = append(rows, row{name: c.name, method: "POST", path: chatPath, body: with(chat, "{"+c.more+"}")})
	}
	for _, body := range []string{``, `{`, `[]`, `7`, `{}`, `{"model":"tiny"}`,
		`{"model":"nobody","max_tokens":2,"prompt":"x","messages":[{"role":"user","content":"x"}]}`,
		`{"model":7,"max_tokens":2,"prompt":"x","messages":[{"role":"user","content":"x"}]}`,
		`{"prompt":"x","messages":[{"role":"user","content":"x"}],"max_tokens":2,"temperature":0}`} {
		for _, path := range []string{chatPath, completionPath} {
			rows = append(rows, row{name: "body " + path + " " + short(body), method: "POST", path: path, body: body})
		}
	}
	for _, r := range []string{"GET /health", "GET /v1/models", "GET /v1/models/tiny", "GET /v1/models/nobody", "GET /nothing",
		"GET " + chatPath, "DELETE " + completionPath, "POST /v1/embeddings"} {
		method, path, _ := strings.Cut(r, " ")
		rows = append(rows, row{name: r, method: method, path: path})
	}
	seen := map[string]int{}
	for i, r := range rows {
		if seen[r.name]++; seen[r.name] > 1 { // cut values
			rows[i].name += fmt.Sprintf(" (%d)", seen[r.name])
		}
	}
	var places []string
	for i, v := range real {
		places = append(places, v, own[i])
	}
	for i, r := range rows {
		rows[i].body, rows[i].path = strings.NewReplacer(places...).Replace(r.body), strings.NewReplacer(places...).Replace(r.path)
	}
	return rows
}

// short is a value as part of a row's name.
func short(v string) string {
	if r := []rune(v); len(r) > 60 {
		return string(r[:60]) + "…"
	}
	return v
}

// with sets the keys of an object that another one has.
func with(object, more string) string {
	var m map[string]json.RawMessage
	if err := json.Unmarshal([]byte(more), &m); err != nil {
		panic(err)
	}
	for _, k := range slices.Sorted(maps.Keys(m)) {
		object = put(object, k, string(m[k]))
	}
	return object
}

// put sets a key of a JSON object and leaves the rest as it is.
func put(object, key, value string) string {
	var m map[string]json.RawMessage
	if err := json.Unmarshal([]byte(object), &m); err != nil {
		panic(err)
	}
	m[key] = json.RawMessage(value)
	text, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	return string(text)
}
