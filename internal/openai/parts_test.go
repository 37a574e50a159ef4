package openai

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A part is the request of one prompt: all else stays, with what the edge has changed since the scan.
func TestParts(t *testing.T) {
	r := scanned(t, Completions, `{"prompt": [ "a" ,"b\u00e9", "c"],"model":"m","n":2,"best_of":2,"rid":null,"user":"u","nvext":{"agent_hints":{"priority":9}}}`)
	require.Equal(t, 3, r.Prompts())
	*r.Nvext.Priority = 3
	r.Isolate([32]byte{1})
	part, err := r.Part(1, 2)
	require.NoError(t, err)
	assert.Equal(t, `{"prompt": "b\u00e9","model":"m","n":2,"best_of":2,"user":"u","nvext":{"agent_hints":{"priority":9}}}`, string(part.Raw))
	assert.Equal(t, []any{"bé", int32(3), r.CacheSalt, true, 1, 2},
		[]any{part.Prompt.Text(), *part.Nvext.Priority, part.CacheSalt, part.Isolated, part.Prompts(), part.N})
	assert.Equal(t, "a", r.Prompt.Text(), "the request itself has its first prompt")

	part, err = r.Part(2, 1)
	require.NoError(t, err)
	assert.Equal(t, `{"prompt": "c","model":"m","n":1,"user":"u","nvext":{"agent_hints":{"priority":9}}}`, string(part.Raw))

	r = scanned(t, Completions, `{"prompt":[[1, 2],[3]]}`)
	part, err = r.Part(0, 1)
	require.NoError(t, err)
	assert.Equal(t, `{"prompt":[1, 2]}`, string(part.Raw))
	assert.Equal(t, []uint32{1, 2}, part.Prompt.IDs)

	r = scanned(t, Chat, `{"messages":[{"role":"user","content":"x"}],"n":3}`)
	part, err = r.Part(0, 1)
	require.NoError(t, err)
	assert.Equal(t, `{"messages":[{"role":"user","content":"x"}],"n":1}`, string(part.Raw))
	assert.Empty(t, part.Unresumable("vllm", false), "each answer may resume")
}

func TestCheckParts(t *testing.T) {
	for _, c := range []struct {
		body  string
		apart bool
		param string
	}{
		{`"prompt":["a","b"],"n":128`, false, ""},
		{`"prompt":["a","b"],"n":128`, true, ""},
		{`"prompt":[` + strings.Repeat(`"a",`, 1023) + `"a"],"n":128`, false, ""},
		{`"prompt":[` + strings.Repeat(`"a",`, 1023) + `"a"],"n":2`, true, "n"},
		{`"prompt":["a","b"],"nvext":{"extra_fields":["timing"]}`, false, "nvext.extra_fields"},
		{`"prompt":["a","b"],"nvext":{"extra_fields":["stop_reason"]}`, false, ""},
		{`"prompt":["a","b"],"nvext":{"annotations":["query_instance_id:"]}`, false, "nvext.annotations"},
		{`"prompt":[` + strings.Repeat(`"a",`, 999) + `"a"],"user":"` + strings.Repeat("u", 67_200) + `"`, false, "prompt"},
	} {
		e := scanned(t, Completions, `{`+c.body+`}`).CheckParts(c.apart)
		assert.True(t, (e == nil) == (c.param == "") && (e == nil || e.Param == c.param), "%.60s: %v", c.body, e)
	}
}

// mergeOf merges these events, each "PART DATA".
func mergeOf(m *Merge, events ...string) []string {
	var out []byte
	for _, e := range events {
		var part int
		_, _ = fmt.Sscanf(e, "%d", &part)
		_, data, _ := strings.Cut(e, " ")
		raw := AppendEvent(nil, []byte(data))
		out = m.AppendEvent(out, part, Event{Raw: raw, Data: []byte(data)})
	}
	out = m.AppendEnd(out)
	return strings.Split(strings.TrimSuffix(strings.ReplaceAll(string(out), "data: ", ""), "\n\n"), "\n\n")
}

// Events of two prompts with two answers each, as vLLM 0.32 writes them, become those that it writes for both at once:
// i = output.index + prompt_idx*num_choices, and the usage of all (completion_stream_generator in its
// entrypoints/openai/completion/serving.py).
func TestMergeEvents(t *testing.T) {
	chunk := func(id string, index int, text string) string {
		return fmt.Sprintf(`{"id":%q,"object":"text_completion","created":%d,"model":"m","choices":[{"index":%d,"text":%q,"finish_reason":null}]}`,
			id, len(id), index, text)
	}
	usage := func(id string, prompt, completion int) string {
		return fmt.Sprintf(`{"id":%q,"created":1,"choices":[],"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,`+
			`"prompt_tokens_details":{"cached_tokens":1},"completion_tokens_details":null}}`, id, prompt, prompt+completion, completion)
	}
	got := mergeOf(&Merge{Answers: 2, Calls: 1}, "1 "+chunk("bb", 1, "x"), "0 "+chunk("a", 0, "y"), "0 "+usage("a", 5, 7), "0 [DONE]",
		"1 "+chunk("bb", 0, "z"), "1 "+usage("bb", 3, 2), "1 [DONE]")
	assert.Equal(t, []string{
		chunk("bb", 3, "x"), strings.Replace(chunk("bb", 0, "y"), `"a"`, `"bb"`, 1), chunk("bb", 2, "z"),
		`{"id":"bb","created":2,"choices":[],"usage":{"completion_tokens":9,"completion_tokens_details":null,"prompt_tokens":8,` +
			`"prompt_tokens_details":{"cached_tokens":2},"total_tokens":17}}`,
		Done,
	}, got)

	// A prompt that two parts have counts once, as in SGLang 0.5.23 (calculate_streaming_usage in usage_processor.py).
	got = mergeOf(&Merge{Answers: 1, Calls: 2}, "0 "+usage("a", 5, 7), "1 "+usage("b", 5, 2))
	assert.Equal(t, []string{`{"id":"a","created":1,"choices":[],"usage":{"completion_tokens":9,"completion_tokens_details":null,` +
		`"prompt_tokens":5,"prompt_tokens_details":{"cached_tokens":1},"total_tokens":14}}`, Done}, got)

	// The usage so far of a choice stays that of the choice, and an error ends all.
	m := &Merge{Answers: 1, Calls: 1}
	counted := strings.Replace(chunk("a", 0, "x"), `]}`, `],"usage":{"prompt_tokens":1}}`, 1)
	got = mergeOf(m, "0 "+counted, `1 {"error":{"message":"no"}}`)
	assert.Equal(t, []string{counted, `{"error":{"message":"no"}}`, Done}, got)
	assert.True(t, m.Failed)
}

func TestMergeWhole(t *testing.T) {
	whole := func(id, choices string, prompt, completion int) []byte {
		return fmt.Appendf(nil, `{"id":%q,"choices":[%s],"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}}`,
			id, choices, prompt, prompt+completion, completion)
	}
	m := &Merge{Answers: 2, Calls: 1}
	assert.Equal(t, `{"id":"a","choices":[{"index":0,"text":"x"},{"index":1},{"index":3},{"text":"y","index":2}],`+
		`"usage":{"completion_tokens":3,"prompt_tokens":9,"total_tokens":12}}`,
		string(m.AppendWhole(nil, [][]byte{whole("a", `{"index":0,"text":"x"},{"index":1}`, 4, 1), whole("b", `{"index":1}, {"text":"y"}`, 5, 2)})))
}

func BenchmarkMergeEvent(b *testing.B) {
	data := []byte(`{"id":"cmpl-8b6d6163a9d179a0-1","object":"text_completion","created":1795720158,"model":"m","choices":[{"index":0,` +
		`"text":" word","logprobs":null,"finish_reason":null,"stop_reason":null,"prompt_token_ids":null,"token_ids":null}]}`)
	ev := Event{Raw: AppendEvent(nil, data), Data: data}
	m := &Merge{Answers: 1, Calls: 1}
	out := m.AppendEvent(nil, 1, ev)
	b.SetBytes(int64(len(out)))
	for b.Loop() {
		out = m.AppendEvent(out[:0], 1, ev)
	}
}
