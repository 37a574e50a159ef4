package conformance

import (
	"regexp"
	"slices"
)

// known is why an answer through the gateway is not the engine's own, or a simulated engine's not the real one's.
type known struct {
	kind string // of engine; "" for all
	to   string // the target: "whole", "pair", "simulated"; "" for whole and pair
	row  string // an expression for the row's name
	path string // an expression for the path of the difference
	why  string
}

// ownChecks are rows that the gateway refuses by itself, since it books, routes or resumes by what is wrong with them.
const ownChecks = `^(chat|completion) (temperature|top_p|max_tokens|n|logit_bias|stop|min_tokens|top_k|frequency_penalty|top_logprobs|` +
	`stop_token_ids|stream_options|logprobs|prompt|messages|model|response_format) |^body |[,:] usage$|^tools: wrong: (no list|parallel)`

var knownDifferences = []known{
	{row: `^chat max_tokens (0|-1)`, path: `\.error\.message|^\.status: want 200, got 400`, why: "the gateway checks what it books by"},
	{path: `\.kv_transfer_params: lacks`, why: "what a hand-off is made of is removed from answers"},
	{path: `\.(token_ids|prompt_token_ids): lacks null$`,
		why: "the gateway asks for ids on its own account, and removes them where the client did not"},
	{path: `\.body\.error\.(code|type): want (400|404|"[A-Za-z ]+")|\.body\.error\.request_id: more`,
		why: "errors have the gateway's type, code and request id; the message is the engine's"},
	{row: ownChecks, path: `\.body\.error\.(message|param|type|code)(: | more)`, why: "the gateway's own check, with the engine's status"},
	{kind: "sglang", row: ownChecks, path: `^\.status: want (200|500), got 400: .*"code":(null|"invalid_json")`,
		why: "the gateway's own check, where SGLang ignores the value, or fails over it"},
	{kind: "vllm", row: `^(tools|history): `, path: `\.error\.param: want "body\.`,
		why: "the param is a place in the request as OpenAI writes it"},
	{kind: "vllm", row: `^tools: wrong: an empty list`, path: `^\.status: want 400, got 200`, why: "an empty list of tools is left out"},
	{kind: "sglang", row: `^body .*\{"prompt"`, path: `\.model: want "default"`,
		why: "the model that a request does not name is the only one"},
	{row: `^POST /v1/embeddings`, path: `^\.status: want 404, got 400|\.body\.error\.(message|param)`,
		why: "the gateway checks the body before it looks for a worker"},
	{kind: "vllm", to: "simulated", row: `^POST /v1/embeddings`, path: `^\.status: want 404`, why: "simulated engines embed with every model"},
	{kind: "sglang", row: `model |^body .*"nobody"`, path: `^\.status: want 200, got 404: .*model_not_found`,
		why: "SGLang serves any model's name"},
	{kind: "sglang", path: `\.body\.error\.(message: want "\d+ validation error|param: want null)`,
		why: "SGLang's path and line are cut, and its place is the param"},
	{path: `^\.status: want 200, got 400: .*"rejected_by_engine"`,
		why: "an error that is a stream's first event has a status"},
	{kind: "sglang", path: `\.body\.usage: lacks null$`,
		why: "the gateway asks for counts in each event on its own account, and removes them where the client did not"},
	{kind: "sglang", to: "pair", row: `^(chat|completion) max_tokens 0|^completion: echo and logprobs`,
		path: `serve in pairs only|\.body\.error\.(message|param|type|code)`,
		why:  "SGLang's decode workers cannot prefill, and two legs show no prompt"},
	{kind: "sglang", to: "pair", row: `^(chat|completion) n 2`, path: `(content|text): want`,
		why: "each answer is a call of its own, and the simulated model answers a prompt always alike"},
	{kind: "sglang", row: `^completion suffix`, path: `^\.status: want 200, got 400: .*--completion-template|\.body\.error\.`,
		why: "SGLang ignores a suffix without a template, and the gateway refuses it"},
	{kind: "sglang", row: `^tools: required(, not strict)?, streamed`, path: `\.function\.arguments: want`,
		// parse_streaming_increment of 0.5.23
		why: "of a call that is cut SGLang streams what its last two events have in common, and how many tokens an event has depends on time"},
	{kind: "sglang", row: `^chat return_meta_info`, path: `\.meta_info\.`, why: "times, and which leg took them"},
	{row: `^(chat|completion) (request_id|rid|extra_key) `, path: `^\.status: want 200, got 400: .*set by the gateway`,
		why: "the name of a request at its engine, and what its cache is known by, are the gateway's"},
	{row: `^(chat|completion) priority "x"`, path: `^\.status: want 400, got 200`, why: "the priority is the queue's, and removed"},
	{row: `^GET /(health|v1/models)`, path: ``, why: "the gateway answers for its fleet"},
	{row: `^(GET|DELETE|POST) /`, path: `\.body\.(detail|error): `,
		why: "routes that the gateway does not have get its own error, with the engine's status"},

	// Simulated engines against the real ones.
	{to: "simulated", path: `\.(error\.)?message: want`,
		why: "refusals have the engine's status, type and place; the words are the simulated engine's"},
	{to: "simulated", row: `prompt_logprobs|echo|tools, required`, path: `logprobs|\.events|prompt_token_ids`,
		why: "no probabilities of prompts are simulated"},
	{to: "simulated", row: `structured_outputs|bias|stop string|max_tokens null|the end ignored`, path: `finish_reason|matched_stop|\.events`,
		why: "what a model generates decides; the simulated one generates what it likes"},
	{to: "simulated", row: `add_generation_prompt`, path: `role`, why: "the simulated model answers as the assistant"},
	{to: "simulated", row: `^tools: wrong|^history: (arguments as an object|broken|no arguments)|^thought: a budget`, path: `.`,
		why: "the simulated servers do not check tools"},
	{to: "simulated", row: `^(tools|history|thought): |^chat: tools`, path: `finish_reason|stop_reason|matched_stop`,
		why: "what a model generates decides; the simulated one's calls are short, and its thoughts have three tokens"},
	{to: "simulated", row: `^tools: (auto, called|required(, (several|not strict|cut|a stop)|$)|named, (cut|one))|^history: a thought in|^thought: (on|ended at|hidden and|a stop|the stop|then|a call)|^chat reasoning_effort|^chat: tools`,
		path: `\.events: want|content: want null|tool_calls: (more|lacks)|delta\.content: (more|lacks)`,
		why:  "so does when it calls, and when it ends a thought"},
	{to: "simulated", row: `^(tools: required, (logprobs|ids)|thought: (logprobs|ids)), streamed`, path: `\.events: want`,
		why: "the marks of calls and thoughts are tokens, and have events of their own; the simulated model has none"},
	{to: "simulated", row: `^completion prompt \[("one"|\[)`, path: `\.events`,
		why: "which of several answers comes first is a matter of time"},
	{kind: "sglang", to: "simulated", row: `^chat n 2`, path: `\.events`, why: "which of several answers comes first is a matter of time"},
	{kind: "sglang", to: "simulated", row: `watermark|return_(cached_tokens_details|meta_info|(input|output)_ids_in_sglext)`, path: `.`,
		why: "not simulated"},
	{kind: "sglang", to: "simulated", row: `^thought: (on by its other name|not apart)$`, path: `completion_tokens_details`,
		why: "which name begins a thought is the parser's matter; the simulated server counts thoughts that are apart"},
	{kind: "sglang", to: "simulated", row: `^chat max_tokens 0|n 0|^completion max_tokens null|one candidate|^chat messages |^body .* (\[\]|7)$|^POST /v1/embeddings`, path: `^\.status`,
		why: "not simulated: the gateway does not send it"},
	{kind: "vllm", to: "simulated", row: `^completion prompt \[\]|^chat messages |^body .* $`,
		path: `\.error\.(param|type)|^\.status: want 400`,
		why:  "vLLM's unions name the first variant that does not fit; the simulated engine has none"},
}

// explain returns the place of the known difference that explains one, or -1.
func explain(kind, to, row, difference string) int {
	return slices.IndexFunc(knownDifferences, func(k known) bool {
		return (k.kind == "" || k.kind == kind) && (k.to == to || k.to == "" && to != "simulated") &&
			regexp.MustCompile(k.row).MatchString(row) && regexp.MustCompile(k.path).MatchString(difference)
	})
}
