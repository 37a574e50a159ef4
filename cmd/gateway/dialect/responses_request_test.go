package dialect

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/openai"
)

// chatOf converts a body of Responses, without the members that all have.
func chatOf(t *testing.T, body string, o Options) string {
	t.Helper()
	r, err := Responses([]byte(`{"model":"m",`+body+"}"), o)
	require.NoError(t, err, body)
	return strings.Replace(string(r.Chat), `"model":"m",`, "", 1)
}

func TestResponsesItems(t *testing.T) {
	for _, c := range []struct{ items, want string }{
		{`{"role":"user","content":"a"},{"type":"reasoning","summary":[{"type":"summary_text","text":"lost"}]},{"role":"user","content":"b"}`,
			`{"role":"user","content":"a"},{"role":"user","content":"b"}`},
		{`{"role":"assistant","content":[{"type":"output_text","text":"a"},{"type":"refusal","refusal":"b"}]},{"type":"function_call","call_id":"c","name":"f",` +
			`"arguments":""},{"role":"assistant","content":"d"},{"type":"function_call_output","call_id":"c","output":""}`,
			`{"role":"assistant","content":"a\n\nb\n\nd","tool_calls":[{"id":"c","type":"function","function":{"name":"f","arguments":"{}"}}]},` +
				`{"role":"tool","content":"","tool_call_id":"c"}`},
		{`{"type":"function_call_output","call_id":"a","output":[{"type":"input_text","text":"x"},{"type":"input_image","image_url":"data:,1","detail":"original"},` +
			`{"type":"input_text","text":"y"}]},{"type":"custom_tool_call_output","call_id":"b","output":[{"type":"input_image","image_url":"data:,2"}]},` +
			`{"role":"user","content":"on"}`,
			`{"role":"tool","content":"x\ny","tool_call_id":"a"},{"role":"tool","content":"","tool_call_id":"b"},{"role":"user","content":[` +
				`{"type":"image_url","image_url":{"url":"data:,1","detail":"high"}},{"type":"image_url","image_url":{"url":"data:,2"}}]},{"role":"user","content":"on"}`},
		{`{"type":"local_shell_call","id":"lsh_1","call_id":null,"status":"completed","action":{"type":"exec","command":["ls"],"timeout_ms":null,"env":{}}},` +
			`{"type":"local_shell_call_output","id":"lsh_1","output":"x"},{"type":"shell_call","call_id":"s","action":{"commands":["ls"]}},` +
			`{"type":"shell_call_output","call_id":"s","output":[{"stdout":"\"x\"","stderr":"","outcome":{"type":"exit","exit_code":0}}]},` +
			`{"type":"apply_patch_call","call_id":"p","operation":{"type":"delete_file","path":"a"}},{"type":"apply_patch_call_output","call_id":"p","status":"failed","output":"no"},` +
			`{"type":"tool_search_call","call_id":"t","execution":"client","arguments":{"query":"q"}},{"type":"tool_search_call","call_id":null,"execution":"server","arguments":{}},` +
			`{"type":"tool_search_output","call_id":"t","execution":"client","tools":[{"type":"function","name":"late"},{"type":"namespace","name":"n","tools":[]}]},` +
			`{"type":"tool_search_output","call_id":"u","tools":[{"type":"function","name":"late"}]}`,
			`{"role":"assistant","content":"","tool_calls":[{"id":"lsh_1","type":"function","function":{"name":"local_shell","arguments":"{\"command\":[\"ls\"],\"env\":{}}"}}]},` +
				`{"role":"tool","content":"x","tool_call_id":"lsh_1"},` +
				`{"role":"assistant","content":"","tool_calls":[{"id":"s","type":"function","function":{"name":"shell","arguments":"{\"commands\":[\"ls\"]}"}}]},` +
				`{"role":"tool","content":"[{\"stdout\":\"\\\"x\\\"\",\"stderr\":\"\",\"outcome\":{\"type\":\"exit\",\"exit_code\":0}}]","tool_call_id":"s"},` +
				`{"role":"assistant","content":"","tool_calls":[{"id":"p","type":"function","function":{"name":"apply_patch","arguments":"{\"path\":\"a\",\"type\":\"delete_file\"}"}}]},` +
				`{"role":"tool","content":"failed\nno","tool_call_id":"p"},` +
				`{"role":"assistant","content":"","tool_calls":[{"id":"t","type":"function","function":{"name":"tool_search","arguments":"{\"query\":\"q\"}"}}]},` +
				`{"role":"tool","content":"late\nn","tool_call_id":"t"},{"role":"tool","content":"late","tool_call_id":"u"}`},
		{`{"type":"agent_message","author":"/root","recipient":"/root/a","content":[{"type":"input_text","text":"x"},{"type":"encrypted_content","encrypted_content":"y"}]},` +
			`{"type":"web_search_call","id":"ws_1","status":"completed"}`, `{"role":"user","content":"From /root\n\nx"}`},
		{`{"type":"reasoning","summary":[],"encrypted_content":"` + sealed(`a\"b`) + `"},{"role":"assistant","content":"c"}`,
			`{"role":"assistant","content":"c","reasoning_content":"a\"b"}`},
		{`{"type":"reasoning","summary":[{"type":"summary_text","text":"s"}],"encrypted_content":"tandem1.!"},{"role":"assistant","content":"c"}`,
			`{"role":"assistant","content":"c","reasoning_content":"s"}`},
		{`{"type":"compaction","encrypted_content":"` + sealed(`a\"b`) + `"},{"role":"user","content":"c"}`,
			`{"role":"user","content":"` + summary + `a\"b"},{"role":"user","content":"c"}`},
	} {
		var got struct{ Messages json.RawMessage }
		require.NoError(t, json.Unmarshal([]byte(chatOf(t, `"input":[`+c.items+"]", Options{})), &got))
		assert.JSONEq(t, "["+c.want+"]", string(got.Messages))
	}
}

func TestResponsesOneSystem(t *testing.T) {
	body := `"instructions":"A","input":[{"type":"additional_tools","role":"developer","tools":[]},{"role":"developer","content":"B"},` +
		`{"role":"user","content":"Hi"},{"role":"system","content":[{"type":"input_text","text":"C"}]}]`
	assert.JSONEq(t, `{"messages":[{"role":"system","content":"A\n\nB\n\nC"},{"role":"user","content":"Hi"}]}`, "{"+chatOf(t, body, Options{OneSystem: constant(true)})[1:])
	assert.JSONEq(t, `{"messages":[{"role":"system","content":"A\n\nB"},{"role":"user","content":"Hi"},{"role":"system","content":"C"}]}`,
		"{"+chatOf(t, body, Options{})[1:])
}

func TestResponsesSettings(t *testing.T) {
	for _, c := range []struct{ more, want string }{
		{`"max_output_tokens":9,"temperature":0.5,"top_p":1,"top_k":3,"seed":1,"stop":["x"],"prompt_cache_key":"k","user":"u","store":true,"metadata":{"a":"b"},` +
			`"truncation":"auto","unknown":{"x":[]},"client_metadata":{"a":"b"},"previous_response_id":null,"background":false,"stream_options":{"include_obfuscation":false}`,
			`"max_completion_tokens":9,"temperature":0.5,"top_p":1,"top_k":3,"seed":1,"stop":["x"],"prompt_cache_key":"k","user":"u"`},
		{`"reasoning":{"effort":"high","summary":"auto"}`, `"reasoning_effort":"high"`},
		{`"reasoning":{"effort":"none"}`, `"reasoning_effort":"none"`},
		{`"reasoning":{"effort":"none"},"chat_template_kwargs":{"a":1}`, `"reasoning_effort":"none","chat_template_kwargs":{"a":1}`},
		{`"text":{"format":{"type":"text"},"verbosity":"low"}`, ``},
		{`"text":{"format":{"type":"json_object"}}`, `"response_format":{"type":"json_object"}`},
		{`"text":{"format":{"type":"json_schema","name":"n","schema":{"type":"object"},"strict":true,"description":"d"}}`,
			`"response_format":{"type":"json_schema","json_schema":{"name":"n","description":"d","schema":{"type":"object"},"strict":true}}`},
		{`"include":["message.output_text.logprobs","reasoning.encrypted_content"]`, `"logprobs":true,"top_logprobs":0`},
		{`"top_logprobs":2`, `"logprobs":true,"top_logprobs":2`},
		{`"stream":true`, `"stream":true,"stream_options":{"include_usage":true}`},
		{`"nvext":{"agent_hints":{"priority":1}},"cache_salt":"s"`, `"cache_salt":"s","nvext":{"agent_hints":{"priority":1}}`},
	} {
		want := `{"messages":[{"role":"user","content":"Hi"}]`
		if c.want != "" {
			want += "," + c.want
		}
		assert.JSONEq(t, want+"}", chatOf(t, `"input":"Hi",`+c.more, Options{}))
	}
}

func TestResponsesTools(t *testing.T) {
	long := strings.Repeat("x", 70)
	function := func(name, more string) string {
		return `{"type":"function","function":{"name":"` + name + `"` + more + `,"parameters":{"type":"object","properties":{}}}}`
	}
	for _, c := range []struct{ more, want string }{
		{`"tools":[],"tool_choice":"none","parallel_tool_calls":false`, ``},
		{`"tools":[{"type":"web_search"},{"type":"mcp","server_label":"x"},{"type":"shell","environment":{"type":"container_auto"}},{"type":"tool_search"}]`, ``},
		{`"tools":[{"type":"function","name":"function"},{"type":"function","name":"function"}]`, `"tools":[` + function("function", "") + "]"},
		{`"tools":[{"type":"function","name":"f","strict":null,"description":null,"parameters":null,"defer_loading":true}],"parallel_tool_calls":true`,
			`"tools":[` + function("f", "") + `],"parallel_tool_calls":true`},
		{`"tools":[{"type":"function","name":"f"},{"type":"custom","name":"g"}],"tool_choice":{"type":"custom","name":"g"}`,
			`"tools":[` + function("f", "") + `,{"type":"function","function":{"name":"g","parameters":{"type":"object","properties":{"input":{"type":"string"}},` +
				`"required":["input"],"additionalProperties":false}}}],"tool_choice":{"type":"function","function":{"name":"g"}}`},
		{`"tools":[{"type":"function","name":"f"},{"type":"function","name":"g"},{"type":"web_search"}],"tool_choice":{"type":"allowed_tools","mode":"required",` +
			`"tools":[{"type":"function","name":"g"},{"type":"web_search"}]}`, `"tools":[` + function("g", "") + `],"tool_choice":"required"`},
		{`"tools":[{"type":"namespace","name":"n__","description":"N","tools":[{"type":"function","name":"f","description":"F"},{"type":"function","name":"g"}]},` +
			`{"type":"namespace","name":"n","tools":[{"type":"function","name":"h"}]}],"tool_choice":{"type":"function","namespace":"n","name":"h"}`,
			`"tools":[` + function("n__f", `,"description":"N\n\nF"`) + "," + function("n__g", "") + "," + function("n__h", "") +
				`],"tool_choice":{"type":"function","function":{"name":"n__h"}}`},
		{`"tools":[{"type":"function","name":"f"},{"type":"namespace","name":"functions","tools":[{"type":"function","name":"f"},{"type":"function","name":"g"}]}]`,
			`"tools":[` + function("f", "") + "," + function("functions__f", "") + "," + function("g", "") + "]"},
		{`"tools":[{"type":"function","name":"` + long + `"}]`, `"tools":[` + function("__"+strings.Repeat("x", 53)+"_114dkbv", "") + "]"},
	} {
		want := `{"messages":[{"role":"user","content":"Hi"}]`
		if c.want != "" {
			want += "," + c.want
		}
		assert.JSONEq(t, want+"}", chatOf(t, `"input":"Hi",`+c.more, Options{}))
	}
}

// Every tool's call comes back under the names that the client gave, and the history has the name that the tools have.
func TestResponsesNamesComeBack(t *testing.T) {
	long := strings.Repeat("é", 40)
	for _, c := range [][2]string{{"", "f"}, {"n", "f"}, {"mcp__n__", "f"}, {"functions", "g"}, {"functions", "f"}, {"", long}, {long, "f"}, {long, "g"}, {`a\"b`, `c\\d`}} {
		tool := `{"type":"function","name":"` + c[1] + `"}`
		item := `{"type":"function_call","call_id":"a","arguments":"{}","name":"` + c[1] + `"`
		if c[0] != "" {
			tool = `{"type":"namespace","name":"` + c[0] + `","tools":[` + tool + "]}"
			item += `,"namespace":"` + c[0] + `"`
		}
		r, err := Responses([]byte(`{"model":"m","stream":true,"tools":[{"type":"function","name":"f"},`+tool+`],"input":[`+item+"}]}"), Options{})
		require.NoError(t, err)
		var chat struct {
			Tools    []struct{ Function struct{ Name string } }
			Messages []struct {
				ToolCalls []struct{ Function struct{ Name string } } `json:"tool_calls"`
			}
		}
		require.NoError(t, json.Unmarshal(r.Chat, &chat))
		flat := chat.Tools[len(chat.Tools)-1].Function.Name
		require.LessOrEqual(t, len(flat), 64)
		require.Equal(t, flat, chat.Messages[0].ToolCalls[0].Function.Name)
		var read responsesReader
		quoted := string(openai.AppendQuoted(nil, flat))
		require.NoError(t, read.read(r.Answer.Events(nil, []byte(called("0", "a", quoted[1:len(quoted)-1], "{}")+doneChunk))))
		var space, name string
		require.NoError(t, errors.Join(json.Unmarshal([]byte(`"`+c[0]+`"`), &space), json.Unmarshal([]byte(`"`+c[1]+`"`), &name)))
		assert.Equal(t, []string{space, name}, []string{read.Items[0].Space, read.Items[0].Name})
	}
}

func TestCompaction(t *testing.T) {
	body := `{"model":"m","instructions":"A","tools":[{"type":"function","name":"f"}],"text":{"format":{"type":"json_object"}},"input":[` +
		`{"type":"message","role":"user","content":[{"type":"input_text","text":"Do"}]},{"role":"assistant","content":"Did"},{"role":"user","content":"More"}`
	ask := `,{"role":"user","content":"` + summarise + `"}]`
	for _, alone := range []bool{false, true} {
		convert, end := Responses, `,{"type":"compaction_trigger"}],"stream":true}`
		if alone {
			convert, end = Compact, "]}"
		}
		r, err := convert([]byte(body+end), Options{ID: "r1", Now: 7})
		require.NoError(t, err)
		assert.Equal(t, !alone, r.Stream)
		assert.Contains(t, string(r.Chat), ask)
		assert.Contains(t, string(r.Chat), `,"tool_choice":"none"`)
		assert.NotContains(t, string(r.Chat), "response_format")
		whole := `{"choices":[{"message":{"reasoning":"Hm","content":"S\n","tool_calls":[]},"finish_reason":"stop"}],"usage":{"prompt_tokens":5,"completion_tokens":2}}`
		out, werr := r.Answer.Whole(nil, []byte(whole))
		require.NoError(t, werr)
		item := `{"type":"compaction","id":"cmp_r1","encrypted_content":"` + sealed(`S\n`) + `"}`
		var got struct {
			Object string
			Output json.RawMessage
			Usage  map[string]any
		}
		require.NoError(t, json.Unmarshal(out, &got))
		require.NoError(t, checkUsage(got.Usage))
		if alone {
			assert.Equal(t, "response.compaction", got.Object)
			assert.JSONEq(t, `[{"type":"message","id":"msg_r1_1","status":"completed","role":"user","content":[{"type":"input_text","text":"Do"}]},`+
				`{"type":"message","id":"msg_r1_2","status":"completed","role":"user","content":[{"type":"input_text","text":"More"}]},`+item+"]", string(got.Output))
		} else {
			assert.JSONEq(t, "["+item+"]", string(got.Output))
		}
		r, err = convert([]byte(body+end), Options{ID: "r1"})
		require.NoError(t, err)
		_, werr = r.Answer.Whole(nil, []byte(strings.Replace(whole, `S\n`, "", 1)))
		assert.ErrorContains(t, werr, "no summary")
	}
	stream := chunks(`"delta":{"reasoning":"Hm"}`, `"delta":{"content":"S"}`) + called("0", "a", "f", "{}") + chunks(`"delta":{"content":"\n"},"finish_reason":"stop"`)
	for _, c := range []struct{ stream, status string }{{stream, "completed"}, {chunks(`"delta":{"reasoning":"Hm"}`), "failed"}} {
		r, err := Responses([]byte(body+`,{"type":"compaction_trigger"}],"stream":true}`), Options{ID: "r1"})
		require.NoError(t, err)
		var read responsesReader
		out := r.Answer.Events(nil, []byte(c.stream+usageChunk+doneChunk))
		require.NoError(t, read.read(out))
		require.NoError(t, read.library(out))
		assert.Equal(t, c.status, read.Status)
		if c.status == "completed" {
			require.Len(t, read.Items, 1)
			assert.Equal(t, "compaction", read.Items[0].Type)
			assert.Equal(t, sealed(`S\n`), read.Items[0].Sealed)
		}
	}
	r, err := Compact([]byte(`{"model":"m","input":"Hi"}`), Options{ID: "r1"})
	require.NoError(t, err)
	out, werr := r.Answer.Whole(nil, []byte(`{"choices":[{"message":{"content":"S"}}]}`))
	require.NoError(t, werr)
	assert.Contains(t, string(out), `"content":[{"type":"input_text","text":"Hi"}]}`)
}

// A response repeats what was asked, or what OpenAI has for it.
func TestResponsesEcho(t *testing.T) {
	echo := func(more string) map[string]any {
		out, err := respond(t, more).Whole(nil, []byte(`{"choices":[{"message":{"content":"x"}}]}`))
		require.NoError(t, err)
		var r map[string]any
		require.NoError(t, json.Unmarshal(out, &r))
		require.NoError(t, checkResponse(r))
		return r
	}
	r := echo(`,"instructions":"A","tools":[{"type":"web_search"}],"tool_choice":"none","metadata":{"a":"b"},"service_tier":"auto",` +
		`"store":true,"safety_identifier":"s","prompt_cache_key":"k","user":null,"text":{"verbosity":"low"}`)
	assert.Equal(t, "A", r["instructions"])
	assert.Equal(t, "default", r["service_tier"])
	assert.Equal(t, map[string]any{"a": "b"}, r["metadata"])
	assert.Equal(t, []any{map[string]any{"type": "web_search"}}, r["tools"])
	assert.Equal(t, map[string]any{"format": map[string]any{"type": "text"}, "verbosity": "low"}, r["text"])
	r = echo(`,"service_tier":"flex","reasoning":{"effort":"low","summary":"concise"},"temperature":0.25,"truncation":"auto"`)
	assert.Equal(t, "flex", r["service_tier"])
	assert.Equal(t, "disabled", r["truncation"])
	assert.Equal(t, map[string]any{"effort": "low", "summary": "concise"}, r["reasoning"])
	assert.EqualValues(t, 0.25, r["temperature"])
	assert.EqualValues(t, 1, r["top_p"])
}

func FuzzResponses(f *testing.F) {
	for _, body := range load[json.RawMessage](f, "responses/cases.json").Requests {
		f.Add([]byte(body))
	}
	for _, c := range refusals {
		f.Add([]byte(`{"model":"m",` + c.more + "}"))
	}
	f.Add(codexTurn())
	passed := []string{"min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "seed", "ignore_eos", "min_tokens", "prompt_cache_key",
		"chat_template_kwargs", "tools", "tool_choice", "response_format", "top_logprobs", "max_completion_tokens"}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, convert := range []func([]byte, Options) (*Request, error){Responses, Compact} {
			for _, one := range []bool{false, true} {
				r, err := convert(body, Options{ID: "r1", OneSystem: constant(one), MaxBytes: 1 << 20})
				var e *openai.Error
				if errors.As(err, &e) && e.Status == 501 {
					continue
				}
				if err == nil {
					if _, err := (openai.Limits{}).Scan(openai.Chat, r.Chat); errors.As(err, &e) && slices.Contains(passed, rootOf(e.Param)) {
						require.True(t, json.Valid(r.Chat))
						continue
					}
				}
				readable(t, r, err)
			}
		}
	})
}

func FuzzResponsesAnswer(f *testing.F) {
	for i, c := range responsesAnswers {
		f.Add([]byte(c.stream+usageChunk+doneChunk), uint16(i*37), i%2 == 0)
	}
	f.Fuzz(func(t *testing.T, stream []byte, cut uint16, more bool) {
		fields := codexTools
		if more {
			fields += `,"reasoning":{"summary":"auto"},"include":["reasoning.encrypted_content","message.output_text.logprobs"]`
		}
		at := min(int(cut), len(stream))
		a := respond(t, fields)
		out := a.Events(a.Ping(a.Events(nil, stream[:at])), stream[at:])
		var r responsesReader
		require.NoError(t, r.read(out))
		if ended := r.ended; !ended {
			require.NoError(t, r.read(a.Fail(nil, openai.Internal())))
			require.True(t, r.ended)
		}
		require.Empty(t, a.Fail(a.Ping(a.Events(nil, stream)), openai.Internal()))
		whole, err := respond(t, fields).Whole(nil, stream)
		if err == nil {
			var response map[string]any
			require.NoError(t, json.Unmarshal(whole, &response), "%s", whole)
			require.NoError(t, checkResponse(response))
		}
	})
}

// FuzzCustomInput reads a custom tool's arguments in two pieces: what comes is always JSON, and the input if they have one.
func FuzzCustomInput(f *testing.F) {
	f.Add(`{"input":"a\n\ud83d\ude00\"\\"}`, uint8(13))
	f.Add(`{"input":"\ud83d\q\u00zz`+"\x01", uint8(14))
	f.Add(`{"other":"a"}`, uint8(3))
	f.Fuzz(func(t *testing.T, arguments string, cut uint8) {
		at := min(int(cut), len(arguments))
		quoted := string(openai.AppendQuoted(nil, arguments))
		arguments = string(unquoted(quoted[1 : len(quoted)-1])) // all UTF-8
		at = min(at, len(arguments))
		var c customInput
		got := c.read([]byte(arguments[:at])) + c.read([]byte(arguments[at:])) + c.end()
		require.True(t, json.Valid([]byte(`"`+got+`"`)) || !json.Valid(fmt.Appendf(nil, "%q", arguments[:at])), "%q", got)
		var object struct{ Input *string }
		if beforeInput.MatchString(arguments) && json.Unmarshal([]byte(arguments), &object) == nil && object.Input != nil && !strings.Contains(strings.ToLower(arguments), `\ud`) {
			var text string
			require.NoError(t, json.Unmarshal([]byte(`"`+got+`"`), &text))
			require.Equal(t, *object.Input, text)
		}
	})
}

// codexTurn is the body of an agent's request: instructions, tools of every kind and a history with thoughts, calls and
// results, as large as turn.
func codexTurn() []byte {
	text := func(n int) string {
		return strings.Repeat("Use absolute paths, and read \\\"the file\\\" first.\\n", n)
	}
	var b strings.Builder
	b.WriteString(`{"model":"m-x","stream":true,"store":false,"include":["reasoning.encrypted_content"],"prompt_cache_key":"0199","tool_choice":"auto",` +
		`"parallel_tool_calls":true,"reasoning":{"effort":"high","summary":"auto"},"text":{"verbosity":"low"},"instructions":"` + text(20) + `","tools":[`)
	for i := range 3 {
		fmt.Fprintf(&b, `{"type":"function","name":"tool%d","description":"%s","strict":false,"parameters":{"type":"object","properties":{"path":{"type":"string",`+
			`"description":"The path"},"limit":{"type":"number"},"mode":{"type":"string","enum":["a","b"]}},"required":["path"],"additionalProperties":false}},`, i, text(4))
	}
	b.WriteString(`{"type":"custom","name":"apply_patch","description":"` + text(4) + `","format":{"type":"grammar","syntax":"lark","definition":"` +
		`start: begin_patch hunk+ end_patch\nbegin_patch: \"*** Begin Patch\" LF"}},{"type":"web_search"}],"input":[{"type":"message","role":"developer",` +
		`"content":[{"type":"input_text","text":"` + text(2) + `"}]},{"type":"message","role":"user","content":[{"type":"input_text","text":"Go."}]}`)
	for i := range 3 {
		fmt.Fprintf(&b, `,{"type":"reasoning","summary":[{"type":"summary_text","text":"%s"}],"encrypted_content":"%s"},{"type":"message","role":"assistant","content":`+
			`[{"type":"output_text","text":"I read."}]},{"type":"function_call","name":"tool1","arguments":"{\"path\":\"/a/b.go\",\"limit\":%d}","call_id":"call_%d"},`+
			`{"type":"function_call_output","call_id":"call_%d","output":"%s"}`, text(1), sealed(text(1)), i, i, i, text(12))
	}
	return []byte(b.String() + "]}")
}

func BenchmarkResponses(b *testing.B) { benchmarkRequest(b, codexTurn(), Responses) }

func BenchmarkResponsesChunk(b *testing.B) {
	benchmarkChunks(b, func(b *testing.B) Answer { return respond(b, "") })
}
