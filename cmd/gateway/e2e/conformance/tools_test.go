package conformance

const (
	// look is bound to its schema where an engine is made to call it. An enum is the one part of a schema in which a random model finds no
	// place for white space without an end.
	look = `{"type":"function","function":{"name":"look","description":"Looks.","strict":true,"parameters":{"enum":[{"at":"here"},{"at":"there"}]}}}`
	// count is bound to being called.
	count = `{"type":"function","function":{"name":"count","parameters":{"type":"object","properties":{"n":{"type":"boolean"}}}}}`
	named = `"tool_choice":{"type":"function","function":{"name":"look"}}`

	required = `"tools":[` + look + `],"tool_choice":"required",` + once
	once     = `"parallel_tool_calls":false,"max_tokens":48`
	// A call begins where the bias of its first token has its way.
	calling = `"logit_bias":{"151657":100},"max_tokens":64`
	// A thought ends where the penalties of its words have become as high as the difference of the two biases.
	thinking = `"chat_template_kwargs":{"thinking":true}`
	thought  = thinking + `,"logit_bias":{"9707":100,"151666":90},"frequency_penalty":2,"presence_penalty":2,"max_tokens":32`
)

// calls are rows of chats about calls of tools and about thoughts, by the members that they have besides a chat's. A grammar makes the
// random model call a tool, so that calls are the same each time.
var calls = []struct{ name, more string }{
	{"tools: none", `"tools":[` + look + `],"tool_choice":"none"`},
	{"tools: auto", `"tools":[` + look + `,` + count + `],"tool_choice":"auto"`},
	{"tools: auto, not strict", `"tools":[` + count + `]`},
	{"tools: auto, called", `"tools":[` + look + `],` + calling},
	{"tools: auto, called once", `"tools":[` + look + `],"parallel_tool_calls":false,` + calling},
	{"tools: auto, called without a grammar", `"tools":[` + count + `],"max_tokens":16,"logit_bias":{"151657":100}`},
	{"tools: auto, a form of answer", `"tools":[` + look + `],"response_format":{"type":"json_object"},"max_tokens":16`},
	{"tools: required", `"tools":[` + look + `,` + count +
		`],"tool_choice":"required","logit_bias":{"151645":50,"90":100,"92":100},"max_tokens":48`},
	{"tools: required, several", `"tools":[` + look + `],"tool_choice":"required",` + calling},
	{"tools: required, once", required},
	{"tools: required, not strict", `"tools":[` + count + `],"tool_choice":"required","logit_bias":{"90":100,"92":100},` + once},
	{"tools: required, cut", `"tools":[` + look + `],"tool_choice":"required"`},
	{"tools: required, logprobs", required + `,"logprobs":true`},
	{"tools: required, ids", required + `,"return_token_ids":true`},
	{"tools: required, a stop string", required + `,"stop":["ere"]`},
	{"tools: required, usage", required + `,"stream_options":{"include_usage":true}`},
	{"tools: required, all of the context",
		`"tools":[` + look + `],"tool_choice":"required","parallel_tool_calls":false,"max_tokens":null,"logit_bias":{"151645":50}`},
	{"tools: named", `"tools":[` + look + `],` + named + `,"logit_bias":{"151645":50},"max_tokens":48`},
	{"tools: named, one of two", `"tools":[` + count + `,` + look + `],` + named + `,` + once},
	{"tools: named, cut", `"tools":[` + look + `],` + named},
	{"tools: functions", `"functions":[{"name":"look"}],"function_call":"auto"`},

	{"tools: wrong: named, unknown", `"tools":[` + count + `],` + named},
	{"tools: wrong: named, no tools", named},
	{"tools: wrong: named nothing", `"tools":[` + look + `],"tool_choice":{"type":"function"}`},
	{"tools: wrong: an object", `"tools":[` + look + `],"tool_choice":{}`},
	{"tools: wrong: allowed tools", `"tools":[` + look +
		`],"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[]}}`},
	{"tools: wrong: required, no tools", `"tool_choice":"required"`},
	{"tools: wrong: an empty list", `"tools":[],"tool_choice":"auto"`},
	{"tools: wrong: no list", `"tools":{}`},
	{"tools: wrong: no function", `"tools":[{"type":"function"}]`},
	{"tools: wrong: no name", `"tools":[{"type":"function","function":{}}]`},
	{"tools: wrong: a custom one", `"tools":[{"type":"custom","custom":{"name":"look"}}]`},
	{"tools: wrong: strict", `"tools":[{"type":"function","function":{"name":"look","strict":[]}}]`},
	{"tools: wrong: parameters", `"tools":[{"type":"function","function":{"name":"look","strict":true,"parameters":{"type":"nonsense"}}}],"tool_choice":"required","max_tokens":16`},
	{"tools: wrong: parallel", `"tools":[` + look + `],"parallel_tool_calls":[]`},

	{"history: two calls and their results",
		messagesOf(`{"role":"assistant","content":null,"tool_calls":[` + called("c1", `"{}"`) + `,` + called("c2", `"{\"at\":\"here\"}"`) +
			`]},{"role":"tool","tool_call_id":"c1","content":"one"},{"role":"tool","tool_call_id":"c2","content":"two"}`)},
	{"history: a text and a call", messagesOf(`{"role":"assistant","content":"I look.","tool_calls":[` + called("c1", `"{}"`) +
		`]},{"role":"tool","tool_call_id":"c1","content":"seen"}`)},
	{"history: called again", messagesOf(`{"role":"assistant","content":"","tool_calls":[`+called("c1",
		`"{}"`)+`]},{"role":"tool","tool_call_id":"c1","content":"seen"}`) +
		`,` + required},
	{"history: broken arguments", messagesOf(`{"role":"assistant","content":null,"tool_calls":[` + called("c1", `"{\"at\":"`) +
		`]},{"role":"tool","tool_call_id":"c1","content":"seen"}`)},
	{"history: no arguments", messagesOf(`{"role":"assistant","content":null,"tool_calls":[` + called("c1", `""`) +
		`]},{"role":"tool","tool_call_id":"c1","content":"seen"}`)},
	{"history: arguments as an object", messagesOf(`{"role":"assistant","content":null,"tool_calls":[` + called("c1",
		`{"at":"here"}`) + `]},{"role":"tool","tool_call_id":"c1","content":"seen"}`)},
	{"history: a result in parts", messagesOf(`{"role":"assistant","content":null,"tool_calls":[` + called("c1", `"{}"`) +
		`]},{"role":"tool","tool_call_id":"c1","content":[{"type":"text","text":"one"},{"type":"text","text":"two"}]}`)},
	{"history: a result of nothing", messagesOf(`{"role":"tool","content":"seen"}`)},
	{"history: an empty list of calls", messagesOf(`{"role":"assistant","content":"b","tool_calls":[]},{"role":"user","content":"c"}`)},
	{"history: a thought", messagesOf(`{"role":"assistant","reasoning_content":"t","content":"b"},{"role":"user","content":"c"}`)},
	{"history: a thought in the text", messagesOf(`{"role":"assistant","content":"<think>t</think>b"},{"role":"user","content":"c"}`) +
		`,` + thinking},

	{"thought: on", thinking},
	{"thought: on by its other name", `"chat_template_kwargs":{"enable_thinking":true}`},
	{"thought: off", `"chat_template_kwargs":{"thinking":false}`},
	{"thought: ended", thought},
	{"thought: ended at once", thinking + `,"logit_bias":{"151666":100},"frequency_penalty":2,"max_tokens":16,"stop_token_ids":[151666],"min_tokens":4`},
	{"thought: hidden", thought + `,"include_reasoning":false`},
	{"thought: hidden, with ids", thought + `,"include_reasoning":false,"return_token_ids":true,"logprobs":true`},
	{"thought: hidden and never ended", thinking + `,"include_reasoning":false`},
	{"thought: not apart", thought + `,"separate_reasoning":false`},
	{"thought: in one piece", thought + `,"stream_reasoning":false`},
	{"thought: logprobs", thought + `,"logprobs":true`},
	{"thought: ids", thought + `,"return_token_ids":true`},
	{"thought: usage", thought + `,"stream_options":{"include_usage":true,"continuous_usage_stats":true}`},
	{"thought: a stop string in it", thought + `,"stop":["lo"]`},
	{"thought: the stop string that ends it", thought + `,"stop":["</think>"]`},
	{"thought: a budget", thinking + `,"thinking_token_budget":3,"max_tokens":16`},
	{"thought: then a form", thought + `,"response_format":{"type":"json_schema","json_schema":{"name":"c","schema":{"enum":["red","green"]}}}`},
	{"thought: then a required call", thought + `,"tools":[` + look + `],"tool_choice":"required",` + once},
	{"thought: then a named call", thought + `,"tools":[` + look + `],` + named + `,` + once},
	{"thought: then a call", thinking + `,"tools":[` + look +
		`],"logit_bias":{"9707":100,"151666":90,"151657":89},"frequency_penalty":2,"presence_penalty":2,"max_tokens":64`},
	{"thought: a call in it", thinking + `,"tools":[` + look + `],` + calling},
}

// messagesOf is a chat whose messages go on after the first one.
func messagesOf(more string) string { return `"messages":[{"role":"user","content":"a"},` + more + `]` }

// called is a call of look in a message.
func called(id, arguments string) string {
	return `{"id":"` + id + `","type":"function","function":{"name":"look","arguments":` + arguments + `}}`
}
