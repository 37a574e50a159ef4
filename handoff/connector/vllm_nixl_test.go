package connector

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/prefill"
)

// The legs' bodies, byte for byte: what the client wrote and the gateway does not need to
// touch comes through as it was, 64-bit seeds and unknown fields included.
func TestNIXLPlan(t *testing.T) {
	const ask = `,"stream":false,"max_tokens":1,"ignore_eos":true,"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,` +
		`"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}}`
	const tools, shown = `,"tools":[{"type":"function","function":{"name":"f"}}]`, `,"logprobs":true,"top_logprobs":5,"return_token_ids":true`
	const seed, unknown = `, "seed":9007199254740993`, `,"x":{"b":1,"a":2}`
	const answer = `,"stream":true,"stream_options":{"include_usage":true},"max_tokens":9,"min_tokens":3`
	for _, c := range []struct{ name, head, client, prefill, decode string }{ // the client's fields, and those that are left on each leg
		{"completion", hi, seed + answer + unknown, seed + unknown, seed + answer + unknown},
		{
			"chat with the newer limit, stop and nvext", hiChat,
			`,"max_completion_tokens":9,"stop":["x"],"nvext":{"extra_fields":["timing"]}`, `,"max_completion_tokens":1`,
			`,"max_completion_tokens":9,"stop":["x"]`,
		},
		{"a tool call that must be", hiChat, `,"tool_choice":"required"` + tools, tools, `,"tool_choice":"required"` + tools},
		{"other choices of tools", hiChat, `,"tool_choice":"auto"` + tools, `,"tool_choice":"auto"` + tools, `,"tool_choice":"auto"` + tools},
		{"more than the text", hiChat, shown, ``, shown},
		{"more than a completion's text", hi, `,"logprobs":3,"echo":true`, ``, `,"logprobs":3,"echo":true`},
	} {
		a := carrying(pair("text"), scan(t, c.head+c.client+"}"), nil)
		plan := planned(t, NIXL{}, a)
		assert.Equal(t, PrefillFirst, plan.Order)
		assert.Equal(t, c.head+c.decode+"}", text(plan.Decode), c.name)
		sameMembers(t, c.head+c.prefill+ask, text(plan.Prefill), c.name)
		for _, leg := range []http1.Leg{plan.Prefill, plan.Decode} {
			assert.Equal(t, []string{a.Request.Endpoint.Path(), a.ID, a.TraceParent}, []string{leg.Path, leg.RequestID, leg.TraceParent}, c.name)
		}
		assert.False(t, plan.Prefill.Stream)
	}
	plan := planned(t, NIXL{}, carrying(pair("tokens"), scan(t, hi+`,"max_tokens":9}`), []uint32{7, 8}))
	sameMembers(t, `{"model":"m","prompt":[7,8]`+ask, text(plan.Prefill), "workers that take tokens")
	assert.Equal(t, `{"model":"m","prompt":[7,8],"max_tokens":9}`, text(plan.Decode), "workers that take tokens")
	plan = planned(t, NIXL{}, carrying(pair("tokens"), scan(t, hiChat+tools+"}"), []uint32{1, 2, 3}))
	assert.Equal(t, []string{"/v1/chat/completions", hiChat + tools + "}"}, []string{plan.Decode.Path, text(plan.Decode)},
		"a chat stays a chat")
	_, err := NIXL{}.Plan(carrying(pair("tokens"), scan(t, hi+"}"), nil))
	assert.Error(t, err, "a text whose tokens are not known, to workers that take tokens")
}

// An engine is asked to re-announce what it uses: besides what the client put into
// vllm_xargs, byte for byte, never against it, and only the engine that is meant.
func TestNIXLReannounce(t *testing.T) {
	for _, c := range []struct{ name, given, want string }{
		{"nothing was given", ``, `,"vllm_xargs":{"kv_cache_report_mode":"full"}`},
		{"null", `,"vllm_xargs":null`, `,"vllm_xargs":{"kv_cache_report_mode":"full"}`},
		{"empty", `,"vllm_xargs":{}`, `,"vllm_xargs":{"kv_cache_report_mode":"full"}`},
		{"other things", `,"vllm_xargs": {"b":9007199254740993, "a":"x"}`,
			`,"vllm_xargs": {"b":9007199254740993, "a":"x","kv_cache_report_mode":"full"}`},
		{"the client's own", `,"vllm_xargs":{"kv_cache_report_mode":"incremental"}`, `,"vllm_xargs":{"kv_cache_report_mode":"incremental"}`},
		{"the client's own, spelt otherwise", `,"vllm_xargs":{"kv_cache_report_m\u006fde":""}`, `,"vllm_xargs":{"kv_cache_report_m\u006fde":""}`},
	} {
		a := carrying(pair("text"), scan(t, hi+c.given+"}"), nil)
		a.PReannounce = true
		plan := planned(t, NIXL{}, a)
		assert.Equal(t, hi+c.given+"}", text(plan.Decode), c.name)
		assert.Contains(t, text(plan.Prefill), hi+c.want, c.name)
		a.P, a.PReannounce, a.DReannounce = nil, false, true
		assert.Equal(t, hi+c.want+"}", text(planned(t, Local{}, a).Decode), "%s: alone", c.name)
	}
}

// Both legs cut the prompt alike: -1 means another length to each of them.
func TestNIXLTruncates(t *testing.T) {
	for given, want := range map[string]string{`-1`: `40`, `7`: `7`} {
		a := carrying(pair("text"), scan(t, hi+`,"max_tokens":60,"truncate_prompt_tokens":`+given+`}`), nil)
		a.Kept = 40
		plan := planned(t, NIXL{}, a)
		for _, leg := range []http1.Leg{plan.Prefill, plan.Decode} {
			assert.Contains(t, text(leg), `"truncate_prompt_tokens":`+want, given)
		}
	}
}

const goodParams = `{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[12,13,14]],"remote_engine_id":"e",` +
	`"remote_request_id":"cmpl-x-0-1a2b3c4d","remote_host":"10.0.0.1","remote_port":5600,"tp_size":1,"remote_num_tokens":48,` +
	`"remote_blocks_expiry_time":null,"transfer_mode":"pull","later":{"n":18446744073709551615}}`

func TestNIXLOnPrefill(t *testing.T) {
	now, r := time.Unix(1000, 0), pair("text")
	answer := func(params string) string { return `{"id":"x","choices":[],"kv_transfer_params":` + params + `}` }
	but := func(old, to string) string { return strings.Replace(goodParams, old, to, 1) }
	kv := took(t, NIXL{}, r, answer(goodParams), now)
	assert.Equal(t, []string{goodParams, "p1", "i"}, []string{string(kv.Params), kv.Producer, kv.Incarnation})
	assert.Equal(t, now.Add(30*time.Second), kv.Expires)
	for _, host := range []string{"localhost", "127.0.0.1", "127.9.9.9", "::1", "0.0.0.0"} {
		assert.Equal(t, goodParams, string(took(t, NIXL{}, r, answer(but("10.0.0.1", host)), now).Params), host)
	}
	flat := but(`[[12,13,14]]`, `[12,13,14]`) // vLLM before March 2026 has one list
	assert.Equal(t, flat, string(took(t, NIXL{}, r, answer(flat), now).Params))
	for name, c := range map[string]struct {
		answer   string
		releases bool
	}{
		"nothing":         {`{"choices":[]}`, false},
		"no object":       {answer(`null`), false},
		"a string":        {answer(`"x"`), false},
		"wrong direction": {answer(but(`"do_remote_prefill":true`, `"do_remote_prefill":false`)), true},
		"both directions": {answer(but(`"do_remote_decode":false`, `"do_remote_decode":true`)), true},
		"no engine":       {answer(but(`"e"`, `""`)), false},
		"no request":      {answer(but(`"cmpl-x-0-1a2b3c4d"`, `null`)), false},
		"no host":         {answer(but(`"10.0.0.1"`, `null`)), false},
		"no port":         {answer(but(`5600`, `null`)), false},
		"port 70000":      {answer(but(`5600`, `70000`)), false},
		"no blocks":       {answer(but(`[[12,13,14]]`, `[]`)), true},
		"null blocks":     {answer(but(`[[12,13,14]]`, `null`)), true},
		"empty groups":    {answer(but(`[[12,13,14]]`, `[[],[]]`)), true},
		"mixed blocks":    {answer(but(`[[12,13,14]]`, `[[12],13]`)), true},
		"another type":    {answer(but(`"do_remote_prefill":true`, `"do_remote_prefill":"yes"`)), true},
		"not in UTF-8":    {answer(but(`"e"`, "\"e\xff\"")), false},
		"push":            {answer(but(`"pull"`, `"push"`)), true},
		"too large":       {answer(but(`"tp_size"`, `"pad":"`+strings.Repeat("x", prefill.MaxKVBytes)+`","tp_size"`)), false},
		"too many blocks": {answer(but(`[[12,13,14]]`, `[[12`+strings.Repeat(",13", prefill.MaxKVBytes/3)+`]]`)), true},
	} {
		kv, _, err := NIXL{}.OnPrefill(r, prefill.ReadAnswer([]byte(c.answer)), now)
		if err == nil || (kv.Params != nil) != c.releases {
			t.Errorf("%s: %v, %.200s; to be released: %t", name, err, kv.Params, c.releases)
		} else if c.releases {
			var body struct {
				KV json.RawMessage `json:"kv_transfer_params"`
			}
			var sent nixlParams
			leg := text(NIXL{}.Release(r, kv)[0])
			require.NoError(t, json.Unmarshal([]byte(leg), &body), name)
			require.NoError(t, json.Unmarshal(body.KV, &sent), name)
			assert.True(t, sent.check("pull") == nil && sent.RequestID == "cmpl-x-0-1a2b3c4d", "%s: released with %s", name, leg)
		}
	}
}

// What is read the fast way is what encoding/json reads.
func FuzzNIXLParams(f *testing.F) {
	for _, params := range []string{
		goodParams, `{}`, `{"remote_block_ids":[]}`, `{"remote_block_ids":[[],[1,2]]}`, `{"remote_block_ids":[1,2,3]}`,
		`{"remote_block_ids":[1,[2]]}`,
		`{"remote_port":5600,"remote_port":1}`, `{"Remote_Port":5600}`, `{"remote_port":"5600"}`, `{"remote_port":null}`, `{"remote_port":1e3}`,
		`{"transfer_mode":"push"}`, `{"transfer_mode":null}`, `{"remote_host":"a\u0062"}`, `{"remote_host":"ü"}`, `{"remote_ho\u0073t":"a"}`,
		`{"do_remote_prefill":1}`, `{"do_remote_prefill":true,"do_remote_decode":false,"x":{"y":[1]}}`, ` {"remote_engine_id":"e"} `,
		`{"remote_port":-0}`, `{"remote_block_ids":["1"]}`, `{"remote_block_ids":[[1.5,-2]]}`, `{"remote_bloc\u212a_ids":[1]}`,
	} {
		f.Add([]byte(params))
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		if raw = openai.Inspect(slices.Concat([]byte(`{"kv_transfer_params":`), raw, []byte{'}'})).KVParams; raw == nil {
			return
		}
		fast, fastErr := readNIXL(raw)
		slow, slowErr := slowNIXL(raw)
		assert.True(t, fmt.Sprint(fastErr) == fmt.Sprint(slowErr) && reflect.DeepEqual(fast, slow),
			"%s: %+v, %v; encoding/json: %+v, %v", raw, fast, fastErr, slow, slowErr)
	})
}

// An ordinary hand-off is not read by encoding/json.
func TestNIXLParamsAreReadOnce(t *testing.T) {
	_, plain := openai.ReadTransfer([]byte(goodParams))
	assert.True(t, plain, "%s is read the slow way", goodParams)
}
