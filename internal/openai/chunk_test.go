package openai

import (
	"bytes"
	"encoding/json"
	"reflect"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	chatChunk  = `{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null,"token_ids":null}],"usage":null}`
	usageChunk = `{"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[],"usage":{"prompt_tokens":12,"total_tokens":15,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":8}}}`
	prefilled  = `{"id":"cmpl-1","choices":[{"index":0,"text":"x","finish_reason":"length","token_ids":[7]}],"usage":{"prompt_tokens":12,"total_tokens":13,"completion_tokens":1,"prompt_tokens_details":null},"kv_transfer_params":{"do_remote_prefill":true,"remote_block_ids":[[12,13]]}}`
)

func TestInspect(t *testing.T) {
	choice := func(s string) string { return `{"choices":[` + s + `]}` }
	content := ChunkInfo{Valid: true, Content: true, Tokens: 1, CachedTokens: -1}
	nothing := ChunkInfo{Valid: true, CachedTokens: -1}
	failed := ChunkInfo{Valid: true, CachedTokens: -1, Error: true}
	for _, tt := range []struct {
		data string
		want ChunkInfo
	}{
		{chatChunk, content},
		{choice(`{"text":"a"}`), content},
		{choice(`{"te\u0078t":"\n"}`), content},
		{choice(`{"delta":{"reasoning_content":"a","content":null}}`), content},
		{choice(`{"delta":{"reasoning":"a"}}`), content},
		{choice(`{"delta":{"tool_calls":[{"index":0}]}}`), content},
		{choice(`{"message":{"role":"assistant","content":"a"}}`), content},
		{choice(`{"text":"a"},{"text":"b"}`), ChunkInfo{Valid: true, Content: true, Tokens: 2, CachedTokens: -1}},
		{choice(`{"token_ids":[1,2,3],"text":"abc"}`), ChunkInfo{Valid: true, Content: true, Tokens: 3, CachedTokens: -1}},
		{choice(`{"text":"","token_ids":[1]}`), ChunkInfo{Valid: true, Tokens: 1, CachedTokens: -1}},
		{choice(`{"delta":{"role":"assistant","content":"","tool_calls":[]}}`), nothing},
		{choice(`{"delta":null,"text":7,"finish_reason":null}`), nothing},
		{choice(``), nothing},
		{`{"choices":null,"usage":null,"error":null,"kv_transfer_params":null,"object":"x"}`, nothing},
		{choice(`{"delta":{},"finish_reason":"stop"}`), ChunkInfo{Valid: true, Finished: 1, Reason: "stop", CachedTokens: -1}},
		{choice(`{"text":"","finish_reason":"error"}`), ChunkInfo{Valid: true, Finished: 1, Reason: "other", Aborted: true, CachedTokens: -1}},
		{usageChunk, ChunkInfo{Valid: true, Usage: true, PromptTokens: 12, CompletionTokens: 3, CachedTokens: 8}},
		{`{"usage":{"prompt_tokens":-1,"completion_tokens":1e3,"prompt_tokens_details":{"cached_tokens":null}}}`,
			ChunkInfo{Valid: true, Usage: true, CachedTokens: -1}},
		{`{"usage":{"completion_tokens":9,"completion_tokens_details":{"reasoning_tokens":7,"x":[1]}}}`,
			ChunkInfo{Valid: true, Usage: true, CompletionTokens: 9, CachedTokens: -1, ReasoningTokens: 7}},
		{`{"usage":{"completion_tokens":9,"reasoning_tokens":5}}`,
			ChunkInfo{Valid: true, Usage: true, CompletionTokens: 9, CachedTokens: -1, ReasoningTokens: 5}},
		{prefilled, ChunkInfo{Valid: true, Content: true, Tokens: 1, Finished: 1, Reason: "length", Usage: true,
			PromptTokens: 12, CompletionTokens: 1, CachedTokens: -1,
			KVParams: []byte(`{"do_remote_prefill":true,"remote_block_ids":[[12,13]]}`)}},
		{`{"kv_transfer_params":{"remote_block_ids":[[1]],"remote_prefill_cached_tokens":8},"usage":{"prompt_tokens":12,"prompt_tokens_details":null}}`, ChunkInfo{Valid: true,
			Usage: true, PromptTokens: 12, CachedTokens: 8, KVParams: []byte(`{"remote_block_ids":[[1]],"remote_prefill_cached_tokens":8}`)}},
		{`{"kv_transfer_params":{"remote_prefill_cached_tokens":8},"usage":{"prompt_tokens_details":{"cached_tokens":4}}}`, ChunkInfo{Valid: true,
			Usage: true, CachedTokens: 4, KVParams: []byte(`{"remote_prefill_cached_tokens":8}`)}},
		{`{"kv_transfer_params":{}}`, ChunkInfo{Valid: true, CachedTokens: -1, KVParams: []byte(`{}`)}},
		{`{"kv_transfer_params":[]}`, nothing},
		{`{"kv_transfer_params":{}`, ChunkInfo{}},
		{`{"error":{"message":"m"}}`, failed},
		{`{"error":"m"}`, failed},
		{`{"object":"error","message":"m"}`, failed},
		{Done, ChunkInfo{}},
		{``, ChunkInfo{}},
		{`null`, ChunkInfo{}},
		{chatChunk[:len(chatChunk)-1], ChunkInfo{}},
		{chatChunk + "x", ChunkInfo{}},
	} {
		got := Inspect([]byte(tt.data))
		got.HasText, got.HasReasoning, got.HasToolCall, got.IDs, got.text, got.shows, got.showed, got.ids, got.Choices,
			got.thought = false, false, false, nil, text{}, [2]span{}, 0, span{}, 0, text{} // TestInspectWhatIsShown's
		got.usage, got.usageValue = span{}, span{} // TestContinuousUsage's
		assert.Equal(t, tt.want, got, tt.data)
	}
}

// TestInspectWhatIsShown holds what kind of content a chunk has, and that ids can be hidden wherever they stand.
func TestInspectWhatIsShown(t *testing.T) {
	for _, tt := range []struct{ data, kind, text, ids, hidden string }{
		{`{"choices":[{"index":0,"text":"a\n","token_ids":[1,2]}]}`, "text", "a\n", "[1,2]", `{"choices":[{"index":0,"text":"a\n"}]}`},
		{`{"choices":[{"token_ids":[7],"index":0,"text":"a"}]}`, "text", "a", "[7]", `{"choices":[{"index":0,"text":"a"}]}`},
		{`{"choices":[{"token_ids":[7]}]}`, "", "", "[7]", `{"choices":[{}]}`},
		{`{"choices":[{"prompt_token_ids":[1], "token_ids":[7], "text":"a"}]}`, "text", "a", "[7]", `{"choices":[{ "text":"a"}]}`},
		{`{"id":"x","choices":[{"index":0,"delta":{"role":"assistant","content":""}}],"prompt_token_ids":[1,2]}`, "", "", "",
			`{"id":"x","choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}`},
		{`{"prompt_token_ids":[1,2],"choices":[{"delta":{"reasoning":"hm"},"token_ids":[]}]}`, "reasoning", "", "[]",
			`{"choices":[{"delta":{"reasoning":"hm"}}]}`},
		{`{"choices":[{"delta":{"tool_calls":[{"index":0}]},"token_ids":null}]}`, "tool call", "", "",
			`{"choices":[{"delta":{"tool_calls":[{"index":0}]},"token_ids":null}]}`},
	} {
		data := []byte(tt.data)
		got := Inspect(data)
		assert.Equal(t, []bool{tt.kind == "text", tt.kind == "reasoning", tt.kind == "tool call"},
			[]bool{got.HasText, got.HasReasoning, got.HasToolCall}, tt.data)
		assert.Equal(t, tt.text, string(got.AppendText(nil, data)), tt.data)
		assert.Equal(t, tt.ids, string(got.IDs), tt.data)
		assert.Equal(t, tt.hidden, string(got.HideIDs(nil, data)), tt.data)
	}
}

// TestInspectOfAPinnedPrompt: what is pinned changes no answer's reading, whether the engine repeats it, something that
// begins like it, or something else.
func TestInspectOfAPinnedPrompt(t *testing.T) {
	for _, data := range []string{
		`{"id":"x","choices":[{"index":0,"delta":{"content":"a"},"token_ids":[7]}],"prompt_token_ids":[1,22,3]}`,
		`{"prompt_token_ids" : [1,22,3] , "choices":[{"index":0,"text":"a","prompt_token_ids":[1,22,3],"token_ids":[7]}]}`,
		`{"prompt_token_ids":[1,22,3]`, `{"prompt_token_ids":[1,22,3]]}`, `{"prompt_token_ids":[1,22,3`,
		`{"prompt_token_ids":"[1,22,3]"}`, chatChunk,
		`{"prompt_token_ids":[1,22,3],"prompt_token_ids":[1,22,3],}`, `{"a" "prompt_token_ids":[1,22,3]}`,
	} {
		want := Inspect([]byte(data))
		for _, pinned := range []string{"", "[]", "[1]", "[1,22,3]", "[1,22,3,4]", "[9,22,3]"} {
			assert.Equal(t, want, InspectOf([]byte(data), []byte(pinned)), "%s, pinned %s", data, pinned)
		}
	}
}

func TestParseIDs(t *testing.T) {
	for text, want := range map[string][]uint32{"[]": {9}, "[0]": {9, 0}, "[1,22,4294967295]": {9, 1, 22, 1<<32 - 1}, "[1, 2]": {9, 1, 2}} {
		got, ok := ParseIDs([]uint32{9}, []byte(text))
		assert.True(t, ok, text)
		assert.Equal(t, want, got)
	}
	for _, bad := range []string{"", "[", "]", "[1", "[1,]", "[,1]", "[4294967296]", "[-1]", "[1]]", `["1"]`, "[1.5]"} {
		_, ok := ParseIDs(nil, []byte(bad))
		assert.False(t, ok, bad)
	}
}

func TestInspectAllocatesNothing(t *testing.T) {
	for _, s := range []string{chatChunk, usageChunk, prefilled, `{"\u0063hoices":[{"t\u0065xt":"a"}]}`, "[DONE]"} {
		data := []byte(s)
		assert.Zero(t, testing.AllocsPerRun(100, func() { Inspect(data) }), s)
	}
}

func TestRewriteTail(t *testing.T) {
	for _, tt := range []struct {
		name, data string
		cached     int
		nvext      string
		want       string
	}{
		{"nothing to do", chatChunk, 5, "", chatChunk},
		{"cached set", usageChunk, 4, "", `{"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[],"usage":{"prompt_tokens":12,"total_tokens":15,"completion_tokens":3,"prompt_tokens_details":{"cached_tokens":4}}}`},
		{"cached kept", usageChunk, -1, "", usageChunk},
		{"details null, kv dropped, nvext added", prefilled, 0, `{"a":1}`,
			`{"id":"cmpl-1","choices":[{"index":0,"text":"x","finish_reason":"length","token_ids":[7]}],"usage":{"prompt_tokens":12,"total_tokens":13,"completion_tokens":1,"prompt_tokens_details":{"cached_tokens":0}},"nvext":{"a":1}}`},
		{"details absent", `{"usage": { "prompt_tokens":1 } }`, 1, "",
			`{"usage": { "prompt_tokens":1,"prompt_tokens_details":{"cached_tokens":1} } }`},
		{"details with more", `{"usage":{"prompt_tokens_details":{"audio_tokens":0}}}`, 1, "",
			`{"usage":{"prompt_tokens_details":{"audio_tokens":0,"cached_tokens":1}}}`},
		{"details of another type", `{"usage":{"prompt_tokens_details":7}}`, 1, "", `{"usage":{"prompt_tokens_details":{"cached_tokens":1}}}`},
		{"usage null", `{"usage":null,"x":9007199254740993}`, 1, "", `{"usage":null,"x":9007199254740993}`},
		{"an engine's nvext replaced", `{"nvext":{"b":2},"x":1}`, -1, `{"a":1}`, `{"nvext":{"a":1},"x":1}`},
		{"kv null", `{"x":1,"kv_transfer_params":null}`, -1, "", `{"x":1}`},
		{"TensorRT-LLM's hand-off", `{"choices":[{"index":0,"disaggregated_params":{"ctx_request_id":1},"text":"a"}, {"disaggregated_params":null}],"usage":null,"prompt_token_ids":[1]}`, -1, "",
			`{"choices":[{"index":0,"text":"a"}, {}],"usage":null}`},
		{"a text that names it", `{"choices":[{"text":"\"disaggregated_params\""}],"prompt_token_ids":[1]}`, -1, "",
			`{"choices":[{"text":"\"disaggregated_params\""}],"prompt_token_ids":[1]}`},
		{"a member of another place", `{"choices":7,"disaggregated_params":1,"prompt_token_ids":[1]}`, -1, "",
			`{"choices":7,"disaggregated_params":1,"prompt_token_ids":[1]}`},
		{"no object", Done, 5, `{"a":1}`, Done},
		{"no JSON", `{"usage":`, 5, `{"a":1}`, `{"usage":`},
	} {
		var nvext []byte
		if tt.nvext != "" {
			nvext = []byte(tt.nvext)
		}
		assert.Equal(t, "data: "+tt.want, string(RewriteTail([]byte("data: "), []byte(tt.data), tt.cached, nvext)), tt.name)
	}
}

// FuzzInspect holds Inspect and the rewriters against encoding/json.
func FuzzInspect(f *testing.F) {
	for _, s := range []string{chatChunk, usageChunk, prefilled, Done, `{"error":{"message":"m"}}`,
		`{"choices":[{"delta":{"tool_calls":[1]},"finish_reason":"error"},7,null]}`,
		`{"usage":{"prompt_tokens_details":{"cached_tokens":{}}},"usage":{}}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		info := Inspect(data)
		assert.Equal(t, info, InspectOf(data, bytes.Clone(info.PromptIDs)), "%s, its prompt pinned", data)
		if hidden := info.HideIDs(nil, data); info.Valid && info.showed <= len(info.shows) {
			if after := Inspect(hidden); !after.Valid || after.ShowsIDs() || after.Content != info.Content || after.Finished != info.Finished {
				t.Errorf("%s hides to %s", data, hidden)
			}
		}
		require.True(t, !info.Valid || json.Valid(data), "valid: %q", data)
		require.True(t, info.Valid || reflect.DeepEqual(info, ChunkInfo{}), "%q: %+v", data, info)
		if kv := info.KVParams; kv != nil && (!json.Valid(kv) || kv[0] != '{') {
			t.Fatalf("kv %q", kv)
		}
		out := RewriteTail(nil, data, 77, []byte(`{"a":1}`))
		if !info.Valid {
			require.True(t, bytes.Equal(out, data), "%q became %q", data, out)
		} else if after := Inspect(out); !after.Valid || !json.Valid(out) || after.KVParams != nil ||
			info.Usage && after.CachedTokens != 77 || info.Content != after.Content || info.Tokens != after.Tokens {
			t.Fatalf("%q became %q: %+v", data, out, after)
		}
	})
}

// BenchmarkShownPrompt measures what a stream's first event costs that shows its prompt of 100,000 tokens: to inspect
// it, to keep its envelope, and to read the ids where the gateway has none of its own.
func BenchmarkShownPrompt(b *testing.B) {
	ids := make([]uint32, 100_000)
	for i := range ids {
		ids[i] = uint32(i*2654435761) % 150_000
	}
	data := append(AppendIDs([]byte(chatChunk[:len(chatChunk)-1]+`,"prompt_token_ids":`), ids), '}')
	info := Inspect(data)
	pinned := bytes.Clone(info.PromptIDs)
	for _, part := range []struct {
		name string
		run  func() bool
	}{
		{"inspect", func() bool { return Inspect(data).PromptIDs != nil }},
		{"pinned", func() bool { return InspectOf(data, pinned).PromptIDs != nil }},
		{"envelope", func() bool { return AppendEnvelope(nil, data, &info) != nil }},
		{"ids", func() bool { _, ok := ParseIDs(ids[:0], info.PromptIDs); return ok }},
	} {
		b.Run(part.name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				if !part.run() {
					b.Fatal("nothing is shown")
				}
			}
		})
	}
}
