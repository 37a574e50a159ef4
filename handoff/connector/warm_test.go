package connector

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/pools"
)

// A prompt computed ahead is a request of one token that names no hand-off: its blocks stay in the prefix cache, and
// the engine has nothing to release. SGLang's prefill mode refuses requests without a room; its own probes name the
// bootstrap host 2.2.2.2 (FAKE_BOOTSTRAP_HOST in 0.5.23's srt/disaggregation/utils.py, whose prefill.py then sends
// nothing).
func TestWarmCalls(t *testing.T) {
	r, err := openai.Limits{}.Scan(openai.Chat, []byte(`{"model":"m","messages":[{"role":"user","content":"x"}],`+
		`"stream":true,"stream_options":{"include_usage":true},"max_completion_tokens":99,"stop":["y"],"min_tokens":5,"logprobs":true}`))
	require.NoError(t, err)
	for name := range connectors {
		for _, role := range []pools.Role{pools.Prefill, pools.Both} {
			round := roundOf(name, r, []byte("[1,2]"))
			round.D = nil
			round.P.Role, round.P.Prioritizes, round.P.DataParallelRanks, round.PRank = role, true, 2, 1
			l, err := Warm(round)
			require.NoError(t, err, name)
			body := text(l)
			var members map[string]json.RawMessage
			require.NoError(t, json.Unmarshal([]byte(body), &members), body)
			fields := map[string]string{}
			for key, value := range members {
				fields[key] = string(value)
			}
			what := name + " " + string(role) + ": " + body
			assert.Equal(t, []any{round.P.ID, 1, false, openai.Chat.Path()}, []any{l.Worker, l.Rank, l.Stream, l.Path}, what)
			assert.Equal(t, []string{"1", "1", "false"}, []string{fields["max_tokens"], fields["max_completion_tokens"], fields["stream"]}, what)
			for _, gone := range []string{"disaggregated_params", "stop", "min_tokens", "logprobs", "stream_options"} {
				assert.NotContains(t, fields, gone, what)
			}
			assert.Contains(t, body, "[1,2]", what) // for vLLM a member of kv_transfer_params
			assert.NotContains(t, body, "do_remote", what)
			switch engineOf(name) {
			case "vllm": // the lower first
				assert.Equal(t, "32768", fields["priority"], what)
			case "sglang":
				assert.Equal(t, []string{"-32768", "1"}, []string{fields["priority"], fields["routed_dp_rank"]}, what)
			case "trtllm": // from 0 to 1
				assert.True(t, strings.HasPrefix(fields["priority"], "0.0000"), what)
			}
			if engineOf(name) == "sglang" && role == pools.Prefill {
				assert.Equal(t, []string{`"2.2.2.2"`, "1"}, []string{fields["bootstrap_host"], fields["bootstrap_room"]}, what)
			} else {
				assert.NotContains(t, body, "bootstrap", what)
			}
		}
	}
}
