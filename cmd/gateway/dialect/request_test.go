package dialect

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/openai"
)

func TestMessagesRefusals(t *testing.T) {
	block := func(b string) string {
		return `{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"a"},{"role":"assistant","content":[` + b + `]}]}`
	}
	for _, c := range []struct{ body, param, message string }{
		{`[]`, "", "must be a JSON object"},
		{`{"model":"m"`, "", "invalid JSON"},
		{`{"max_tokens":1,"messages":[{"role":"user","content":"a"}]}`, "model", "is required"},
		{`{"model":1,"max_tokens":1,"messages":[{"role":"user","content":"a"}]}`, "model", "must be a string"},
		{`{"model":"m","messages":[{"role":"user","content":"a"}]}`, "max_tokens", "is required"},
		{`{"model":"m","max_tokens":"1","messages":[{"role":"user","content":"a"}]}`, "max_tokens", "must be a number"},
		{`{"model":"m","max_tokens":1}`, "messages", "is required"},
		{`{"model":"m","max_tokens":1,"messages":[]}`, "messages", "at least one"},
		{`{"model":"m","max_tokens":1,"messages":[7]}`, "messages[0].role", "is required"},
		{`{"model":"m","max_tokens":1,"messages":[{"role":"tool","content":"a"}]}`, "messages[0].role", "one of user, assistant, system"},
		{`{"model":"m","max_tokens":1,"messages":[{"role":"user"}]}`, "messages[0].content", "a string or an array"},
		{`{"model":"m","max_tokens":1,"model":"n","messages":[{"role":"user","content":"a"}]}`, "model", "more than once"},
		{`{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"a","cont\u0065nt":"b"}]}`, "messages[0].content", "more than once"},
		{`{"model":"m","max_tokens":1,"stream":"yes","messages":[{"role":"user","content":"a"}]}`, "stream", "true or false"},
		{block(`{"type":"hologram"}`), "messages[1].content[0].type", "not known"},
		{block(`{"text":"x"}`), "messages[1].content[0].type", "is required"},
		{block(`{"type":"text","text":1}`), "messages[1].content[0].text", "must be a string"},
		{block(`{"type":"tool_use","name":"f"}`), "messages[1].content[0].id", "is required"},
		{block(`{"type":"tool_use","id":"a","name":"f","input":[]}`), "messages[1].content[0].input", "must be an object"},
		{block(`{"type":"image","source":{"type":"file","file_id":"f"}}`), "messages[1].content[0].source.type", "one of base64, url"},
		{block(`{"type":"document","source":{"type":"base64","data":"x"}}`), "messages[1].content[0].source.type", "one of text, content"},
		{asked + `,"tools":{}}`, "tools", "must be an array"},
		{asked + `,"tools":[{"input_schema":{}}]}`, "tools[0].name", "is required"},
		{asked + `,"tools":[{"name":"f","input_schema":"x"}]}`, "tools[0].input_schema", "must be an object"},
		{asked + `,"tool_choice":"auto"}`, "tool_choice", "must be an object"},
		{asked + `,"tool_choice":{"type":"any"}}`, "tool_choice", "no tool is left"},
		{asked + `,"tool_choice":{"type":"some"}}`, "tool_choice.type", "one of auto"},
		{asked + `,"stop_sequences":["a",""]}`, "stop_sequences[1]", "not empty"},
		{asked + `,"thinking":{"type":"maybe"}}`, "thinking.type", "one of enabled"},
		{asked + `,"output_config":{"effort":1}}`, "output_config.effort", "must be a string"},
		{asked + `,"output_config":{"format":{"type":"grammar"}}}`, "output_config.format.type", "one of json_schema"},
		{asked + `,"output_format":{"type":"json_schema"}}`, "output_format.schema", "is required"},
		{asked + `,"metadata":[]}`, "metadata", "must be an object"},
		{asked + `,"deep":` + strings.Repeat("[", 200), "", "nested too deeply"},
		{asked + `,"x":"\ud800"}`, "", "bad escape"},
		{asked + ",\"x\":\"\xff\"}", "", "not valid UTF-8"},
		{asked + `,"tools":[{"name":"f","input_schema":{"a":` + strings.Repeat("[", 200) + `]}}]}`, "", "nested too deeply"},
	} {
		_, err := Messages([]byte(c.body), Options{})
		var e *openai.Error
		require.True(t, errors.As(err, &e), c.body)
		assert.Equal(t, 400, e.Status)
		assert.Equal(t, c.param, e.Param, c.body)
		assert.Contains(t, e.Message, c.message)
		assert.True(t, strings.HasPrefix(e.Message, c.param), e.Message)
	}
	_, err := Messages(turn(), Options{MaxBytes: 1000})
	assert.ErrorContains(t, err, "larger than 1000 bytes")
	for _, max := range []string{"1e400", "1" + strings.Repeat("0", 400), "-1"} { // the chat's scan refuses them
		r, err := Messages([]byte(strings.Replace(asked, `"max_tokens":100`, `"max_tokens":`+max, 1)+"}"), Options{})
		require.NoError(t, err)
		_, err = openai.Limits{}.Scan(openai.Chat, r.Chat)
		assert.ErrorContains(t, err, "max_tokens must be a whole number")
	}
}

// constant answers the same for all models.
func constant(answer bool) func(model string) bool { return func(string) bool { return answer } }

func TestMessagesOneSystem(t *testing.T) {
	body := []byte(`{"model":"m","system":[{"type":"text","text":"A"},{"type":"text","text":"x-anthropic-billing-header: 1"}],"messages":[` +
		`{"role":"user","content":"Hi"},{"role":"system","content":"B"},{"role":"system","content":[{"type":"text","text":"C\n"}]},{"role":"user","content":"Go"}]}`)
	for one, want := range map[bool]string{
		true:  `[{"role":"system","content":"A\n\nB\n\nC\n"},{"role":"user","content":"Hi"},{"role":"user","content":"Go"}]`,
		false: `[{"role":"system","content":"A"},{"role":"user","content":"Hi"},{"role":"system","content":"B"},{"role":"system","content":"C\n"},{"role":"user","content":"Go"}]`,
	} {
		r, err := MessagesPrompt(body, Options{OneSystem: constant(one)})
		require.NoError(t, err)
		assert.JSONEq(t, `{"model":"m","messages":`+want+"}", string(r.Chat))
	}
}

func TestMessagesRequest(t *testing.T) {
	r, err := Messages(turn(), Options{ID: "r1"})
	require.NoError(t, err)
	assert.True(t, r.Stream)
	assert.Equal(t, "claude-x", r.Model)
	scanned, err := openai.Limits{}.Scan(openai.Chat, r.Chat)
	require.NoError(t, err)
	assert.True(t, scanned.Stream && scanned.IncludeUsage && scanned.HasTools && scanned.HasToolMessages)
	assert.Equal(t, 32000, scanned.MaxTokens)
	// blocks that no engine's converter reads
	r, err = Messages([]byte(`{"model":"m\u0065","max_tokens":1,"messages":[{"role":"user","content":[{"type":"document","title":"T","context":"C",`+
		`"source":{"type":"text","media_type":"text/plain","data":"D"}},{"type":"document","source":{"type":"content","content":[{"type":"text","text":"a"},`+
		`{"type":"text","text":"b"}]}}]},{"role":"assistant","content":[{"type":"server_tool_use","id":"s","name":"web_search","input":{}},`+
		`{"type":"web_search_tool_result","tool_use_id":"s","content":[]},{"type":"text","text":"x"},{"type":"tool_use","id":"t","name":"f"}]},`+
		`{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","is_error":true,"content":"Error: gone"}]}],"nvext":{"agent_hints":{"priority":1}}}`), Options{})
	require.NoError(t, err)
	assert.Equal(t, "me", r.Model)
	assert.JSONEq(t, `{"model":"me","messages":[{"role":"user","content":[{"type":"text","text":"Title: T\nC\nD"},{"type":"text","text":"a\nb"}]},`+
		`{"role":"assistant","content":"x","tool_calls":[{"id":"t","type":"function","function":{"name":"f","arguments":"{}"}}]},`+
		`{"role":"tool","tool_call_id":"t","content":"Error: gone"}],"max_tokens":1,"nvext":{"agent_hints":{"priority":1}}}`, string(r.Chat))
}

// FuzzMessagesDeltas reads each byte as a delta: of a text, a thought or a call's arguments. Nothing is lost or doubled.
func FuzzMessagesDeltas(f *testing.F) {
	f.Add([]byte("\x00\x10\x20\x21\x22\x00\x25\x35\x45\x00\x55"))
	f.Add([]byte("\x02\x12\x22\x32\x42\x52\x01\x62\x72"))
	pieces := []string{"{", "}", `"`, `\`, "[", "]", "a", " ", `{"x":1}`}
	f.Fuzz(func(t *testing.T, deltas []byte) {
		var stream strings.Builder
		var want [2]string
		arguments := map[string]string{}
		for i, d := range deltas {
			piece, quoted := pieces[int(d>>4)%len(pieces)], ""
			quoted = string(openai.AppendQuoted(nil, piece))
			switch kind := d & 15; {
			case kind < 2:
				want[kind] += piece
				fmt.Fprint(&stream, chunks(fmt.Sprintf(`"delta":{"%s":%s}`, []string{"content", "reasoning"}[kind], quoted)))
			default:
				id := fmt.Sprintf("c%d", kind%5)
				arguments[id] += piece
				fmt.Fprint(&stream, chunks(fmt.Sprintf(`"delta":{"tool_calls":[{"index":%d,"id":"%s","function":{"name":"f","arguments":%s}}]}`, kind%5, id, quoted)))
			}
			if i%7 == 6 {
				stream.WriteString(": beat\n")
			}
		}
		var r messagesReader
		require.NoError(t, r.read(begin(t, "").Events(nil, []byte(stream.String()+doneChunk))))
		var got [2]string
		calls := 0
		for _, b := range r.Blocks {
			switch b.Kind {
			case "text":
				got[0] += b.Text
			case "thinking":
				got[1] += b.Text
			default:
				calls++
				var o object
				o.read([]byte(b.Input))
				require.True(t, b.Input == arguments[b.ID] || o.complete && strings.HasPrefix(arguments[b.ID], b.Input), "%q of %q", b.Input, arguments[b.ID])
			}
		}
		require.Equal(t, want, got)
		require.Len(t, arguments, calls)
	})
}
