package openai

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func FuzzScan(f *testing.F) {
	for _, body := range []string{
		`{"model":"m","prompt":"p\u00e9\ud83d\ude00","stream":true,"stop":["a"],"max_tokens":5}`,
		`{"model":"m","prompt":[1,2,3],"seed":9007199254740993}`,
		`{"model":"m","prompt":[[1,2,3]],"nvext":{"agent_hints":{"priority":1},"extra_fields":["timing"]}}`,
		`{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"x"},{"type":"image_url"}]}]}`,
		`{"mod\u0065l":"m","messages":[{"role":"user","content":null}],"vllm_xargs":{"rid":1}}`,
		`{"prompt":["a", "\u00e9"],"n":2,"best_of":2,"seed":1}`,
		`{"prompt":[[1, 2],[3]],"rid":null}`,
		`{"a":[[[[{"b":[1.5e-3,true,false,null]}]]]]}`,
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, ep := range []Endpoint{Chat, Completions} {
			r, err := scanBody(ep, body)
			if err != nil {
				var e *Error
				require.True(t, errors.As(err, &e) && e.Status == 400 && json.Valid(e.Append(nil, "")), err)
				continue
			}
			var m map[string]json.RawMessage
			require.NoError(t, json.Unmarshal(bytes.TrimPrefix(body, []byte("\ufeff")), &m), "accepted %q", body)
			require.Len(t, m, len(r.members), "members")
			for name, want := range m {
				if got, ok := r.Field(name); !ok || !bytes.Equal(got, want) {
					t.Fatalf("%q is %q, want %q", name, got, want)
				}
			}
			var model string
			_ = json.Unmarshal(m["model"], &model)
			require.Equal(t, model, r.Model)
			samePrompt(t, r, m)
			sameParts(t, r, m)
		}
	})
}

// sameParts splits a completion of several prompts: each part has one of them, and all else.
func sameParts(t *testing.T, r *Request, m map[string]json.RawMessage) {
	t.Helper()
	var prompts []json.RawMessage
	if r.Prompts() > 1 {
		require.NoError(t, json.Unmarshal(m["prompt"], &prompts))
		require.Len(t, prompts, r.Prompts())
	}
	for i, want := range prompts {
		part, err := r.Part(i, 1)
		require.NoError(t, err)
		got, _ := part.Field("prompt")
		require.Equal(t, string(bytes.TrimSpace(want)), string(got))
		require.Equal(t, []any{r.Prompt.Kind, 1, 1}, []any{part.Prompt.Kind, part.N, part.Prompts()})
		for name, value := range m {
			if own, ok := part.Field(name); name != "prompt" && name != "n" && name != "best_of" && ok && !bytes.Equal(own, value) {
				t.Fatalf("%q is %q, was %q", name, own, value)
			}
		}
	}
}

// samePrompt compares a scanned prompt with what encoding/json reads.
func samePrompt(t *testing.T, r *Request, m map[string]json.RawMessage) {
	t.Helper()
	switch r.Prompt.Kind {
	case PromptText:
		var text string
		require.True(t, json.Unmarshal(bytes.Trim(m["prompt"], "[] \r\n\t"), &text) != nil || text == r.Prompt.Text(),
			"text %q, want %q", r.Prompt.Text(), text)
		require.Equal(t, len(r.Prompt.Text()), r.Prompt.TokensAtLeast(1), "bytes")
	case PromptIDs:
		var ids []uint32
		raw := bytes.TrimSpace(m["prompt"])
		if inner := bytes.TrimSpace(raw[1 : len(raw)-1]); inner[0] == '[' {
			raw = inner
		}
		if err := json.Unmarshal(raw, &ids); err == nil && !reflect.DeepEqual(ids, r.Prompt.IDs) { // others come as floats or text
			t.Fatalf("ids %v, want %v", r.Prompt.IDs, ids)
		}
	case PromptMessages:
		total := 0
		for _, m := range r.Prompt.Messages() {
			total += len(m.Content)
		}
		require.Equal(t, total, r.Prompt.TokensAtLeast(1), "bytes of content")
	default:
		t.Fatal("accepted without a prompt")
	}
}

var surrogate = regexp.MustCompile(`\\u[dD][89a-fA-F]`)

// FuzzObject holds the cursor against encoding/json: the same texts are
// objects for both, but for lone surrogates and depth.
func FuzzObject(f *testing.F) {
	for _, s := range []string{`{}`, ` { "a" : [ ] } `, `{"a":-0.0e+1,"b":[1,[2],{"c":null}]}`, `{"a":"\u00e9\\"}`, `{"a":1,}`, `{"a":[}`,
		``, `[]`, `1`, `{`, `{}x`, `{"a"}`, `{"a":}`, `null`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		_, got := NewEdit(data)
		want := json.Valid(data) && bytes.TrimLeft(data, " \r\n\t")[0] == '{'
		require.True(t, !got || want, "accepted %q", data)
		if want && !got && !surrogate.Match(data) && bytes.Count(data, []byte("[")) < deepest && bytes.Count(data, []byte("{")) < deepest {
			t.Fatalf("refused %q", data)
		}
	})
}

// benchmarkBody is a chat request of about size bytes, most of them in the last
// message: prose with a line feed each hundred characters.
func benchmarkBody(size int) []byte {
	line := strings.Repeat("The quick brown fox jumps over the lazy dog, ", 3)[:98] + `\n`
	text := strings.Repeat(line, max(1, (size-400)/len(line)))
	return []byte(`{"model":"tandem-sim","messages":[{"role":"system","content":"You are a helpful assistant."},` +
		`{"role":"user","content":"` + text + `"}],"stream":true,"stream_options":{"include_usage":true},"max_tokens":256,` +
		`"temperature":0.7,"top_p":0.95,"seed":42,"stop":["\n\n"],"user":"u-1",` +
		`"nvext":{"agent_hints":{"priority":5},"extra_fields":["worker_id","timing"]}}`)
}

func BenchmarkScanBody(b *testing.B) {
	for name, size := range map[string]int{"bytes=2k": 2_000, "bytes=400k": 400_000} {
		b.Run(name, func(b *testing.B) {
			body := benchmarkBody(size)
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := scanBody(Chat, body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
