package dialect

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/openai"
)

// respond returns an answer to a request of Responses with more fields.
func respond(t testing.TB, more string) Answer {
	t.Helper()
	r, err := Responses([]byte(`{"model":"m-x","stream":true,"input":"Hi"`+more+"}"), Options{ID: "r1", Now: 7})
	require.NoError(t, err)
	return r.Answer
}

// codexTools are the kinds of tools that Codex sends.
const codexTools = `,"tools":[{"type":"function","name":"f","parameters":{"type":"object"}},{"type":"custom","name":"apply","description":"Patch.",` +
	`"format":{"type":"grammar","syntax":"lark","definition":"start: /x/"}},{"type":"namespace","name":"mcp__docs","description":"Docs.",` +
	`"tools":[{"type":"function","name":"find","parameters":{}},{"type":"custom","name":"run"}]},{"type":"namespace","name":"functions",` +
	`"description":"","tools":[{"type":"custom","name":"exec"}]},{"type":"local_shell"},{"type":"shell"},{"type":"apply_patch"},` +
	`{"type":"web_search"},{"type":"tool_search","execution":"client","parameters":{"type":"object"}}]`

// called makes a chat's deltas of a whole call, its arguments in pieces.
func called(index, id, name string, arguments ...string) string {
	var b strings.Builder
	for i, a := range arguments {
		head := ""
		if i == 0 {
			head = `"id":"` + id + `","type":"function",`
		}
		b.WriteString(chunks(`"delta":{"tool_calls":[{"index":` + index + `,` + head + `"function":{"name":"` + name + `","arguments":` +
			string(openai.AppendQuoted(nil, a)) + `}}]}`))
	}
	return b.String()
}

// responsesAnswers are chats' streams, as engines write them, and what a client reads.
var responsesAnswers = []struct {
	name, more, stream string
	want               []readItem
	status, reason     string
}{
	{
		name: "text of vLLM",
		stream: chunks(`"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null`,
			`"delta":{"content":"Good \"day\"\n"},"token_ids":[1,2],"finish_reason":null`, `"delta":{"content":"é😀\ud83d\ude00"}`,
			`"delta":{"content":""},"finish_reason":"stop","stop_reason":null`),
		want: []readItem{{Type: "message", Text: "Good \"day\"\né😀😀"}}, status: "completed",
	},
	{
		name: "thought and text, in one chunk too",
		stream: chunks(`"delta":{"role":"assistant","reasoning":"Hm"}`, `"delta":{"reasoning":" yes","reasoning_content":" yes"}`,
			`"delta":{"reasoning_content":".","content":"So"}`, `"delta":{"content":" be it"},"finish_reason":"length"`),
		want:   []readItem{{Type: "reasoning", Text: "Hm yes."}, {Type: "message", Text: "So be it", Status: "incomplete"}},
		status: "incomplete", reason: "max_output_tokens",
	},
	{
		name: "a summary, and the thought to bring back", more: `,"reasoning":{"summary":"auto"},"include":["reasoning.encrypted_content"]`,
		stream: chunks(`"delta":{"reasoning":"H\n"}`, `"delta":{"reasoning":"m"}`, `"delta":{"content":"x"},"finish_reason":"stop"`),
		want:   []readItem{{Type: "reasoning", Text: "H\nm", Sealed: sealed(`H\nm`)}, {Type: "message", Text: "x"}},
		status: "completed",
	},
	{
		name: "probabilities", more: `,"top_logprobs":1`,
		stream: chunks(`"delta":{"content":"a"},"logprobs":{"content":[{"token":"a","logprob":-1,"bytes":[97],"top_logprobs":[]}]}`,
			`"delta":{"content":"bc"},"logprobs":{"content":[{"token":"b","logprob":-1,"bytes":[98],"top_logprobs":[]},`+
				`{"token":"c","logprob":-1,"bytes":[99],"top_logprobs":[]}]}`),
		want: []readItem{{Type: "message", Text: "abc", Probs: 3}}, status: "completed",
	},
	{
		name:   "a refusal after a text",
		stream: chunks(`"delta":{"content":"I"}`, `"delta":{"refusal":"No"}`, `"delta":{"refusal":"."},"finish_reason":"content_filter"`),
		want:   []readItem{{Type: "message", Text: "I"}, {Type: "message", Text: "No.", Status: "incomplete"}}, status: "incomplete", reason: "content_filter",
	},
	{
		name: "calls, and text among them", more: codexTools,
		stream: chunks(`"delta":{"content":"A"}`) + called("0", "a", "f", `{"x": "`, `}\"`, `"}`) + chunks(`"delta":{"content":"B"}`) +
			called("1", "b", "g", "") + chunks(`"delta":{},"finish_reason":"tool_calls"`),
		want: []readItem{{Type: "message", Text: "A"}, {Type: "function_call", CallID: "a", Name: "f", Text: `{"x": "}\""}`},
			{Type: "message", Text: "B"}, {Type: "function_call", CallID: "b", Name: "g", Text: "{}"}},
		status: "completed",
	},
	{
		name: "calls among one another",
		stream: chunks(`"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{\"x\":"}},`+
			`{"index":1,"id":"b","function":{"name":"g","arguments":"{"}}]}`, `"delta":{"tool_calls":[{"index":1,"function":{"arguments":"}"}}]}`,
			`"delta":{"tool_calls":[{"index":0,"function":{"arguments":"1}"}}]}`, `"delta":{},"finish_reason":"stop"`),
		want:   []readItem{{Type: "function_call", CallID: "a", Name: "f", Text: `{"x":1}`}, {Type: "function_call", CallID: "b", Name: "g", Text: "{}"}},
		status: "completed",
	},
	{
		name: "names of namespaces", more: codexTools,
		stream: called("0", "a", "mcp__docs__find", "{}") + called("1", "b", "exec", `{"input":"ls"}`) + called("2", "c", "mcp__docs__run", `{"input":""}`),
		want: []readItem{{Type: "function_call", CallID: "a", Name: "find", Space: "mcp__docs", Text: "{}"},
			{Type: "custom_tool_call", CallID: "b", Name: "exec", Space: "functions", Text: "ls"},
			{Type: "custom_tool_call", CallID: "c", Name: "run", Space: "mcp__docs", Text: ""}},
		status: "completed",
	},
	{
		name: "a custom tool's input in pieces", more: codexTools,
		stream: called("0", "a", "apply", ` {"in`, `put": "*** Begin\`, `n\u00`, `e9\ud83d`, `\ude00\d\u0`, `0zz`+"\n\t", `\"end`, `"}`),
		want:   []readItem{{Type: "custom_tool_call", CallID: "a", Name: "apply", Text: "*** Begin\né😀" + `\d\u00zz` + "\n\t\"end"}}, status: "completed",
	},
	{
		name: "custom inputs that are none", more: codexTools,
		stream: called("0", "a", "apply", `{"x":1,"input":"y"}`) + called("1", "b", "apply", `{"patch":"p"}`) + called("2", "c", "apply", "raw \\ text"),
		want: []readItem{{Type: "custom_tool_call", CallID: "a", Name: "apply", Text: "y"},
			{Type: "custom_tool_call", CallID: "b", Name: "apply", Text: `{"patch":"p"}`},
			{Type: "custom_tool_call", CallID: "c", Name: "apply", Text: `raw \ text`}},
		status: "completed",
	},
	{
		name: "actions", more: codexTools,
		stream: called("0", "a", "local_shell", `{"command":["ls"],`, `"timeout_ms":5,"env":null,"x":1}`) +
			called("1", "b", "shell", `{"commands":["ls","pwd"]}`) + called("2", "c", "apply_patch", `{"type":"delete_file","path":"a"}`) +
			called("3", "d", "tool_search", `{"query":"q"}`) + called("4", "e", "local_shell", `{"command":"ls"}`),
		want: []readItem{{Type: "local_shell_call", CallID: "a", Raw: `"action":{"type":"exec","command":["ls"],"timeout_ms":5,"env":{}}`},
			{Type: "shell_call", CallID: "b", Raw: `"action":{"commands":["ls","pwd"]}`},
			{Type: "apply_patch_call", CallID: "c", Raw: `"operation":{"path":"a","type":"delete_file"}`},
			{Type: "tool_search_call", CallID: "d", Raw: `"execution":"client","arguments":{"query":"q"}`},
			{Type: "function_call", CallID: "e", Name: "local_shell", Text: `{"command":"ls"}`}},
		status: "completed",
	},
	{
		name: "arguments cut short", more: codexTools,
		stream: called("0", "a", "f", `{}`) + called("1", "b", "apply", `{"input":"x`) + called("2", "c", "f", "{}") +
			chunks(`"delta":{},"finish_reason":"length"`),
		want:   []readItem{{Type: "function_call", CallID: "a", Name: "f", Text: "{}"}, {Type: "custom_tool_call", CallID: "b", Name: "apply", Text: "x", Status: "open"}},
		status: "incomplete", reason: "max_output_tokens",
	},
	{
		name: "a call without an id, whose name comes late, and one without a name",
		stream: chunks(`"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{"}}]}`, `"delta":{"tool_calls":[{"index":0,"function":{"name":"f"}}]}`,
			`"delta":{"tool_calls":[{"index":0,"id":"late","function":{"arguments":"}"}}]}`) + called("1", "b", "", "{}"),
		want: []readItem{{Type: "function_call", CallID: "call_r1_0", Name: "f", Text: "{}"}}, status: "completed",
	},
	{name: "nothing", stream: chunks(`"delta":{},"finish_reason":"stop"`), status: "completed"},
}

// expect compares items with what was expected of them: unnamed fields are not compared, nor ids.
func expect(t *testing.T, want, got []readItem) {
	t.Helper()
	require.Len(t, got, len(want))
	for i, w := range want {
		g := got[i]
		assert.Contains(t, g.Raw, w.Raw)
		if g.Status == "" {
			g.Status = "open"
		}
		if w.Status == "" {
			w.Status = "completed"
		}
		g.ID, g.Raw, g.part, w.Raw = "", "", "", ""
		assert.Equal(t, w, g)
	}
}

func TestResponsesStream(t *testing.T) {
	for _, c := range responsesAnswers {
		t.Run(c.name, func(t *testing.T) {
			stream := ": ping\n\n" + c.stream + ": ping\n" + usageChunk + doneChunk
			whole := respond(t, c.more).Events(nil, []byte(stream))
			var r responsesReader
			require.NoError(t, r.read(whole))
			require.NoError(t, r.library(whole))
			require.True(t, r.ended)
			expect(t, c.want, r.Items)
			assert.Equal(t, c.status, r.Status)
			assert.Equal(t, c.reason, r.Reason)
			assert.Equal(t, "resp_r1", r.ID)
			assert.EqualValues(t, 7, r.Response["created_at"])
			assert.Equal(t, "m-x", r.Response["model"])
			assert.EqualValues(t, 30, r.Usage["input_tokens"])
			assert.EqualValues(t, 16, r.Usage["input_tokens_details"].(map[string]any)["cached_tokens"])
			assert.EqualValues(t, 39, r.Usage["total_tokens"])

			seen := map[string]bool{}
			for cut := range stream { // pieces of any length, a ping between two, and an end at every byte
				a := respond(t, c.more)
				out := a.Ping(a.Events(nil, []byte(stream[:cut])))
				cutOff := a.Fail(out[:len(out):len(out)], openai.BadGateway("worker_died", "the worker died"))
				if !seen[string(cutOff)] {
					seen[string(cutOff)] = true
					var r responsesReader
					require.NoError(t, r.read(cutOff), "cut at %d", cut)
					require.True(t, r.ended && r.Status == "failed" && r.Code == "worker_died")
					require.NoError(t, r.library(cutOff))
				}
				require.Empty(t, a.Events(a.Ping(a.Fail(nil, openai.Internal())), []byte(stream[cut:])))

				a = respond(t, c.more)
				out = a.Events(a.Ping(a.Events(nil, []byte(stream[:cut]))), []byte(stream[cut:]))
				out = a.Fail(a.Ping(out), openai.Internal())
				if !seen[string(out)] {
					seen[string(out)] = true
					var pinged responsesReader
					require.NoError(t, pinged.read(out), "cut at %d", cut)
					require.NoError(t, pinged.library(out))
					require.Equal(t, r.Response, pinged.Response)
					require.True(t, pinged.ended && pinged.sequence >= r.sequence)
				}
			}
		})
	}
}

// wholeOf makes a whole chat's answer of items as a stream brought them.
func wholeOf(t *testing.T, items []readItem, reason string, flat map[string]string) []byte {
	t.Helper()
	message := map[string]any{"role": "assistant"}
	calls := []any{}
	for _, it := range items {
		switch it.Type {
		case "message":
			text, _ := message["content"].(string)
			message["content"] = text + it.Text
		case "reasoning":
			message["reasoning"] = it.Text
		default:
			name, arguments := it.Name, it.Text
			if it.Type == "custom_tool_call" {
				quoted, _ := json.Marshal(it.Text)
				arguments = `{"input":` + string(quoted) + "}"
			}
			if it.Space != "" && it.Space != "functions" {
				name = it.Space + "__" + name
			}
			calls = append(calls, map[string]any{"id": it.CallID, "type": "function", "function": map[string]any{"name": name, "arguments": arguments}})
		}
	}
	message["tool_calls"] = calls
	body, err := json.Marshal(map[string]any{"id": "c", "choices": []any{map[string]any{"index": 0, "message": message, "finish_reason": reason}},
		"usage": map[string]any{"prompt_tokens": 30, "completion_tokens": 9}})
	require.NoError(t, err)
	return body
}

func TestResponsesWhole(t *testing.T) {
	for _, c := range responsesAnswers {
		t.Run(c.name, func(t *testing.T) {
			var r responsesReader
			require.NoError(t, r.read(respond(t, c.more).Events(nil, []byte(c.stream+doneChunk))))
			var want []readItem
			for _, it := range r.Items {
				if it.Status != "" && (it.Raw == "" || !strings.Contains(it.Type, "shell") && !strings.Contains(it.Type, "patch") && it.Type != "tool_search_call") {
					want = append(want, it)
				}
			}
			reason := map[string]string{"max_output_tokens": "length", "content_filter": "content_filter"}[c.reason]
			out, err := respond(t, c.more).Whole(nil, wholeOf(t, want, reason, nil))
			require.NoError(t, err)
			var response map[string]any
			require.NoError(t, json.Unmarshal(out, &response), "%s", out)
			require.NoError(t, checkResponse(response))
			assert.Equal(t, c.status, response["status"])
			kinds := map[string]string{}
			for _, it := range want {
				kinds[it.Type] += it.Text + "|"
			}
			for _, item := range response["output"].([]any) {
				data, _ := json.Marshal(item)
				text, raw, err := readOne(data, "")
				require.NoError(t, err, "%s", data)
				kinds[raw.Type] = strings.Replace(strings.ReplaceAll(kinds[raw.Type], "|", ""), text, "", 1)
			}
			for kind, left := range kinds {
				assert.Empty(t, left, kind)
			}
		})
	}
}

func TestResponsesFail(t *testing.T) {
	for _, c := range []struct{ stream, want string }{
		{`data: {"error":{"message":"busy","type":"overloaded_error","code":"server_is_overloaded"}}`, "server_is_overloaded"},
		{`data: {"object":"error","message":"This model's maximum context length is 5 tokens","type":"BadRequestError","code":400}`, "context_length_exceeded"},
		{`data: {"error":{"message":"gone"}}`, "server_error"},
		{`data: {"choices":[{"index":0,"delta":{},"finish_reason":"abort"}]}`, "aborted"},
		{`data: {"choices":[{"index":0,"delta":{"content":"\ud800"}}]}`, "invalid_answer"},
		{"data: <html>", "invalid_answer"},
	} {
		for _, before := range []string{"", chunks(`"delta":{"content":"x"}`), called("0", "a", "f", `{"x`)} {
			var r responsesReader
			out := respond(t, "").Events(nil, []byte(before+c.stream+"\n\n"+before+doneChunk))
			require.NoError(t, r.read(out), c.stream)
			require.NoError(t, r.library(out))
			assert.Equal(t, c.want, r.Code, c.stream)
			assert.Equal(t, "failed", r.Status)
		}
		_, err := respond(t, "").Whole(nil, []byte(strings.TrimPrefix(c.stream, "data: ")))
		var e *openai.Error
		assert.True(t, errors.As(err, &e) && e.Status >= 400, c.stream)
	}
}
