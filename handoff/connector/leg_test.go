package connector

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
)

// TestLegsShareTheClientsBody: what a round's legs cost does not grow with the
// client's body, or many running requests hold several copies of each.
func TestLegsShareTheClientsBody(t *testing.T) {
	r := scan(t, `{"model":"m","stream":true,"prompt":"`+strings.Repeat("x", 1<<20)+`","max_tokens":9}`)
	round, kv := carrying(pair("text"), r, nil), prefill.KV{Params: json.RawMessage(goodParams)}
	cost := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			plan := planned(b, NIXL{}, round)
			NIXL{}.Bind(&plan.Decode, kv)
		}
	}).AllocedBytesPerOp()
	assert.LessOrEqual(t, cost, int64(16<<10), "bytes that the legs of a body of 1 MiB take")
}

// TestShowsIDs: whose streams can show their tokens. vLLM 0.26's completions do (its completion/serving.py); its chats do as
// well, but it accepts no tokens of a chat to continue.
func TestShowsIDs(t *testing.T) {
	for _, c := range []struct {
		engine, version   string
		completions, chat bool
	}{
		{"vllm", "0.32.0", true, true}, {"vllm", "0.27.0", true, true}, {"vllm", "0.26.0", true, false}, {"vllm", "", true, false},
		{"sim", "", true, true}, {"sglang", "0.5.23", true, false}, {"trtllm", "1.2.0", false, false}, {"other", "", false, false},
	} {
		w := &pools.Worker{Engine: c.engine, EngineVersion: c.version}
		a, b := ShowsIDs(w, openai.Completions), ShowsIDs(w, openai.Chat)
		assert.True(t, a == c.completions && b == c.chat, "%s %s: completions %v, chats %v", c.engine, c.version, a, b)
	}
}

// TestFieldsThatNeedEachOther: a prefill leg of vLLM has no field whose other half it goes without, over which the engine
// answers 400 (the validators of vllm/entrypoints/openai/*/protocol.py of 0.32.0).
func TestFieldsThatNeedEachOther(t *testing.T) {
	for _, c := range []struct{ head, members, field, needs, with string }{
		{hi, `"logprobs":1,"logprob_token_ids":[5]`, "logprob_token_ids", "logprobs", "1"},
		{hiChat, `"logprobs":true,"logprob_token_ids":[5]`, "logprob_token_ids", "logprobs", "true"},
		{hiChat, `"logprobs":true,"top_logprobs":2`, "top_logprobs", "logprobs", "true"},
		{hi, `"stream":true,"stream_options":{"include_usage":true}`, "stream_options", "stream", "true"},
		{hi, `"max_tokens":9,"min_tokens":3`, "min_tokens", "max_tokens", "9"},
		{hi, `"stream":true,"stream_interval":3`, "stream_interval", "stream", "true"},
	} {
		for name, leg := range legs(scan(t, c.head+`,`+c.members+`}`), nil) {
			if engine, _, _ := strings.Cut(name, " "); engineOf(engine) != "vllm" {
				continue
			}
			got, _ := raw(t, leg)
			assert.True(t, got[c.field] == "" || got[c.needs] == `"`+c.needs+`":`+c.with,
				"%s has %s with the %s %s: %s", name, c.field, c.needs, got[c.needs], leg)
		}
	}
}

// TestEnginesShowThePrompt: the worker that computes the prompt is asked for its ids in its engine's own field, and no other
// worker is; decode gets those that prefill reports, with the KV.
func TestEnginesShowThePrompt(t *testing.T) {
	const chat, completion = hiChat + `}`, hi + `}`
	for _, c := range []struct{ engine, body, field string }{
		{"vllm-nixl", chat, "return_token_ids"}, {"vllm-nixl", completion, "return_token_ids"}, {"vllm-mooncake", chat, "return_token_ids"},
		{"sglang", chat, "return_prompt_token_ids"}, {"sglang", completion, "return_token_ids"}, {"trtllm", chat, ""},
	} {
		for _, legs := range []int{1, 2} {
			r := roundOf(c.engine, scan(t, c.body), nil)
			speaks, shows := Connector(Local{}), 0
			if r.ShowPrompt = true; legs == 2 {
				speaks, _ = Of(r.P)
			} else {
				r.P = nil
			}
			plan := planned(t, speaks, r)
			for role, leg := range map[string]http1.Leg{"prefill": plan.Prefill, "decode": plan.Decode} {
				got := text(leg)
				asked := strings.Contains(got, `"return_token_ids":true`) || strings.Contains(got, `"return_prompt_token_ids":true`)
				if asked && !strings.Contains(got, `"`+c.field+`":true`) || asked && (role == "prefill") != (legs == 2) {
					t.Errorf("%s with %d legs: %s gets %s", c.engine, legs, role, got)
				} else if asked {
					shows++
				}
			}
			assert.Equal(t, min(1, len(c.field)), shows, "%s with %d legs are asked", c.engine, legs)
		}
	}
	r := roundOf("vllm-nixl", scan(t, chat), nil)
	plan := planned(t, NIXL{}, r)
	d := &plan.Decode
	Pin(d, r.D, []byte(`[7, 8]`))
	NIXL{}.Bind(d, prefill.KV{Params: []byte(goodParams)})
	got, _ := raw(t, d.Body.AppendTo(nil))
	assert.Equal(t, `"kv_transfer_params":{"prompt_token_ids":[7, 8],`+goodParams[1:], got["kv_transfer_params"])
}
