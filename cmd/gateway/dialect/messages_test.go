package dialect

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/openai"
)

const asked = `{"model":"claude-x","max_tokens":100,"stream":true,"messages":[{"role":"user","content":"Hi"}]`

// begin returns an answer to a request of Messages with more fields.
func begin(t testing.TB, more string) Answer {
	t.Helper()
	r, err := Messages([]byte(asked+more+"}"), Options{ID: "r1"})
	require.NoError(t, err)
	return r.Answer
}

// chunks makes a chat's stream of deltas and of choices, which begin with another member than one of a delta.
func chunks(choices ...string) string {
	var b strings.Builder
	for _, c := range choices {
		b.WriteString(`data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,` + c + "}]}\n\n")
	}
	return b.String()
}

const (
	usageChunk = `data: {"id":"c","choices":[],"usage":{"prompt_tokens":30,"completion_tokens":9,"total_tokens":39,` +
		`"prompt_tokens_details":{"cached_tokens":16}}}` + "\n\n"
	doneChunk = "data: [DONE]\n\n"
)

// answers are chats' streams, as engines write them, and what a client reads.
var answers = []struct {
	name, more, stream string
	want               []readBlock
	stop, sequence     string
}{
	{
		name: "text of vLLM",
		stream: chunks(`"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null`,
			`"delta":{"content":"Good \"day\"\n"},"token_ids":[1,2],"finish_reason":null`, `"delta":{"content":"é😀\ud83d\ude00"}`,
			`"delta":{"content":""},"finish_reason":"stop","stop_reason":null`),
		want: []readBlock{{Kind: "text", Text: "Good \"day\"\né😀😀"}}, stop: "end_turn",
	},
	{
		name: "thought and text, in one chunk too",
		stream: chunks(`"delta":{"role":"assistant","reasoning":"Hm"}`, `"delta":{"reasoning":" yes","reasoning_content":" yes"}`,
			`"delta":{"reasoning_content":".","content":"So"}`, `"delta":{"content":" be it"},"finish_reason":"length"`),
		want: []readBlock{{Kind: "thinking", Text: "Hm yes."}, {Kind: "text", Text: "So be it"}}, stop: "max_tokens",
	},
	{
		name: "all in one chunk",
		stream: chunks(`"delta":{"tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"f","arguments":"{}"}}],"content":"x",` +
			`"reasoning_content":"y"},"finish_reason":"tool_calls"`),
		want: []readBlock{{Kind: "thinking", Text: "y"}, {Kind: "text", Text: "x"}, {Kind: "tool_use", ID: "a", Name: "f", Input: "{}"}},
		stop: "tool_use",
	},
	{
		name: "calls one after the other",
		stream: chunks(`"delta":{"content":"\n\n","tool_calls":[]}`,
			`"delta":{"tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"f","arguments":""}}]}`,
			`"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{\"x\": \"}\\\""}}]}`,
			`"delta":{"tool_calls":[{"index":0,"function":{"arguments":"\"}"}}]}`,
			`"delta":{"tool_calls":[{"index":1,"id":"b","type":"function","function":{"name":"g","arguments":"{\"y\":[1,"}}]}`,
			`"delta":{"tool_calls":[{"index":1,"function":{"arguments":"2]}"}}]}`,
			`"delta":{"content":"end"}`, `"delta":{},"finish_reason":"tool_calls"`),
		want: []readBlock{{Kind: "text", Text: "\n\n"}, {Kind: "tool_use", ID: "a", Name: "f", Input: `{"x": "}\""}`},
			{Kind: "tool_use", ID: "b", Name: "g", Input: `{"y":[1,2]}`}, {Kind: "text", Text: "end"}},
		stop: "tool_use",
	},
	{
		name: "calls among one another, and text among them",
		stream: chunks(`"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{\"x\":"}},`+
			`{"index":1,"id":"b","function":{"name":"g","arguments":"{"}}]}`, `"delta":{"content":"A"}`,
			`"delta":{"tool_calls":[{"index":1,"function":{"arguments":"}"}},{"index":2,"id":"c","function":{"name":"h"}}]}`,
			`"delta":{"content":"B"}`, `"delta":{"tool_calls":[{"index":0,"function":{"arguments":"1}"}},{"index":1,"function":{"arguments":" "}}]}`,
			`"delta":{"content":"C"}`, `"delta":{},"finish_reason":"stop"`),
		want: []readBlock{{Kind: "tool_use", ID: "a", Name: "f", Input: `{"x":1}`}, {Kind: "tool_use", ID: "b", Name: "g", Input: "{}"},
			{Kind: "text", Text: "A"}, {Kind: "tool_use", ID: "c", Name: "h"}, {Kind: "text", Text: "BC"}},
		stop: "tool_use",
	},
	{
		name:   "a call without an id, whose name comes late",
		stream: chunks(`"delta":{"tool_calls":[{"index":0,"function":{"arguments":"{}"}}]}`, `"delta":{"tool_calls":[{"index":0,"function":{"name":"f"}}]}`),
		want:   []readBlock{{Kind: "tool_use", ID: "toolu_r1_0", Name: "f", Input: "{}"}}, stop: "tool_use",
	},
	{
		name: "vLLM's stop string", more: `,"stop_sequences":["END","É"]`,
		stream: chunks(`"delta":{"content":"x"}`, `"delta":{},"finish_reason":"stop","stop_reason":"\u00c9"`),
		want:   []readBlock{{Kind: "text", Text: "x"}}, stop: "stop_sequence", sequence: "É",
	},
	{
		name: "SGLang's stop string cuts a call", more: `,"stop_sequences":["END"]`,
		stream: chunks(`"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"f","arguments":"{\"x\":"}}]}`,
			`"delta":{},"finish_reason":"stop","matched_stop":"END"`),
		want: []readBlock{{Kind: "tool_use", ID: "a", Name: "f", Input: `{"x":`}}, stop: "stop_sequence", sequence: "END",
	},
	{
		name: "a token or a string of the template's own ends it", more: `,"stop_sequences":["END"]`,
		stream: chunks(`"delta":{"content":"x"}`, `"delta":{},"finish_reason":"stop","stop_reason":151643,"matched_stop":"<|im_end|>"`),
		want:   []readBlock{{Kind: "text", Text: "x"}}, stop: "end_turn",
	},
	{name: "nothing", stream: "", stop: "end_turn"},
	{name: "a refusal", stream: chunks(`"delta":{"refusal":"No."},"finish_reason":"content_filter"`), want: []readBlock{{Kind: "text", Text: "No."}}, stop: "refusal"},
}

func TestMessagesStream(t *testing.T) {
	for _, c := range answers {
		t.Run(c.name, func(t *testing.T) {
			stream := ": ping\n\n" + c.stream + ": ping\n" + usageChunk + doneChunk
			whole := begin(t, c.more).Events(nil, []byte(stream))
			var r messagesReader
			require.NoError(t, r.read(whole))
			require.True(t, r.ended)
			for i := range r.Blocks {
				assert.Equal(t, r.Blocks[i].Kind == "thinking", r.Blocks[i].Signature != "")
				r.Blocks[i].Signature = ""
			}
			assert.Equal(t, c.want, r.Blocks)
			assert.Equal(t, c.stop, r.Stop)
			assert.Equal(t, c.sequence, r.Sequence)
			assert.Equal(t, "claude-x", r.Model)
			assert.Positive(t, r.First["input_tokens"], "an estimate")
			assert.Equal(t, map[string]int{"input_tokens": 14, "cache_read_input_tokens": 16, "cache_creation_input_tokens": 0, "output_tokens": 9}, r.Usage)
			assert.Empty(t, begin(t, "").Events(nil, nil))

			for cut := range stream { // pieces of any length, a ping between two, and an end at every byte
				a := begin(t, c.more)
				a.Prompt(31)
				out := a.Ping(a.Events(nil, []byte(stream[:cut])))
				cutOff := a.Fail(out[:len(out):len(out)], openai.BadGateway("worker_died", "the worker died"))
				var r messagesReader
				require.NoError(t, r.read(cutOff), "cut at %d", cut)
				require.True(t, r.ended && r.Failed == "api_error" && !r.stopped)
				require.Empty(t, a.Events(a.Ping(a.Fail(nil, openai.Internal())), []byte(stream[cut:])))
				if r.begun {
					require.Equal(t, 31, r.First["input_tokens"])
				}

				a = begin(t, c.more)
				out = a.Events(a.Ping(a.Events(nil, []byte(stream[:cut]))), []byte(stream[cut:]))
				out = a.Fail(a.Ping(out), openai.Internal())
				require.Equal(t, string(whole), strings.Replace(string(out), "event: ping\ndata: {\"type\":\"ping\"}\n\n", "", 1))
			}
		})
	}
}

func TestMessagesWhole(t *testing.T) {
	for _, c := range answers {
		t.Run(c.name, func(t *testing.T) {
			var r messagesReader
			require.NoError(t, r.read(begin(t, c.more).Events(nil, []byte(c.stream+usageChunk+doneChunk))))
			message := map[string]any{"role": "assistant", "content": nil}
			var calls []map[string]any
			for _, b := range r.Blocks {
				switch b.Kind {
				case "text":
					text, _ := message["content"].(string)
					message["content"] = text + b.Text
				case "thinking":
					message["reasoning_content"] = b.Text
				case "tool_use":
					calls = append(calls, map[string]any{"id": b.ID, "type": "function", "function": map[string]any{"name": b.Name, "arguments": b.Input}})
				}
			}
			message["tool_calls"] = calls
			choice := map[string]any{"index": 0, "message": message, "finish_reason": "stop", "stop_reason": c.sequence}
			if c.stop == "max_tokens" {
				choice["finish_reason"] = "length"
			} else if c.stop == "refusal" {
				choice["finish_reason"] = "content_filter"
			}
			body, err := json.Marshal(map[string]any{"id": "c", "object": "chat.completion", "choices": []any{choice},
				"usage": map[string]any{"prompt_tokens": 30, "completion_tokens": 9, "prompt_tokens_details": map[string]any{"cached_tokens": 16}}})
			require.NoError(t, err)
			out, err := begin(t, c.more).Whole(nil, body)
			require.NoError(t, err)
			got := readMessage(t, out)
			assert.Equal(t, c.stop, got.Stop)
			assert.Equal(t, c.sequence, got.Sequence)
			assert.Equal(t, r.Usage, got.Usage)
			text, calling := "", 0
			for _, b := range got.Blocks {
				switch b.Kind {
				case "tool_use":
					require.True(t, json.Valid([]byte(b.Input)))
					if json.Valid([]byte(calls[calling]["function"].(map[string]any)["arguments"].(string))) {
						assert.Equal(t, calls[calling]["function"].(map[string]any)["arguments"], b.Input)
					} else {
						assert.Equal(t, "{}", b.Input, "arguments that are no object")
					}
					calling++
				case "text":
					text += b.Text
				}
			}
			want, _ := message["content"].(string)
			assert.Equal(t, want, text)
			assert.Len(t, calls, calling)
		})
	}
}

func TestMessagesFail(t *testing.T) {
	for _, c := range []struct{ stream, want string }{
		{`data: {"error":{"message":"busy","type":"overloaded_error","code":"server_is_overloaded"}}`, "overloaded_error"},
		{`data: {"object":"error","message":"no","type":"BadRequestError","code":400}`, "invalid_request_error"},
		{`data: {"error":{"message":"gone"}}`, "api_error"},
		{`data: {"choices":[{"index":0,"delta":{},"finish_reason":"abort"}]}`, "api_error"},
		{`data: {"choices":[{"index":0,"delta":{"content":"\ud800"}}]}`, "api_error"},
		{"data: <html>", "api_error"},
	} {
		for _, before := range []string{"", chunks(`"delta":{"content":"x"}`)} {
			var r messagesReader
			require.NoError(t, r.read(begin(t, "").Events(nil, []byte(before+c.stream+"\n\n"+before+doneChunk))), c.stream)
			assert.Equal(t, c.want, r.Failed, c.stream)
			assert.Equal(t, before != "", r.begun)
		}
		_, err := begin(t, "").Whole(nil, []byte(strings.TrimPrefix(c.stream, "data: ")))
		var e *openai.Error
		assert.True(t, errors.As(err, &e) && e.Status >= 400, c.stream)
	}
}

func TestMessagesErrors(t *testing.T) {
	retry := time.Second
	for _, c := range []struct {
		e      *openai.Error
		status int
		kind   string
	}{
		{openai.BadRequest("x", "x"), 400, "invalid_request_error"},
		{openai.Unauthorized(), 401, "authentication_error"},
		{openai.NotFoundModel("m"), 404, "not_found_error"},
		{openai.RequestTimeout(retry), 408, "timeout_error"},
		{openai.TooLarge(1), 413, "request_too_large"},
		{&openai.Error{Status: 422}, 400, "invalid_request_error"},
		{openai.SlowDown(retry, "x"), 429, "rate_limit_error"},
		{openai.Internal(), 500, "api_error"},
		{openai.BadGateway("x", "x"), 502, "api_error"},
		{openai.Unavailable("x", "x"), 503, "api_error"},
		{openai.Overloaded(retry, "x"), 529, "overloaded_error"},
		{openai.GatewayTimeout("x", "x"), 504, "timeout_error"},
	} {
		assert.Equal(t, c.status, MessagesStatus(c.e))
		assert.JSONEq(t, `{"type":"error","error":{"type":"`+c.kind+`","message":`+string(openai.AppendQuoted(nil, c.e.Message))+`},"request_id":"r"}`,
			string(AppendMessagesError(nil, c.e, "r")))
	}
}
