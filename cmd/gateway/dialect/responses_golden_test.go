package dialect

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/openai"
)

// What the engines' own converters make of the same requests differs in what is listed here, each with its reason.
var responsesRequestDifferences = []difference{
	{"vllm sglang", `[-+] \.(model|max_completion_tokens|parallel_tool_calls) |- \.tools\[\d\]\.function\.(strict false|description null)$`, "recorded are messages and tools"},
	{"vllm", `\+ \.tool_choice`, "recorded are messages and tools"},
	{"sglang", `\+ \.tool_choice "auto"$`, "the default"},
	{"vllm sglang", `\+ \.messages\[\d\]\.content ""$`, "OpenAI's form of calls without a text is null, and templates add to it"},
	{"vllm sglang", `^system and developer lead`, "one system message here: many templates take one only; SGLang labels developers'"},
	{"vllm sglang", `^developer between`, "system here: few templates have the role; SGLang labels it"},
	{"vllm sglang", `\.messages\[\d\]\.type "message"$|\.content\[\d\]\.(type|text|image_url|detail)`, "parts in the chat's words here; one text is a string, and the default detail is left out"},
	{"vllm sglang", `^(one text part|agent's turn|an answer that was cut short): . \.messages\[\d\]\.content`, "a text is a string here, for templates without parts"},
	{"vllm", `\.reasoning(_content)? "`, "vLLM takes both names"},
	{"vllm", `^two texts of the assistant`, "one message here and in SGLang, as many templates demand"},
	{"vllm sglang", `\.input\.description "`, "Codex describes its tools"},
	{"vllm", `^grammars`, "vLLM refuses them"},
	{"sglang", `^grammars: . \.tools\[\d\]\.function\.(description|parameters\.properties\.input\.pattern) "`, "a regular expression is a pattern too here"},
	{"vllm", `^namespaces: . \.tools\[0\]\.function\.description`, "vLLM drops the namespace's description"},
	{"sglang", `^namespaces`, "SGLang drops them, but for one model"},
	{"vllm", `^thought to bring back`, "vLLM refuses a history of OpenAI's"},
	{"vllm", `^cut arguments: . \.messages\[1\]\.tool_calls\[0\]\.function\.arguments`, "the template would fail"},
	{"vllm", `^an answer that was cut short: \+ \.add_generation_prompt false$`, "vLLM adds it when it renders"},
	{"sglang", `^an answer that was cut short`, "SGLang would make it a message of the user's"},
	{"vllm sglang", `^a reference`, "refused in another way"},
}

func TestResponsesRequestsAsEnginesConvertThem(t *testing.T) {
	cases, used := load[json.RawMessage](t, "responses/cases.json"), map[int]bool{}
	for _, engine := range []string{"vllm", "sglang"} {
		theirs := load[json.RawMessage](t, "responses/"+engine+".json")
		require.Len(t, theirs.Requests, len(cases.Requests))
		for name, body := range cases.Requests {
			r, err := Responses(body, Options{ID: "r1"})
			chat := json.RawMessage(`{"refused":"here"}`)
			if err == nil {
				chat = r.Chat
			}
			differ(t, engine, name, flat(t, "", chat), flat(t, "", theirs.Requests[name]), responsesRequestDifferences, used)
		}
	}
	for i, d := range responsesRequestDifferences {
		assert.True(t, used[i], "no case shows: %s", d.line)
	}
}

// responsesStreamDifferences are those of the events of items, deltas of one kind joined.
var responsesStreamDifferences = []difference{
	{"vllm", `"type":"custom_tool_call"`, "AI SDK's schema has a status of custom calls"},
	{"vllm", `^no arguments`, "Codex parses them"},
	{"vllm", `^a call cut short`, "clients run what is done"},
	{"vllm", `^calls among one another`, "vLLM fails"},
}

func TestResponsesStreamsAsVLLMConvertsThem(t *testing.T) {
	type stream struct {
		Reason string
		Deltas []json.RawMessage
	}
	cases, used := load[stream](t, "responses/cases.json"), map[int]bool{}
	theirs := load[[]map[string]any](t, "responses/vllm.json")
	for name, c := range cases.Streams {
		var b strings.Builder
		for _, d := range c.Deltas {
			b.WriteString(chunks(`"delta":` + string(d)))
		}
		if c.Reason == "" {
			c.Reason = "stop"
		}
		b.WriteString(chunks(`"delta":{},"finish_reason":"` + c.Reason + `"`))
		out := respond(t, `,"tools":[{"type":"function","name":"f"},{"type":"custom","name":"patch"},{"type":"namespace","name":"docs",`+
			`"description":"","tools":[{"type":"function","name":"find"}]}]`).Events(nil, []byte(b.String()+doneChunk))
		var ours []map[string]any
		for _, event := range strings.Split(string(out), "\n\n") {
			_, data, _ := strings.Cut(event, "\ndata: ")
			var e map[string]any
			if json.Unmarshal([]byte(data), &e) == nil && e["response"] == nil {
				ours = append(ours, e)
			}
		}
		differ(t, "vllm", name, eventLines(t, ours), eventLines(t, theirs.Streams[name]), responsesStreamDifferences, used)
	}
	for i, d := range responsesStreamDifferences {
		assert.True(t, used[i], "no case shows: %s", d.line)
	}
}

// eventLines makes events comparable: without what is random, empty or null, the deltas of a row joined.
func eventLines(t *testing.T, events []map[string]any) (lines []string) {
	t.Helper()
	var tidy func(v any) any
	tidy = func(v any) any {
		switch v := v.(type) {
		case map[string]any:
			for k, e := range v {
				if e = tidy(e); e == nil || k == "id" || k == "item_id" || k == "sequence_number" {
					delete(v, k)
				} else {
					v[k] = e
				}
			}
		case []any:
			if len(v) == 0 {
				return nil
			}
			for i := range v {
				v[i] = tidy(v[i])
			}
		}
		return v
	}
	for i := 0; i < len(events); i++ {
		e := events[i]
		for i+1 < len(events) && e["delta"] != nil && events[i+1]["type"] == e["type"] {
			i++
			e["delta"] = e["delta"].(string) + events[i]["delta"].(string)
		}
		raw, err := json.Marshal(tidy(e))
		require.NoError(t, err)
		lines = append(lines, fmt.Sprintf("%d %s", len(lines), raw))
	}
	return lines
}

// refusals are bodies that are refused, by the field that is to blame.
var refusals = []struct {
	more   string
	status int
	param  string
	code   string
}{
	{`"previous_response_id":"resp_1"`, 400, "previous_response_id", "previous_response_not_found"},
	{`"conversation":{"id":"conv_1"}`, 400, "conversation", "unsupported_parameter"},
	{`"background":true`, 501, "background", "unsupported_parameter"},
	{`"prompt":{"id":"pmpt_1"}`, 501, "prompt", "unsupported_parameter"},
	{`"background":1`, 501, "background", "unsupported_parameter"},
	{`"instructions":1`, 400, "instructions", ""},
	{`"instructions":"a","instructions":"b"`, 400, "instructions", ""},
	{`"max_output_tokens":0`, 400, "max_output_tokens", ""},
	{`"max_output_tokens":"1"`, 400, "max_output_tokens", ""},
	{`"metadata":[]`, 400, "metadata", ""},
	{`"reasoning":"high"`, 400, "reasoning", ""},
	{`"reasoning":{"effort":1}`, 400, "reasoning.effort", ""},
	{`"text":{"format":{"type":"xml"}}`, 400, "text.format.type", ""},
	{`"text":{"format":{"type":"json_schema","name":"n"}}`, 400, "text.format.schema", ""},
	{`"tools":{}`, 400, "tools", ""},
	{`"tools":[{"name":"f"}]`, 400, "tools[0].type", ""},
	{`"tools":[{"type":"function"}]`, 400, "tools[0].name", ""},
	{`"tools":[{"type":"custom","name":"c","format":{"type":"grammar"}}]`, 400, "tools[0].format.syntax", ""},
	{`"tools":[{"type":"namespace","name":"n","tools":[{"type":"function"}]}]`, 400, "tools[0].tools[0].name", ""},
	{`"tool_choice":"required"`, 400, "tool_choice", ""},
	{`"tools":[{"type":"web_search"}],"tool_choice":{"type":"web_search"}`, 400, "tool_choice", ""},
	{`"tool_choice":"any"`, 400, "tool_choice", ""},
	{`"tool_choice":1`, 400, "tool_choice", ""},
	{`"tool_choice":{"type":"allowed_tools","mode":"auto"},"tools":[{"type":"function","name":"f"}]`, 400, "tool_choice.tools", ""},
	{`"input":1`, 400, "input", ""},
	{`"input":[]`, 400, "input", ""},
	{`"input":[{"role":"robot","content":"x"}]`, 400, "input[0].role", ""},
	{`"input":[{"role":"user"}]`, 400, "input[0].content", ""},
	{`"input":[{"role":"user","content":[{"type":"input_file","file_id":"f"}]}]`, 400, "input[0].content[0]", ""},
	{`"input":[{"role":"user","content":[{"type":"input_image","file_id":"f"}]}]`, 400, "input[0].content[0]", ""},
	{`"input":[{"role":"user","content":[{"type":"x"}]}]`, 400, "input[0].content[0].type", ""},
	{`"input":[{"type":"item_reference","id":"msg_1"}]`, 400, "input[0]", ""},
	{`"input":[{"type":"thing"}]`, 400, "input[0].type", ""},
	{`"input":[{"type":"compaction","encrypted_content":"gAAAA"}]`, 400, "input[0]", ""},
	{`"input":[{"type":"function_call","name":"f","arguments":"{}"}]`, 400, "input[0].call_id", ""},
	{`"input":[{"type":"function_call_output","output":"x"}]`, 400, "input[0].call_id", ""},
}

func TestResponsesRefuses(t *testing.T) {
	for _, c := range refusals {
		body := `{"model":"m",` + c.more
		if !strings.Contains(c.more, `"input":`) {
			body += `,"input":"Hi"`
		}
		_, err := Responses([]byte(body+"}"), Options{})
		var e *openai.Error
		if assert.ErrorAs(t, err, &e, c.more) {
			assert.Equal(t, c.param, e.Param, c.more)
			assert.Equal(t, c.status, e.Status, c.more)
			assert.Equal(t, c.code, e.Code, c.more)
			assert.Contains(t, e.Message, c.param)
		}
	}
	_, err := Responses([]byte(`{"input":"Hi"}`), Options{})
	assert.ErrorContains(t, err, "model is required")
	_, err = Responses([]byte(`{"model":"m","input":"Hi"}`), Options{MaxBytes: 10})
	var e *openai.Error
	assert.True(t, assert.ErrorAs(t, err, &e) && e.Status == 413)
}
