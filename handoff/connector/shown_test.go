package connector

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/upstream"
	"github.com/tandem-pd/tandem/prefill"
)

// TestEnginesShowThePrompt: the worker that computes the prompt is asked for its ids in its engine's own field, and no other
// worker is; decode gets those that prefill reports, with the KV.
func TestEnginesShowThePrompt(t *testing.T) {
	const chat, completion = hiChat + `}`, hi + `}`
	for _, c := range []struct{ engine, body, field string }{
		{"vllm-nixl", chat, "return_token_ids"}, {"vllm-nixl", completion, "return_token_ids"}, {"vllm-mooncake", chat, "return_token_ids"},
		{"sglang", chat, "return_prompt_token_ids"}, {"sglang", completion, "return_token_ids"}, {"trtllm", chat, ""},
	} {
		endpoint := openai.Chat
		if c.body == completion {
			endpoint = openai.Completions
		}
		for _, legs := range []int{1, 2} {
			r := roundOf(c.engine, scan(t, endpoint, c.body), nil)
			speaks, shows := Connector(Local{}), 0
			if r.ShowPrompt = true; legs == 2 {
				speaks, _ = Of(r.P)
			} else {
				r.P = nil
			}
			plan := planned(t, speaks, r)
			for role, leg := range map[string]upstream.Leg{"prefill": plan.Prefill, "decode": plan.Decode} {
				got := text(leg)
				asked := strings.Contains(got, `"return_token_ids":true`) || strings.Contains(got, `"return_prompt_token_ids":true`)
				if asked && !strings.Contains(got, `"`+c.field+`":true`) || asked && (role == "prefill") != (legs == 2) {
					t.Errorf("%s with %d legs: %s gets %s", c.engine, legs, role, got)
				} else if asked {
					shows++
				}
			}
			if want := min(1, len(c.field)); shows != want {
				t.Errorf("%s with %d legs: %d are asked, want %d", c.engine, legs, shows, want)
			}
		}
	}
	r := roundOf("vllm-nixl", scan(t, openai.Chat, chat), nil)
	plan := planned(t, NIXL{}, r)
	d := &plan.Decode
	Pin(d, r.D, []byte(`[7, 8]`))
	NIXL{}.Bind(d, prefill.KV{Params: []byte(goodParams)})
	got, _ := raw(t, d.Body.AppendTo(nil))
	assert.Equal(t, `"kv_transfer_params":{"prompt_token_ids":[7, 8],`+goodParams[1:], got["kv_transfer_params"])
}
