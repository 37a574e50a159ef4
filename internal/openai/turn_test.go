package openai

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// asked is a chat whose client will go on with it.
const asked = `{"model":"m","messages":[{"role":"user","content":"Is it cold?"}],"temperature":0.5,"tools":[]}`

// event is one of a stream, of that delta.
func event(delta string) string {
	return `data: {"choices":[{"index":0,"delta":` + delta + `}]}` + "\n\n"
}

// The next turn's prompt is the conversation with the answer, as clients of OpenAI's API send it: its text without the
// reasoning, its tool calls, and a result for each of them.
func TestNextTurn(t *testing.T) {
	for _, c := range []struct {
		name, answer string
		stream       bool
		want         string // the messages that are added; empty: the next prompt is not known
	}{
		{"text", `{"choices":[{"index":0,"message":{"role":"assistant","content":"Yes, <0\n"}}]}`, false,
			`[{"role":"assistant","content":"Yes, <0\n"},{"role":"user","content":""}]`},
		{"streamed text", event(`{"role":"assistant","content":""}`) + event(`{"reasoning_content":"Hm"}`) + event(`{"content":"Y"}`) +
			event(`{"content":"es"}`) + `data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}` +
			"\n\ndata: [DONE]\n\n", true, `[{"role":"assistant","content":"Yes"},{"role":"user","content":""}]`},
		{"tool calls", `{"choices":[{"index":0,"message":{"role":"assistant","content":null,"tool_calls":[` +
			`{"id":"a","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}},` +
			`{"id":"b","type":"function","function":{"name":"g","arguments":"{}"}}]}}]}`, false,
			`[{"role":"assistant","content":"","tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}},` +
				`{"id":"b","type":"function","function":{"name":"g","arguments":"{}"}}]},` +
				`{"role":"tool","content":"","tool_call_id":"a"},{"role":"tool","content":"","tool_call_id":"b"}]`},
		{"streamed tool calls", event(`{"content":"Look:"}`) +
			event(`{"tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"f","arguments":""}}]}`) +
			event(`{"tool_calls":[{"index":0,"function":{"arguments":"{\"x\""}}]}`) +
			event(`{"tool_calls":[{"index":0,"function":{"arguments":":1}"}}]}`) +
			event(`{"tool_calls":[{"index":1,"id":"b","type":"function","function":{"name":"g","arguments":"{}"}}]}`), true,
			`[{"role":"assistant","content":"Look:","tool_calls":[{"id":"a","type":"function","function":{"name":"f","arguments":"{\"x\":1}"}},` +
				`{"id":"b","type":"function","function":{"name":"g","arguments":"{}"}}]},` +
				`{"role":"tool","content":"","tool_call_id":"a"},{"role":"tool","content":"","tool_call_id":"b"}]`},
		{"nothing", `{"choices":[{"index":0,"message":{"role":"assistant","content":""}}]}`, false, ""},
		{"no JSON", `502`, false, ""},
		{"calls of another shape", `{"choices":[{"index":0,"message":{"tool_calls":[{"id":7}]}}]}`, false, ""},
		{"more than is kept", `{"choices":[{"index":0,"message":{"content":"` + strings.Repeat("a", longestTurn) + `"}}]}`, false, ""},
		{"a longer stream than is kept", strings.Repeat(event(fmt.Sprintf(`{"content":%q}`, strings.Repeat("a", 1000))), 1100), true, ""},
	} {
		turn := NewTurn(c.stream)
		for at := 0; at < len(c.answer); at += 700 { // writes are not cut where events are
			turn.Write([]byte(c.answer[at:min(at+700, len(c.answer))]))
		}
		next, err := scanned(t, Chat, asked).Next(turn)
		if c.want == "" {
			assert.Error(t, err, c.name)
			continue
		}
		require.NoError(t, err, c.name)
		var got, want struct{ Messages []any }
		require.NoError(t, json.Unmarshal(next.Raw, &got), c.name)
		require.NoError(t, json.Unmarshal([]byte(`{"messages":`+c.want+`}`), &want), c.name)
		require.NotEmpty(t, got.Messages, c.name)
		assert.Equal(t, want.Messages, got.Messages[1:], c.name)
		assert.Equal(t, []any{"m", true, true}, []any{next.Model, next.Has("temperature"), next.Has("tools")}, c.name)
	}
	for name, body := range map[string]string{
		"a message that goes on": `{"model":"m","messages":[{"role":"assistant","content":"I"}],` +
			`"continue_final_message":true,"add_generation_prompt":false}`,
		"several answers": `{"model":"m","messages":[{"role":"user","content":"I"}],"n":2}`,
		"an image": `{"model":"m","messages":[{"role":"user","content":[` +
			`{"type":"image_url","image_url":{"url":"data:image/png;base64,AA=="}}]}]}`,
	} {
		turn := NewTurn(false)
		turn.Write([]byte(`{"choices":[{"index":0,"message":{"content":"x"}}]}`))
		_, err := scanned(t, Chat, body).Next(turn)
		assert.Error(t, err, name)
	}
}

// FuzzNextTurn: whatever an engine answers, the next turn's prompt is a chat or unknown.
func FuzzNextTurn(f *testing.F) {
	f.Add([]byte(event(`{"content":"Yes"}`)), true)
	f.Add([]byte(event(`{"tool_calls":[{"index":9,"id":"\ud800","function":{"name":null}}]}`)), true)
	f.Add([]byte(`{"choices":[{"message":{"tool_calls":[{"index":-1}]}}]}`), false)
	f.Fuzz(func(t *testing.T, answer []byte, stream bool) {
		turn := NewTurn(stream)
		turn.Write(answer)
		r, err := Limits{}.Scan(Chat, []byte(asked))
		require.NoError(t, err)
		if next, err := r.Next(turn); err == nil {
			assert.True(t, json.Valid(next.Raw))
			assert.GreaterOrEqual(t, len(next.Prompt.Messages()), 3)
		}
	})
}
