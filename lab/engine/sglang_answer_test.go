package engine

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A stream's chunks: the role, words, a thought and a call apart, the end by itself, then the usage.
func TestSGLangStreams(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		sglangPair(b, nil)
		ask := func(more ...any) map[string]any {
			return chat(12, append([]any{"model", "anything", "stream", true, "stream_options", map[string]any{"include_usage": true}, "unknown", 1}, more...)...)
		}
		stream := func(v map[string]any) (lines []string, words string) {
			for _, e := range b.events(b.send(t.Context(), "alone", chats, v)) {
				lines = append(lines, string(e.data))
				for _, ch := range e.Choices {
					words += ch.Delta.Content
				}
			}
			return lines, words
		}
		has := func(line string, parts ...string) {
			t.Helper()
			for _, part := range parts {
				assert.Contains(t, line, part, "no N in")
			}
		}
		plain, words := stream(ask())
		n := len(plain)
		has(plain[0], `"delta":{"role":"assistant","content":"","reasoning_content":null,"tool_calls":null}`, `"finish_reason":null,"matched_stop":null`)
		has(plain[n-3], `"delta":{"role":null,"content":null,"reasoning_content":null,"tool_calls":null}`, `"finish_reason":"length"`)
		has(plain[n-2], `"choices":[]`, `"completion_tokens":12`, `"reasoning_tokens":0`)
		assert.True(t, plain[n-1] == "[DONE]" && n == 1+12+3, "%d events: %v", n, plain)

		thought, rest := stream(ask("chat_template_kwargs", map[string]any{"enable_thinking": true}))
		has(thought[1], `"content":null,"reasoning_content":"`)
		assert.True(t, strings.HasSuffix(words, rest) && len(rest) < len(words), "%q behind the thought of %q", rest, words)
		if together, all := stream(ask("chat_template_kwargs", map[string]any{"enable_thinking": true}, "separate_reasoning", false)); all != words {
			t.Errorf("%q in %v", all, together)
		}

		tools := []map[string]any{{"type": "function", "function": map[string]any{"name": "look"}}, {"type": "function", "function": map[string]any{"name": "go"}}}
		call, none := stream(ask("tools", tools, "tool_choice", map[string]any{"type": "function", "function": map[string]any{"name": "go"}}))
		has(call[1], `"tool_calls":[{`, `"name":"go"`, `"id":"call_`)
		assert.Empty(t, none, "a call has the content")
		arguments := ""
		for _, line := range call[1 : len(call)-3] {
			var w whole
			require.NoError(t, json.Unmarshal([]byte(line), &w))
			for _, c := range w.Choices[0].Delta.ToolCalls {
				arguments += c.Function.Arguments
			}
		}
		assert.Equal(t, argumentsOf(words), arguments, "arguments")
		status, raw := b.post("alone", chats, ask("tools", tools, "tool_choice", "required", "stream", false))
		has(string(raw), `"name":"look"`, `"content":null`)
		if auto, all := stream(ask("tools", tools)); status != 200 || all != words {
			t.Errorf("a tool that is only offered: %v", auto)
		}

		for name, more := range map[string][]any{
			"return_token_ids":        {"return_token_ids", true},
			"return_prompt_token_ids": {"return_prompt_token_ids", true},
			"LoRA":                    {"model", "base:adapter"},
		} {
			status, raw := b.post("alone", chats, ask(more...))
			has(string(raw), name)
			assert.Equal(t, http.StatusBadRequest, status, "%s %s", name, raw)
		}
	})
}

// input_ids stand in a chat's prompt's place; a last message of the assistant's is the user's unless it is to be
// continued.
func TestSGLangChatPrompts(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		sglangPair(b, nil)
		ask := func(role string, more ...any) map[string]any {
			return chat(5, append([]any{"messages", []map[string]string{{"role": "user", "content": "hi"}, {"role": role, "content": "well"}}}, more...)...)
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
