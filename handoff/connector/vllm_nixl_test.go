package connector

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/upstream"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
)

func scan(t *testing.T, ep openai.Endpoint, body string) *openai.Request {
	t.Helper()
	r, err := openai.Limits{}.Scan(ep, []byte(body))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func pair(input string) Round {
	worker := func(id string, role pools.Role) *pools.Worker {
		return &pools.Worker{ID: id, Incarnation: "i", Role: role, Model: "m", Engine: "vllm", ModelInput: input,
			Address: "http://10.0.0." + id[1:] + ":8000", Transfer: "10.0.0." + id[1:] + ":5600"}
	}
	return Round{ID: "0123456789abcdef-1", P: worker("p1", pools.Prefill), D: worker("d2", pools.Decode), TraceParent: "00-a-b-01"}
}

// carrying is the round of a request.
func carrying(r Round, request *openai.Request, ids []uint32) Round {
	r.Request, r.IDs = request, ids
	return r
}

// The legs' bodies, byte for byte: what the client wrote and the gateway does not need to
// touch comes through as it was, 64-bit seeds and unknown fields included.
func TestNIXLPlan(t *testing.T) {
	const ask = `"kv_transfer_params":{"do_remote_decode":true,"do_remote_prefill":false,` +
		`"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}`
	for _, c := range []struct {
		name, input     string
		endpoint        openai.Endpoint
		body            string
		ids             []uint32
		path            string
		prefill, decode string
	}{
		{
			"completion", "text", openai.Completions,
			`{"model":"m", "seed":9007199254740993,"prompt":"hi","stream":true,"stream_options":{"include_usage":true},"max_tokens":9,"min_tokens":3,"x":{"b":1,"a":2}}`, nil, "/v1/completions",
			`{"model":"m", "seed":9007199254740993,"prompt":"hi","stream":false,"max_tokens":1,"x":{"b":1,"a":2},"ignore_eos":true,` + ask + `}`,
			`{"model":"m", "seed":9007199254740993,"prompt":"hi","stream":true,"stream_options":{"include_usage":true},"max_tokens":9,"min_tokens":3,"x":{"b":1,"a":2}}`,
		},
		{
			"chat with the newer limit, stop and nvext", "text", openai.Chat,
			`{"model":"m","messages":[{"role":"user","content":"hi"}],"max_completion_tokens":9,"stop":["x"],"nvext":{"extra_fields":["timing"]}}`, nil, "/v1/chat/completions",
			`{"model":"m","messages":[{"role":"user","content":"hi"}],"max_completion_tokens":1,"stream":false,"max_tokens":1,"ignore_eos":true,` + ask + `}`,
			`{"model":"m","messages":[{"role":"user","content":"hi"}],"max_completion_tokens":9,"stop":["x"]}`,
		},
		{
			"a tool call that must be", "text", openai.Chat,
			`{"model":"m","messages":[{"role":"user","content":"hi"}],"tool_choice":"required","tools":[{"type":"function","function":{"name":"f"}}]}`, nil, "/v1/chat/completions",
			`{"model":"m","messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":{"name":"f"}}],"stream":false,"max_tokens":1,"ignore_eos":true,` + ask + `}`,
			`{"model":"m","messages":[{"role":"user","content":"hi"}],"tool_choice":"required","tools":[{"type":"function","function":{"name":"f"}}]}`,
		},
		{
			"other choices of tools", "text", openai.Chat,
			`{"model":"m","messages":[{"role":"user","content":"hi"}],"tool_choice":"auto","tools":[{"type":"function","function":{"name":"f"}}]}`, nil, "/v1/chat/completions",
			`{"model":"m","messages":[{"role":"user","content":"hi"}],"tool_choice":"auto","tools":[{"type":"function","function":{"name":"f"}}],"stream":false,"max_tokens":1,"ignore_eos":true,` + ask + `}`,
			`{"model":"m","messages":[{"role":"user","content":"hi"}],"tool_choice":"auto","tools":[{"type":"function","function":{"name":"f"}}]}`,
		},
		{
			"more than the text", "text", openai.Chat,
			`{"model":"m","messages":[{"role":"user","content":"hi"}],"logprobs":true,"top_logprobs":5,"return_token_ids":true}`, nil, "/v1/chat/completions",
			`{"model":"m","messages":[{"role":"user","content":"hi"}],"stream":false,"max_tokens":1,"ignore_eos":true,` + ask + `}`,
			`{"model":"m","messages":[{"role":"user","content":"hi"}],"logprobs":true,"top_logprobs":5,"return_token_ids":true}`,
		},
		{
			"more than a completion's text", "text", openai.Completions,
			`{"model":"m","prompt":"hi","logprobs":3,"echo":true}`, nil, "/v1/completions",
			`{"model":"m","prompt":"hi","stream":false,"max_tokens":1,"ignore_eos":true,` + ask + `}`,
			`{"model":"m","prompt":"hi","logprobs":3,"echo":true}`,
		},
		{
			"workers that take tokens", "tokens", openai.Completions,
			`{"model":"m","prompt":"hi","max_tokens":9}`, []uint32{7, 8}, "/v1/completions",
			`{"model":"m","prompt":[7,8],"max_tokens":1,"stream":false,"ignore_eos":true,` + ask + `}`,
			`{"model":"m","prompt":[7,8],"max_tokens":9}`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := pair(c.input)
			plan, err := NIXL{}.Plan(carrying(a, scan(t, c.endpoint, c.body), c.ids))
			if err != nil {
				t.Fatal(err)
			}
			if plan.Order != PrefillFirst || plan.Prefill.Path != c.path || plan.Decode.Path != c.path {
				t.Errorf("order %d, paths %s and %s", plan.Order, plan.Prefill.Path, plan.Decode.Path)
			}
			if got := string(plan.Decode.Body.AppendTo(nil)); got != c.decode {
				t.Errorf("decode\n got %s\nwant %s", got, c.decode)
			}
			if got, want := canonical(t, plan.Prefill.Body.AppendTo(nil)), canonical(t, []byte(c.prefill)); got != want {
				t.Errorf("prefill\n got %s\nwant %s", got, want)
			}
			if plan.Prefill.Stream || plan.Prefill.RequestID != a.ID || plan.Decode.RequestID != a.ID || plan.Decode.TraceParent != a.TraceParent {
				t.Errorf("prefill %+v, decode %+v", plan.Prefill, plan.Decode)
			}
		})
	}
}

// An engine is asked to tell again what it uses: beside what the client put into
// vllm_xargs, byte for byte, never against it, and only the engine that is meant.
func TestNIXLReannounce(t *testing.T) {
	for _, c := range []struct{ name, said, want string }{
		{"nothing was said", ``, `,"vllm_xargs":{"kv_cache_report_mode":"full"}`},
		{"null", `,"vllm_xargs":null`, `,"vllm_xargs":{"kv_cache_report_mode":"full"}`},
		{"empty", `,"vllm_xargs":{}`, `,"vllm_xargs":{"kv_cache_report_mode":"full"}`},
		{"other things", `,"vllm_xargs": {"b":9007199254740993, "a":"x"}`, `,"vllm_xargs": {"b":9007199254740993, "a":"x","kv_cache_report_mode":"full"}`},
		{"the client's own", `,"vllm_xargs":{"kv_cache_report_mode":"incremental"}`, `,"vllm_xargs":{"kv_cache_report_mode":"incremental"}`},
		{"the client's own, spelt otherwise", `,"vllm_xargs":{"kv_cache_report_m\u006fde":""}`, `,"vllm_xargs":{"kv_cache_report_m\u006fde":""}`},
	} {
		body := func(xargs string) string { return `{"model":"m","prompt":"hi"` + xargs + `}` }
		request := scan(t, openai.Completions, body(c.said))
		a := pair("text")
		a.PReannounce = true
		plan, err := NIXL{}.Plan(carrying(a, request, nil))
		if err != nil {
			t.Fatal(err)
		}
		if got := string(plan.Decode.Body.AppendTo(nil)); got != body(c.said) {
			t.Errorf("%s: decode gets %s", c.name, got)
		}
		if got := string(plan.Prefill.Body.AppendTo(nil)); !strings.Contains(got, body(c.want)[:len(body(c.want))-1]) {
			t.Errorf("%s: prefill gets %s", c.name, got)
		}
		a = pair("text")
		a.P, a.DReannounce = nil, true
		if plan, err = (Local{}).Plan(carrying(a, request, nil)); err != nil || string(plan.Decode.Body.AppendTo(nil)) != body(c.want) {
			t.Errorf("%s: alone it gets %s, %v", c.name, plan.Decode.Body.AppendTo(nil), err)
		}
	}
}

// canonical is an object with its keys in order.
func canonical(t *testing.T, raw []byte) string {
	t.Helper()
	var m map[string]json.RawMessage
	if err := json.Unmarshal(raw, &m); err != nil {
		t.Fatalf("%v in %s", err, raw)
	}
	out, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// A chat stays a chat for workers that take tokens, and a text whose tokens are not known is refused.
func TestNIXLTokens(t *testing.T) {
	const chat = `{"model":"m","messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":{"name":"f"}}]}`
	plan, err := NIXL{}.Plan(carrying(pair("tokens"), scan(t, openai.Chat, chat), []uint32{1, 2, 3}))
	if err != nil || plan.Decode.Path != "/v1/chat/completions" || string(plan.Decode.Body.AppendTo(nil)) != chat {
		t.Errorf("%v: %s %s", err, plan.Decode.Path, plan.Decode.Body.AppendTo(nil))
	}
	if _, err := (NIXL{}).Plan(carrying(pair("tokens"), scan(t, openai.Completions, `{"model":"m","prompt":"hi"}`), nil)); err == nil {
		t.Error("planned what workers that take tokens cannot do")
	}
}

// Both legs cut the prompt alike: -1 means another length to each of them.
func TestNIXLTruncates(t *testing.T) {
	for said, want := range map[string]string{`-1`: `40`, `7`: `7`} {
		request := scan(t, openai.Completions, `{"model":"m","prompt":"hi","max_tokens":60,"truncate_prompt_tokens":`+said+`}`)
		a := carrying(pair("text"), request, nil)
		a.Kept = 40
		plan, err := NIXL{}.Plan(a)
		if err != nil {
			t.Fatal(err)
		}
		for _, leg := range []upstream.Body{plan.Prefill.Body, plan.Decode.Body} {
			if got := string(leg.AppendTo(nil)); !strings.Contains(got, `"truncate_prompt_tokens":`+want) {
				t.Errorf("%s: %s", said, got)
			}
		}
	}
}

const goodParams = `{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[12,13,14]],"remote_engine_id":"e",` +
	`"remote_request_id":"cmpl-x-0-1a2b3c4d","remote_host":"10.0.0.1","remote_port":5600,"tp_size":1,"remote_num_tokens":48,` +
	`"remote_blocks_expiry_time":null,"transfer_mode":"pull","later":{"n":18446744073709551615}}`

func TestNIXLOnPrefill(t *testing.T) {
	now := time.Unix(1000, 0)
	answer := func(params string) []byte {
		return []byte(`{"id":"x","choices":[],"kv_transfer_params":` + params + `}`)
	}
	kv, _, err := NIXL{}.OnPrefill(pair("text"), prefill.ReadAnswer(answer(goodParams)), now)
	if err != nil {
		t.Fatal(err)
	}
	if string(kv.Params) != goodParams || kv.Producer != "p1" || kv.Incarnation != "i" || !kv.Expires.Equal(now.Add(30*time.Second)) {
		t.Errorf("%+v %s", kv, kv.Params)
	}
	for _, host := range []string{"localhost", "127.0.0.1", "127.9.9.9", "::1", "0.0.0.0"} {
		kv, _, err := NIXL{}.OnPrefill(pair("text"), prefill.ReadAnswer(answer(strings.Replace(goodParams, "10.0.0.1", host, 1))), now)
		if err != nil || string(kv.Params) != goodParams {
			t.Errorf("host %s: %v %s", host, err, kv.Params)
		}
	}
	// vLLM before March 2026 has one list.
	flat := strings.Replace(goodParams, `[[12,13,14]]`, `[12,13,14]`, 1)
	if kv, _, err := (NIXL{}).OnPrefill(pair("text"), prefill.ReadAnswer(answer(flat)), now); err != nil || string(kv.Params) != flat {
		t.Errorf("one list of blocks: %v %s", err, kv.Params)
	}
	for name, c := range map[string]struct {
		params   string
		releases bool
	}{
		"no object":       {`null`, false},
		"a string":        {`"x"`, false},
		"wrong direction": {strings.Replace(goodParams, `"do_remote_prefill":true`, `"do_remote_prefill":false`, 1), true},
		"both directions": {strings.Replace(goodParams, `"do_remote_decode":false`, `"do_remote_decode":true`, 1), true},
		"no engine":       {strings.Replace(goodParams, `"e"`, `""`, 1), false},
		"no request":      {strings.Replace(goodParams, `"cmpl-x-0-1a2b3c4d"`, `null`, 1), false},
		"no host":         {strings.Replace(goodParams, `"10.0.0.1"`, `null`, 1), false},
		"no port":         {strings.Replace(goodParams, `5600`, `null`, 1), false},
		"port 70000":      {strings.Replace(goodParams, `5600`, `70000`, 1), false},
		"no blocks":       {strings.Replace(goodParams, `[[12,13,14]]`, `[]`, 1), true},
		"null blocks":     {strings.Replace(goodParams, `[[12,13,14]]`, `null`, 1), true},
		"empty groups":    {strings.Replace(goodParams, `[[12,13,14]]`, `[[],[]]`, 1), true},
		"mixed blocks":    {strings.Replace(goodParams, `[[12,13,14]]`, `[[12],13]`, 1), true},
		"another type":    {strings.Replace(goodParams, `"do_remote_prefill":true`, `"do_remote_prefill":"yes"`, 1), true},
		"not in UTF-8":    {strings.Replace(goodParams, `"e"`, "\"e\xff\"", 1), false},
		"push":            {strings.Replace(goodParams, `"pull"`, `"push"`, 1), true},
		"too large":       {strings.Replace(goodParams, `"tp_size"`, `"pad":"`+strings.Repeat("x", prefill.MaxKVBytes)+`","tp_size"`, 1), false},
		"too many blocks": {strings.Replace(goodParams, `[[12,13,14]]`, `[[12`+strings.Repeat(",13", prefill.MaxKVBytes/3)+`]]`, 1), true},
	} {
		kv, _, err := NIXL{}.OnPrefill(pair("text"), prefill.ReadAnswer(answer(c.params)), now)
		if err == nil || (kv.Params != nil) != c.releases {
			t.Errorf("%s: %v, %.200s; to be released: %t", name, err, kv.Params, c.releases)
		}
		if !c.releases || err == nil {
			continue
		}
		var sent nixlParams
		legs := NIXL{}.Abandon(pair("text"), kv)
		var body struct {
			KV json.RawMessage `json:"kv_transfer_params"`
		}
		if json.Unmarshal(legs[0].Body.AppendTo(nil), &body) != nil || json.Unmarshal(body.KV, &sent) != nil || sent.check("pull") != nil || sent.RequestID != "cmpl-x-0-1a2b3c4d" {
			t.Errorf("%s: released with %s", name, legs[0].Body.AppendTo(nil))
		}
	}
	if _, _, err := (NIXL{}).OnPrefill(pair("text"), prefill.ReadAnswer([]byte(`{"choices":[]}`)), now); err == nil {
		t.Error("an answer without hand-off was taken")
	}
}

// The hand-off reaches decode verbatim, and an abandoned one is released by a
// request that no engine serves.
func TestNIXLBindAndAbandon(t *testing.T) {
	a := pair("text")
	kv := prefill.KV{Params: json.RawMessage(goodParams)}
	plan, err := NIXL{}.Plan(carrying(a, scan(t, openai.Completions, `{"model":"m","prompt":"hi" } `), nil))
	if err != nil {
		t.Fatal(err)
	}
	NIXL{}.Bind(&plan.Decode, kv)
	if want := `{"model":"m","prompt":"hi" ,"kv_transfer_params":` + goodParams + `} `; string(plan.Decode.Body.AppendTo(nil)) != want {
		t.Errorf("got %s\nwant %s", plan.Decode.Body.AppendTo(nil), want)
	}
	legs := NIXL{}.Abandon(a, kv)
	if len(legs) != 1 || legs[0].Base != a.D.Address || legs[0].RequestID == a.ID || legs[0].Stream {
		t.Fatalf("%+v", legs)
	}
	var sent struct {
		Model string          `json:"model"`
		KV    json.RawMessage `json:"kv_transfer_params"`
	}
	if err := json.Unmarshal(legs[0].Body.AppendTo(nil), &sent); err != nil || sent.Model == "m" || string(sent.KV) != goodParams {
		t.Errorf("%v: %s", err, legs[0].Body.AppendTo(nil))
	}
}

func TestBetween(t *testing.T) {
	for _, c := range []struct {
		p, d string
		ok   bool
	}{{"vllm", "vllm", true}, {"sim", "vllm", true}, {"vllm", "sglang", false}, {"trtllm", "trtllm", true}, {"trtllm", "vllm", false}} {
		if _, err := Between(&pools.Worker{Engine: c.p}, &pools.Worker{Engine: c.d}); (err == nil) != c.ok {
			t.Errorf("%s → %s: %v", c.p, c.d, err)
		}
	}
	if _, err := Between(&pools.Worker{Engine: "vllm", EngineVersion: "0.26.0"}, &pools.Worker{Engine: "vllm", EngineVersion: "0.27.1"}); err == nil {
		t.Error("two releases hand over")
	}
	if _, err := Between(&pools.Worker{Engine: "sglang", Connector: "vllm-nixl"}, &pools.Worker{Engine: "vllm"}); err != nil {
		t.Errorf("the record's connector does not count: %v", err)
	}
	if err := Check(&pools.Worker{Engine: "vllm", Connector: "vllm-telepathy"}); err == nil || !strings.Contains(err.Error(), "vllm-nixl") {
		t.Errorf("an unknown connector: %v", err)
	}
}

// What is read the fast way is what encoding/json reads.
func FuzzNIXLParams(f *testing.F) {
	for _, params := range []string{
		goodParams, `{}`, `{"remote_block_ids":[]}`, `{"remote_block_ids":[[],[1,2]]}`, `{"remote_block_ids":[1,2,3]}`, `{"remote_block_ids":[1,[2]]}`,
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
		if fmt.Sprint(fastErr) != fmt.Sprint(slowErr) || !reflect.DeepEqual(fast, slow) {
			t.Errorf("%s: %+v, %v; encoding/json: %+v, %v", raw, fast, fastErr, slow, slowErr)
		}
	})
}

// An ordinary hand-off is not read by encoding/json.
func TestNIXLParamsAreReadOnce(t *testing.T) {
	if _, plain := openai.ReadTransfer([]byte(goodParams)); !plain {
		t.Errorf("%s is read the slow way", goodParams)
	}
}
