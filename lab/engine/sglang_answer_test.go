package engine

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A stream's chunks: the role, words, a thought and a call, the end by itself, then the usage. TestChats adds them up.
func TestSGLangStreams(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		sglangPair(b, nil)
		tools := []any{map[string]any{"type": "function", "function": map[string]any{"name": "look"}},
			map[string]any{"type": "function", "function": map[string]any{"name": "go"}}}
		ask := func(more ...any) map[string]any {
			return chat(12, append([]any{"model", "anything", "stream", true, "stream_options", map[string]any{"include_usage": true},
				"unknown", 1}, more...)...)
		}
		for _, c := range []struct {
			more  []any
			at    int // from the end where it is below 0
			parts []string
		}{
			{nil, 0, []string{`"delta":{"role":"assistant","content":"","reasoning_content":null}`, `"finish_reason":null,"matched_stop":null`}},
			{nil, -3, []string{`"delta":{"reasoning_content":null}`, `"finish_reason":"length"`}},
			{nil, -2, []string{`"choices":[]`, `"completion_tokens":12`, `"reasoning_tokens":0`}},
			{[]any{"chat_template_kwargs", map[string]any{"enable_thinking": true}}, 1, []string{`"delta":{"reasoning_content":"`}},
			{[]any{"tools", tools, "tool_choice", map[string]any{"type": "function", "function": map[string]any{"name": "go"}}}, 1,
				[]string{`"tool_calls":[{`, `"name":"go"`, `"id":"call_`}},
		} {
			events := b.events(b.send(t.Context(), "alone", chats, ask(c.more...)))
			for _, part := range c.parts {
				assert.Contains(t, string(events[(len(events)+c.at)%len(events)].data), part)
			}
			assert.True(t, c.more != nil || len(events) == 1+12+3 && string(events[15].data) == "[DONE]", "%d events", len(events))
		}
		b.wants("alone", chats, ask("tools", tools, "tool_choice", "required", "stream", false), http.StatusOK, `"name":"look"`, `"content":""`)
		for name, more := range map[string][]any{
			"return_token_ids":        {"return_token_ids", true},
			"return_prompt_token_ids": {"return_prompt_token_ids", true},
			"LoRA":                    {"model", "base:adapter"},
		} {
			b.wants("alone", chats, ask(more...), http.StatusBadRequest, name)
		}
	})
}

// input_ids stand in a chat's prompt's place; a last message of the assistant's is the user's unless it is to be
// continued.
func TestSGLangChatPrompts(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		sglangPair(b, nil)
		ask := func(role string, more ...any) map[string]any {
			return chat(5, append([]any{"messages",
				[]map[string]string{{"role": "user", "content": "hi"}, {"role": role, "content": "well"}}}, more...)...)
		}
		text := func(path string, v any) string {
			t.Helper()
			status, w := b.ask("alone", path, v)
			require.Equal(t, 200, status, "%+v", w)
			return w.Choices[0].Text + w.Choices[0].Message.Content
		}
		twice := ask("user", "chat_template_kwargs", map[string]any{"tools": 5})
		b.wants("alone", chats, twice, 500, `"message":"Internal server error: 'tools'"`)
		prompt := ids(4, 50)
		assert.Equal(t, text(completions, body(prompt, 5)), text(chats, ask("user", "input_ids", prompt)), "input_ids")
		asUser := text(chats, ask("user"))
		if text(chats, ask("assistant")) != asUser || text(chats, ask("assistant", "continue_final_message", true)) == asUser {
			t.Error("a last message of the assistant's")
		}
		for _, wrong := range []any{"x", []string{"x"}, []float64{1.5}} {
			b.wants("alone", chats, ask("user", "input_ids", wrong), 400)
		}
	})
}
