package connector

import (
	"strings"
	"testing"

	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/upstream"
	"github.com/tandem-pd/tandem/prefill"
)

// TestEnginesShowThePrompt: the worker that computes the prompt is asked for its ids in its engine's own field, and no other
// worker is; decode gets those that prefill reports, with the KV.
func TestEnginesShowThePrompt(t *testing.T) {
	const chat, text = `{"model":"m","messages":[{"role":"user","content":"hi"}]}`, `{"model":"m","prompt":"hi"}`
	for _, c := range []struct{ engine, body, field string }{
		{"vllm-nixl", chat, "return_token_ids"}, {"vllm-nixl", text, "return_token_ids"}, {"vllm-mooncake", chat, "return_token_ids"},
		{"sglang", chat, "return_prompt_token_ids"}, {"sglang", text, "return_token_ids"}, {"trtllm", chat, ""},
	} {
		endpoint := openai.Chat
		if c.body == text {
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
			plan, err := speaks.Plan(r)
			if err != nil {
				t.Fatal(err)
			}
			for role, leg := range map[string]upstream.Leg{"prefill": plan.Prefill, "decode": plan.Decode} {
				got := string(leg.Body.AppendTo(nil))
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
	plan, err := NIXL{}.Plan(r)
	if err != nil {
		t.Fatal(err)
	}
	d := &plan.Decode
	Pin(d, r.D, []byte(`[7, 8]`))
	NIXL{}.Bind(d, prefill.KV{Params: []byte(goodParams)})
	if got, _ := raw(t, d.Body.AppendTo(nil)); got["kv_transfer_params"] != `"kv_transfer_params":{"prompt_token_ids":[7, 8],`+goodParams[1:] {
		t.Errorf("decode gets %s", got["kv_transfer_params"])
	}
}
