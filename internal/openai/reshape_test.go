package openai

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

func TestChatFromCompletion(t *testing.T) {
	chunk := func(first bool) func(dst, data []byte) []byte {
		return func(dst, data []byte) []byte { return ChatChunk(dst, data, func(int) bool { return first }) }
	}
	third := func(dst, data []byte) []byte {
		return ChatChunk(dst, data, func(choice int) bool { return choice == 2 })
	}
	tests := []struct {
		name       string
		reshape    func(dst, data []byte) []byte
		data, want string
	}{
		{"first chunk", chunk(true),
			`{"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":" a\n\u00e9","logprobs":{"tokens":["a"]},"finish_reason":null,"stop_reason":null}],"usage":null}`,
			`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":" a\n\u00e9"},"logprobs":null,"finish_reason":null,"stop_reason":null}],"usage":null}`},
		{"later chunk", chunk(false),
			`{"id":"cmpl-1","object":"text_completion","choices":[{"text" : "b" ,"index":1,"finish_reason":"stop","token_ids":[5]}],"system_fingerprint":"f"}`,
			`{"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{"delta":{"content":"b"} ,"index":1,"finish_reason":"stop","token_ids":[5]}],"system_fingerprint":"f"}`},
		{"first of one choice, later of another", third,
			`{"id":"cmpl-1","object":"text_completion","choices":[{"index":0,"text":"a"},{"text":"b","logprobs":null,"index":2}]}`,
			`{"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"a"}},{"delta":{"role":"assistant","content":"b"},"logprobs":null,"index":2}]}`},
		{"usage chunk", chunk(false),
			`{"id":"cmpl-1","object":"text_completion","choices":[],"usage":{"prompt_tokens":1}}`,
			`{"id":"chatcmpl-1","object":"chat.completion.chunk","choices":[],"usage":{"prompt_tokens":1}}`},
		{"whole answer", ChatResponse,
			`{"id":"cmpl-1","object":"text_completion","choices":[{"index":0,"text":"a"},{"index":1,"text":"b"}],"usage":{"prompt_tokens":1}}`,
			`{"id":"chatcmpl-1","object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":"a"}},{"index":1,"message":{"role":"assistant","content":"b"}}],"usage":{"prompt_tokens":1}}`},
		{"another id", ChatResponse, `{"id":"x-cmpl-1","object":"other","choices":null}`, `{"id":"x-cmpl-1","object":"other","choices":null}`},
		{"an error", chunk(true), `{"error":{"message":"m","text":"t"}}`, `{"error":{"message":"m","text":"t"}}`},
		{"the end", chunk(false), Done, Done},
		{"cut short", chunk(false), `{"id":"cmpl-1","choices":[{"text":"a"`, `{"id":"cmpl-1","choices":[{"text":"a"`},
	}
	for _, tt := range tests {
		if got := string(tt.reshape([]byte("> "), []byte(tt.data))); got != "> "+tt.want {
			t.Errorf("%s:\ngot  %s\nwant %s", tt.name, got, tt.want)
		}
	}
}

func TestCompletionFromChat(t *testing.T) {
	const messages = `"messages":[{"role":"user","content":"x"}]`
	tests := []struct{ body, want string }{
		{`{"model":"m",` + messages + `,"seed":9007199254740993}`,
			`{"model":"m","seed":9007199254740993,"max_tokens":98,"prompt":[1,2]}`},
		{`{"model":"m","max_tokens":null,"max_completion_tokens":null,` + messages + `}`, `{"model":"m","max_tokens":98,"prompt":[1,2]}`},
		{`{` + messages + `,"max_completion_tokens":5,"model":"m","max_tokens":9,"tool_choice":"none","logprobs":false,"tools":[]}`,
			`{"model":"m","max_tokens":5,"prompt":[1,2]}`},
		{`{"model":"m","max_completion_tokens":null,"max_tokens":9,` + messages + `,"response_format":{"type":"json_object"},"chat_template":null}`,
			`{"model":"m","max_tokens":9,"response_format":{"type":"json_object"},"prompt":[1,2]}`},
		{`{"model":"m",` + messages + `,"stream":true,"stream_options":{"include_usage":true},"stop":["a"]}`,
			`{"model":"m","stream":true,"stream_options":{"include_usage":true},"stop":["a"],"max_tokens":98,"prompt":[1,2]}`},
	}
	for _, tt := range tests {
		e, err := CompletionFromChat(scanned(t, Chat, tt.body), []uint32{1, 2}, 100)
		if err != nil {
			t.Fatalf("%s: %v", tt.body, err)
		}
		got := e.Bytes()
		if string(got) != tt.want {
			t.Errorf("got  %s\nwant %s", got, tt.want)
		}
		scanned(t, Completions, string(got))
	}
	e, err := CompletionFromChat(scanned(t, Chat, `{"model":"m",`+messages+`}`), []uint32{1, 2}, 0)
	if got := string(e.Bytes()); err != nil || got != `{"model":"m","max_tokens":null,"prompt":[1,2]}` {
		t.Errorf("of an unknown context: %s, %v", got, err)
	}
}

func TestCompletionFromChatRefuses(t *testing.T) {
	const user = `{"role":"user","content":"x"}`
	tests := []struct{ messages, more, param string }{
		{user, `,"tools":[{"type":"function"}]`, "tools"},
		{user, `,"functions":[{"name":"f"}]`, "functions"},
		{user, `,"logprobs":true`, "logprobs"},
		{user, `,"chat_template":"t"`, "chat_template"},
		{user, `,"chat_template_kwargs":{}`, "chat_template_kwargs"},
		{`{"role":"tool","content":"x"}`, ``, "messages"},
		{`{"role":"user","content":[{"type":"image_url"}]}`, ``, "messages"},
		{`{"role":"user","content":[{"type":"file"}]}`, ``, "messages"},
	}
	for _, tt := range tests {
		r := scanned(t, Chat, `{"model":"m","messages":[`+tt.messages+`]`+tt.more+`}`)
		_, err := CompletionFromChat(r, []uint32{1}, 0)
		var e *Error
		if !errors.As(err, &e) || e.Status != 400 || e.Param != tt.param || !strings.Contains(e.Message, "model_input text") {
			t.Errorf("%s%s: %v", tt.messages, tt.more, err)
		}
	}
	var e *Error
	_, err := CompletionFromChat(scanned(t, Chat, `{"model":"m","messages":[`+user+`]}`), nil, 100)
	if !errors.As(err, &e) || e.Status != 400 || e.Param != "messages" || !strings.Contains(e.Message, "/v1/completions") {
		t.Errorf("a chat whose ids are not known: %v", err)
	}
}

// TestWireObjectsAreWhatInspectReads holds the marshalled objects against the
// readers: what the simulated engine writes, the gateway reads.
func TestWireObjectsAreWhatInspectReads(t *testing.T) {
	reason, text := "stop", "x"
	usage := &Usage{PromptTokens: 5, CompletionTokens: 1, TotalTokens: 6, PromptTokensDetails: &PromptTokensDetails{CachedTokens: 4}}
	for _, object := range []any{
		completionObject{ID: "cmpl-1", Object: "text_completion", Usage: usage, KVTransferParams: json.RawMessage(`{}`),
			Choices: []completionChoice{{Text: text, FinishReason: &reason, TokenIDs: []uint32{9}}}},
		chatObject{Object: "chat.completion", Usage: usage, KVTransferParams: json.RawMessage(`{}`),
			Choices: []chatChoice{{Message: ChatMessage{Role: "assistant", Content: text}, FinishReason: &reason}}},
	} {
		data, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		got := Inspect(data)
		if !got.Content || got.Tokens != 1 || got.Finished != 1 || got.Aborted || got.PromptTokens != 5 ||
			got.CompletionTokens != 1 || got.CachedTokens != 4 || string(got.KVParams) != "{}" {
			t.Errorf("%s: %+v", data, got)
		}
	}
	data, err := json.Marshal(chatChunkObject{Choices: []chatChunkChoice{{Delta: ChatDelta{Content: &text}}}})
	if got := Inspect(data); err != nil || !got.Content || got.Finished > 0 || got.Usage {
		t.Errorf("%s: %+v", data, got)
	}
}

func BenchmarkChatChunk(b *testing.B) {
	data := []byte(`{"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":" word","logprobs":null,"finish_reason":null}]}`)
	var dst []byte
	opens := func(int) bool { return false }
	b.ReportAllocs()
	for b.Loop() {
		dst = ChatChunk(dst[:0], data, opens)
	}
}

// ChatMessage is an answer's message.
type ChatMessage struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// ChatDelta is what a chunk adds to a message. Only a choice's first chunk has a role.
type ChatDelta struct {
	Role    string  `json:"role,omitempty"`
	Content *string `json:"content,omitempty"`
}
