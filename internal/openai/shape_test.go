package openai

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// plainEvents are engines' events with a text: vLLM's with and without ids, its completions', SGLang's, and one of two
// texts.
var plainEvents = []string{
	`{"id":"c","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,"delta":{"content":"a"},"logprobs":null,"finish_reason":null,"token_ids":[7]}]}`,
	`{"id":"c","choices":[{"index":0,"delta":{"content":" b"},"finish_reason":null}],"usage":null}`,
	`{"id":"c","choices":[{"token_ids":[1,2],"index":0,"text":"ids first"}]}`,
	`{"id":"c","choices":[{"index":0,"text":"c\n","logprobs":null,"finish_reason":null,"token_ids":[10,20]}],"usage":{"prompt_tokens":3,"completion_tokens":1}}`,
	`{"choices":[{"delta":{"role":"assistant","content":"x","reasoning_content":null},"matched_stop":null}]}`,
	`{"choices":[{"text":"one","delta":{"content":"two"},"token_ids":[1]}]}`,
	`{"choices":[{"text":"a"},{"text":"b"}]}`,
	`{"choices":[{"text":"twice","token_ids":[1],"token_ids":[2,3]}]}`,
	`{"choices":[{"text":"end","finish_reason":"stop","token_ids":[0]}]}`,
}

// TestShapeReadsAlikeEvents checks that events which are like the one before are found to be, and are read as any
// other.
func TestShapeReadsAlikeEvents(t *testing.T) {
	for _, form := range []string{plainEvents[0], plainEvents[1], plainEvents[3], plainEvents[4], plainEvents[5], plainEvents[8]} {
		var s Shape
		s.Inspect(new(ChunkInfo), []byte(form), nil)
		old := Inspect([]byte(form))
		for _, text := range []string{"z", `é \"quoted\" \u00e9`, strings.Repeat("long ", 100)} {
			for _, ids := range []string{"[0]", "[1,22,333]", "[4294967295]"} {
				data := []byte(form[:old.text.start] + text + form[old.text.end:])
				if old.IDs != nil {
					at := Inspect(data).ids
					data = []byte(string(data[:at.start]) + ids + string(data[at.end:]))
				}
				var got ChunkInfo
				assert.True(t, s.like(&got, data), string(data))
				assert.Equal(t, Inspect(data), got, string(data))
			}
		}
	}
}

// FuzzShape holds what a stream's events are read as against Inspect, which knows no event before.
func FuzzShape(f *testing.F) {
	for i, a := range plainEvents {
		f.Add(a, plainEvents[(i+1)%len(plainEvents)], "text", "[1,2]")
	}
	for _, change := range [][2]string{ // which look alike and are not
		{`"a"`, `""`}, {`"a"`, `"a","refusal":"no"`}, {`"a"`, "\"\x01\""}, {`"a"`, `"\q"`}, {`[7]`, `[]`}, {`[7]`, `[07]`}, {`[7]`, `[7,]`},
		{`[7]`, `[-7]`}, {`[7]`, `[7`}, {`[7]`, `null`}, {`[7]`, `[7] `}, {`null,"token`, `"stop","token`}, {`}]}`, `}],"error":{}}`},
		{`}]}`, `}]} x`},
	} {
		f.Add(plainEvents[0], strings.Replace(plainEvents[0], change[0], change[1], 1), "text", "[1,2]")
	}
	f.Fuzz(func(t *testing.T, a, b, text, ids string) {
		var s Shape
		events := []string{a, b, a}
		if info := Inspect([]byte(a)); info.text.end > 0 {
			other := a[:info.text.start] + text + a[info.text.end:]
			events = append(events, other)
			if at := info.ids; at.end > 0 {
				events = append(events, a[:at.start]+ids+a[at.end:])
			}
			if at := Inspect([]byte(other)).ids; at.end > 0 {
				events = append(events, other[:at.start]+ids+other[at.end:], a)
			}
		}
		for _, data := range events {
			var got ChunkInfo
			s.Inspect(&got, []byte(data), nil)
			require.Equal(t, Inspect([]byte(data)), got, "%q after %q", data, s.event)
		}
	})
}
