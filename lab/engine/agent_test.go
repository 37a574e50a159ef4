package engine

import (
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	weather = `{"type":"object","properties":{"city":{"type":"string"},"unit":{"enum":["C","F"]},"days":{"type":"integer","minimum":3}},` +
		`"required":["city","unit"],"additionalProperties":false}`
	search = `{"type":"object","properties":{"query":{"type":"string","minLength":20}},"required":["query"]}`
)

// An agent's turns, at every engine: a request that demands or mentions tools gets calls with valid arguments, a result
// an answer in words, and a form JSON of the form. A stream adds up to the whole answer, and thoughts come before both.
func TestAgents(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		engines := slices.Sorted(maps.Keys(dialects))
		for _, engine := range engines {
			b.engine(Config{ID: engine, Engine: engine})
		}
		tool := func(name, schema string) any {
			return map[string]any{"type": "function", "function": map[string]any{"name": name, "parameters": jsonOf(t, schema)}}
		}
		tools := []any{tool("get_weather", weather), tool("search", search)}
		user := func(text string, more ...any) []any {
			return append([]any{map[string]any{"role": "user", "content": text}}, more...)
		}
		call := map[string]any{"role": "assistant", "content": "", "tool_calls": []any{map[string]any{"id": "1", "type": "function",
			"function": map[string]any{"name": "search", "arguments": "{}"}}}}
		result := map[string]any{"role": "tool", "tool_call_id": "1", "content": "the weather is fine, search no more"}
		thinks := []any{"chat_template_kwargs", map[string]any{"enable_thinking": true}}
		form := map[string]any{"type": "json_schema", "json_schema": map[string]any{"name": "x", "schema": jsonOf(t, weather)}}
		for name, c := range map[string]struct {
			messages []any
			more     []any
			calls    []string // the names of the functions that are called
			form     string   // the schema of the answer
		}{
			"mentioned":             {user(`What is the weather in "Rome" in F?`), []any{"tools", tools}, []string{"get_weather"}, ""},
			"mentioned and thought": {user("the weather?"), slices.Concat([]any{"tools", tools}, thinks), []string{"get_weather"}, ""},
			"not mentioned":         {user("hello"), []any{"tools", tools, "tool_choice", "auto"}, nil, ""},
			"in parallel":           {user("Search for the weather"), []any{"tools", tools}, []string{"get_weather", "search"}, ""},
			"one at a time":         {user("Search for the weather"), []any{"tools", tools, "parallel_tool_calls", false}, []string{"get_weather"}, ""},
			"forbidden":             {user("Search for the weather"), []any{"tools", tools, "tool_choice", "none"}, nil, ""},
			"required":              {user("hello"), []any{"tools", tools, "tool_choice", "required"}, []string{"get_weather"}, ""},
			"required, mentioned":   {user("search"), []any{"tools", tools, "tool_choice", "required"}, []string{"search"}, ""},
			"named": {user("weather"), []any{"tools", tools, "tool_choice",
				map[string]any{"type": "function", "function": map[string]any{"name": "search"}}}, []string{"search"}, ""},
			"a result":         {user("search", call, result), []any{"tools", tools}, nil, ""},
			"the next turn":    {user("search", call, result, map[string]any{"role": "assistant", "content": "x"}, user("the weather")[0]), []any{"tools", tools}, []string{"get_weather"}, ""},
			"a form":           {user("in F"), []any{"response_format", form}, nil, weather},
			"a form, thought":  {user("in F"), slices.Concat([]any{"response_format", form}, thinks), nil, weather},
			"any JSON object":  {user("x"), []any{"response_format", map[string]any{"type": "json_object"}}, nil, `{"type":"object"}`},
			"ends before that": {user("x"), []any{"response_format", form, "min_tokens", 200}, nil, weather},
		} {
			for _, engine := range engines {
				ask := chat(400, append(c.more, "messages", c.messages)...)
				status, w := b.ask(engine, chats, ask)
				require.Equal(t, http.StatusOK, status, "%s, %s %+v", engine, name, w.Error)
				m, finish := w.Choices[0].Message, w.Choices[0].FinishReason
				var called []string
				for i, one := range m.ToolCalls {
					called = append(called, one.Function.Name)
					valid(t, map[string]string{"get_weather": weather, "search": search}[one.Function.Name], one.Function.Arguments)
					assert.NotEmpty(t, one.ID, "%s, %s, call %d", engine, name, i)
				}
				assert.Equal(t, c.calls, called, "%s, %s", engine, name)
				assert.Equal(t, c.calls == nil, m.Content != "", "%s, %s: %q", engine, name, m.Content)
				assert.Equal(t, len(c.more) > 2 && c.more[2] == "chat_template_kwargs", m.Reasoning+m.Thought != "", "%s, %s", engine, name)
				if c.form != "" {
					valid(t, c.form, m.Content)
				}
				if wants := map[bool]string{true: "tool_calls", false: "stop"}[c.calls != nil]; name != "named" && (c.calls != nil || c.form != "") {
					assert.Equal(t, wants, finish, "%s, %s", engine, name)
				}
				ask["stream"] = true
				all := message{Role: m.Role, ToolCalls: m.ToolCalls[:0:0]}
				for _, e := range b.events(b.send(t.Context(), engine, chats, ask)) {
					for _, ch := range e.Choices {
						all.Content, all.Reasoning, all.Thought = all.Content+ch.Delta.Content, all.Reasoning+ch.Delta.Reasoning, all.Thought+ch.Delta.Thought
						for _, one := range ch.Delta.ToolCalls {
							for len(all.ToolCalls) <= one.Index {
								all.ToolCalls = append(all.ToolCalls, toolCall{Index: len(all.ToolCalls), ID: one.ID})
							}
							f := &all.ToolCalls[one.Index].Function
							f.Name, f.Arguments = f.Name+one.Function.Name, f.Arguments+one.Function.Arguments
						}
					}
				}
				for i := range all.ToolCalls {
					assert.NotEmpty(t, all.ToolCalls[i].ID, "%s, %s, call %d", engine, name, i)
					all.ToolCalls[i].ID, all.ToolCalls[i].Index = m.ToolCalls[i].ID, m.ToolCalls[i].Index
				}
				assert.Equal(t, m, all, "%s, %s, streamed", engine, name)
			}
		}
	})
}

// What Codex and Claude Code add to the user's words in tags mentions no tool, and its quotes are no arguments.
func TestAgentsAddAsides(t *testing.T) {
	said, _ := lastWords([]byte(`[{"role":"user","content":"<environment_context>\n<cwd type=\"disabled\">a search</cwd></environment_context>"},` +
		`{"role":"user","content":[{"type":"text","text":"<system-reminder>\nthe weather</system-reminder>\n"},{"type":"text","text":"is <b>bold</b> <not-closed>"}]}]`))
	assert.Equal(t, "is <b>bold</b> <not-closed>", strings.TrimSpace(said))
}

// An answer has words after its thought, whatever the prompt.
func TestAnswersAreMoreThanThoughts(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.engine(Config{ID: "e", Engine: "vllm"})
		for i := range 300 {
			_, w := b.ask("e", chats, chat(30, "ignore_eos", false, "chat_template_kwargs", map[string]any{"enable_thinking": true},
				"messages", []any{map[string]any{"role": "user", "content": strconv.Itoa(i)}}))
			require.NotEmpty(t, w.Choices[0].Message.Content, i)
		}
	})
}

// vLLM's own ways to demand a form, and SGLang's.
func TestForms(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.engine(Config{ID: "vllm", Engine: "vllm"})
		b.engine(Config{ID: "sglang", Engine: "sglang"})
		for _, c := range []struct {
			engine, name string
			value        any
			want         string // a schema
		}{
			{"vllm", "structured_outputs", map[string]any{"json": jsonOf(t, search)}, search},
			{"vllm", "structured_outputs", map[string]any{"json": search}, search},
			{"vllm", "structured_outputs", map[string]any{"json_object": true}, `{"type":"object"}`},
			{"vllm", "structured_outputs", map[string]any{"choice": []string{"[1]", "[2]"}}, `{"const":[1]}`},
			{"vllm", "structured_outputs", map[string]any{"regex": `[1-9]\d{3}`}, `{"type":"integer"}`},
			{"vllm", "guided_json", jsonOf(t, weather), weather},
			{"sglang", "json_schema", weather, weather},
			{"sglang", "regex", `"[a-c]+"`, `{"type":"string"}`},
		} {
			for path, ask := range map[string]map[string]any{completions: body("x", 400, c.name, c.value), chats: chat(400, c.name, c.value)} {
				status, w := b.ask(c.engine, path, ask)
				require.Equal(t, http.StatusOK, status, "%+v", w.Error)
				valid(t, c.want, w.Choices[0].Text+w.Choices[0].Message.Content)
				assert.Equal(t, "stop", w.Choices[0].FinishReason)
			}
		}
	})
}

// With sentences a chat's answer consists of the grammar's words in its order, and a second half asked for by itself,
// as after a death, is the same.
func TestSentences(t *testing.T) {
	bubble(t, func(t *testing.T, b *bench) {
		b.engine(Config{ID: "e", Engine: "vllm", Sentences: true})
		_, w := b.ask("e", chats, chat(40, "return_token_ids", true))
		all := w.Choices[0]
		require.Len(t, all.TokenIDs, 40)
		class := 0
		for word := range strings.FieldsSeq(all.Message.Content) {
			at := slices.IndexFunc(grammar, func(c wordClass) bool { return slices.Contains(strings.Fields(c.words), word) })
			require.True(t, at == class && word == strings.Fields(all.Message.Content)[0] || slices.Contains(grammar[class].next, at), word)
			class = at
		}
		ids := append(slices.Clone(w.PromptTokenIDs), all.TokenIDs[:20]...)
		_, rest := b.ask("e", chats, chat(20, "return_token_ids", true, "kv_transfer_params", map[string]any{"prompt_token_ids": ids}))
		assert.Equal(t, all.TokenIDs[20:], rest.Choices[0].TokenIDs)
	})
}
