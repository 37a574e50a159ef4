package openai

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAppendEvents(t *testing.T) {
	for _, c := range []struct {
		name, answer string
		endpoint     Endpoint
		usage        bool
		want         []string
	}{
		{
			"a chat", `{"id":"chatcmpl-1","object":"chat.completion","created":9007199254740993,"x":{"b":1,"a":2},` +
				`"choices":[{"index":0,"message":{"role":"assistant","content":"hi"},"finish_reason":"stop","stop_reason":"x"}],"usage":{"prompt_tokens":3}}`, Chat, true,
			[]string{
				`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":9007199254740993,"x":{"b":1,"a":2},"choices":[{"index":0,"finish_reason":null,"delta":{"role":"assistant","content":"hi"}}]}`,
				`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":9007199254740993,"x":{"b":1,"a":2},"choices":[{"index":0,"delta":{},"finish_reason":"stop","stop_reason":"x"}]}`,
				`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":9007199254740993,"x":{"b":1,"a":2},"choices":[],"usage":{"prompt_tokens":3}}`,
				Done,
			},
		},
		{
			"tool calls", `{"object":"chat.completion","choices":[{"index":0,"message":{"role":"assistant","content":null,"tool_calls":[{"id":"a"},{"id":"b"}]},"finish_reason":"tool_calls"}]}`, Chat, false,
			[]string{
				`{"object":"chat.completion.chunk","choices":[{"index":0,"finish_reason":null,"delta":{"role":"assistant","content":null,"tool_calls":[{"id":"a","index":0},{"id":"b","index":1}]}}]}`,
				`{"object":"chat.completion.chunk","choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}`,
				Done,
			},
		},
		{
			"TensorRT-LLM's hand-off", `{"choices":[{"index":0,"text":"a","disaggregated_params":{"ctx_request_id":1},"finish_reason":"stop"}],"prompt_token_ids":[1]}`, Completions, false,
			[]string{
				`{"choices":[{"index":0,"text":"a","finish_reason":null}]}`,
				`{"choices":[{"index":0,"text":"","finish_reason":"stop"}]}`,
				Done,
			},
		},
		{
			"completions of two choices", `{"object":"text_completion","choices":[{"index":0,"text":"a","finish_reason":"stop"},{"index":1,"text":"b","finish_reason":"length"}],"usage":{}}`, Completions, false,
			[]string{
				`{"object":"text_completion","choices":[{"index":0,"text":"a","finish_reason":null}]}`,
				`{"object":"text_completion","choices":[{"index":0,"text":"","finish_reason":"stop"}]}`,
				`{"object":"text_completion","choices":[{"index":1,"text":"b","finish_reason":null}]}`,
				`{"object":"text_completion","choices":[{"index":1,"text":"","finish_reason":"length"}]}`,
				Done,
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := AppendEvents(nil, []byte(c.answer), c.endpoint, c.usage)
			require.NoError(t, err)
			assert.Equal(t, "data: "+strings.Join(c.want, "\n\ndata: ")+"\n\n", string(got), "got\n%swant", got)
		})
	}
	for _, bad := range []string{``, `[]`, `{}`, `{"choices":[]}`, `{"choices":[1]}`, `{"choices":[{"index":0}]}`,
		`{"choices":[{"message":{"tool_calls":[1]}}]}`, `{"choices":[{"message":[]}]}`} {
		_, err := AppendEvents(nil, []byte(bad), Chat, true)
		assert.Error(t, err, bad)
	}
}
