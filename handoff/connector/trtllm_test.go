package connector

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/upstream"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
)

// tensorRTID is above 2^53: a float64 would round it.
const tensorRTID = 4611686018427387905

// tensorRTPair is a round of two TensorRT-LLM workers.
func tensorRTPair() Round {
	r := pair("text")
	r.TransferID = tensorRTID
	for _, w := range []*pools.Worker{r.P, r.D} {
		w.Engine, w.BlockSize = "trtllm", 32
	}
	r.P.TransferIDs = []string{"tcp://10.0.0.1:4711"}
	return r
}

// The legs' bodies: context gets the client's limits and one name of the limit, generation what context handed over.
func TestTensorRTPlan(t *testing.T) {
	const ask = `"disaggregated_params":{"request_type":"context_only","disagg_request_id":4611686018427387905}`
	for _, c := range []struct {
		name            string
		endpoint        openai.Endpoint
		body            string
		prefill, decode string
	}{
		{
			"completion", openai.Completions,
			`{"model":"m", "seed":9007199254740993,"prompt":"hi","stream":true,"stream_options":{"include_usage":true},"max_tokens":9,"min_tokens":3,"stop":["x"]}`,
			`{"model":"m","seed":9007199254740993,"prompt":"hi","stream":false,"max_tokens":9,"min_tokens":3,"stop":["x"],` + ask + `}`,
			`{"model":"m", "seed":9007199254740993,"prompt":"hi","stream":true,"stream_options":{"include_usage":true},"max_tokens":9,"min_tokens":3,"stop":["x"]}`,
		},
		{
			"a completion's newer limit means nothing", openai.Completions,
			`{"model":"m","prompt":"hi","max_tokens":9,"max_completion_tokens":8}`,
			`{"model":"m","prompt":"hi","max_tokens":9,"stream":false,` + ask + `}`,
			`{"model":"m","prompt":"hi","max_tokens":9}`,
		},
		{
			"chat with both limits", openai.Chat,
			`{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":7,"max_completion_tokens":9,"nvext":{}}`,
			`{"model":"m","messages":[{"role":"user","content":"hi"}],"max_completion_tokens":9,"stream":false,` + ask + `}`,
			`{"model":"m","messages":[{"role":"user","content":"hi"}],"max_completion_tokens":9}`,
		},
		{
			"chat whose newer limit is null", openai.Chat,
			`{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":7,"max_completion_tokens":null,"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"required"}`,
			`{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":7,"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"required","stream":false,` + ask + `}`,
			`{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":7,"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"required"}`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			plan, err := TensorRT{}.Plan(carrying(tensorRTPair(), scan(t, c.endpoint, c.body), nil))
			if err != nil {
				t.Fatal(err)
			}
			if plan.Order != PrefillFirst || plan.Prefill.Stream || plan.Prefill.Parting < time.Second {
				t.Errorf("%+v", plan)
			}
			if got, want := canonical(t, plan.Prefill.Body.AppendTo(nil)), canonical(t, []byte(c.prefill)); got != want {
				t.Errorf("prefill\n got %s\nwant %s", got, want)
			}
			if got := string(plan.Decode.Body.AppendTo(nil)); got != c.decode {
				t.Errorf("decode\n got %s\nwant %s", got, c.decode)
			}
		})
	}
}

const (
	goodContext = `{"request_type":"context_only","first_gen_tokens":[17],"first_gen_log_probs":null,"ctx_request_id":2049,` +
		`"encoded_opaque_state":"c3RhdGU=","draft_tokens":null,"disagg_request_id":4611686018427387905,"ctx_dp_rank":0,` +
		`"ctx_info_endpoint":"tcp://10.0.0.1:4711","schedule_style":null,"ctx_usage":null,"resolved_thinking":true,"later":{"n":18446744073709551615}}`
	goodGeneration = `{"request_type":"generation_only","first_gen_tokens":[17],"first_gen_log_probs":null,"ctx_request_id":2049,` +
		`"encoded_opaque_state":"c3RhdGU=","draft_tokens":null,"disagg_request_id":4611686018427387905,"ctx_dp_rank":0,` +
		`"ctx_info_endpoint":"tcp://10.0.0.1:4711","schedule_style":null,"ctx_usage":{"prompt_tokens":3,"prompt_tokens_details":{"cached_tokens":2}},` +
		`"resolved_thinking":true,"later":{"n":18446744073709551615}}`
)

// contextAnswered is a context worker's answer.
func contextAnswered(params, finish string) []byte {
	return []byte(`{"id":"x","choices":[{"index":0,"text":"a","finish_reason":"` + finish + `","disaggregated_params":` + params + `}],` +
		`"usage":{"prompt_tokens":3,"prompt_tokens_details":{"cached_tokens":2}},"prompt_token_ids":[1,2,3]}`)
}

// The hand-off reaches generation whole, unknown fields and 64-bit numbers included, with the prompt's ids where the
// endpoint has them.
func TestTensorRTHandOff(t *testing.T) {
	now := time.Unix(1000, 0)
	for _, finish := range []string{"length", "not_finished"} {
		kv, whole, err := TensorRT{}.OnPrefill(tensorRTPair(), prefill.ReadAnswer(contextAnswered(goodContext, finish)), now)
		if err != nil || whole || kv.Producer != "p1" || kv.Incarnation != "i" || !kv.Expires.Equal(now.Add(time.Minute)) {
			t.Fatalf("%+v, %v, %v", kv, whole, err)
		}
		for _, c := range []struct{ endpoint, body, want string }{
			{openai.Completions.Path(), `{"model":"m","prompt":"hi" } `, `{"model":"m","prompt":[1,2,3] ,"disaggregated_params":` + goodGeneration + `} `},
			{openai.Chat.Path(), `{"model":"m","messages":[]}`, `{"model":"m","messages":[],"disaggregated_params":` + goodGeneration + `,"prompt_token_ids":[1,2,3]}`},
		} {
			d := upstream.Leg{Path: c.endpoint, Body: upstream.Body{[]byte(c.body[:9]), []byte(c.body[9:])}}
			TensorRT{}.Bind(&d, kv)
			if got := canonical(t, d.Body.AppendTo(nil)); got != canonical(t, []byte(c.want)) {
				t.Errorf("got %s\nwant %s", got, c.want)
			}
		}
	}
	// An older release knows no ctx_usage, and refuses unknown fields.
	older := strings.Replace(goodContext, `"ctx_usage":null,`, ``, 1)
	if kv, _, err := (TensorRT{}).OnPrefill(tensorRTPair(), prefill.ReadAnswer(contextAnswered(older, "length")), now); err != nil || strings.Contains(string(kv.Params), "ctx_usage") {
		t.Errorf("%v %s", err, kv.Params)
	}
	// An address that means each machine itself is the context worker's.
	for _, host := range []string{"127.0.0.1", "localhost", "0.0.0.0", "*", "[::1]"} {
		here := strings.Replace(goodContext, "tcp://10.0.0.1:", "tcp://"+host+":", 1)
		if kv, _, err := (TensorRT{}).OnPrefill(tensorRTPair(), prefill.ReadAnswer(contextAnswered(here, "length")), now); err != nil || !strings.Contains(string(kv.Params), `"tcp://10.0.0.1:4711"`) {
			t.Errorf("%s: %v %s", host, err, kv.Params)
		}
	}
	// Ids that fill a hand-off are made again by generation.
	long := strings.Replace(string(contextAnswered(goodContext, "length")), `[1,2,3]`, `[1`+strings.Repeat(`,123456`, prefill.MaxKVBytes/7)+`]`, 1)
	if kv, _, err := (TensorRT{}).OnPrefill(tensorRTPair(), prefill.ReadAnswer([]byte(long)), now); err != nil || strings.Contains(string(kv.Params), "prompt_token_ids") || !strings.Contains(string(kv.Params), "generation_only") {
		t.Errorf("%v, %d bytes", err, len(kv.Params))
	}
}

// What generation would take and never finish is refused here.
func TestTensorRTMalformedHandOff(t *testing.T) {
	for name, answer := range map[string]string{
		"no JSON":           `no`,
		"no choices":        `{"choices":[]}`,
		"two choices":       strings.Replace(string(contextAnswered(goodContext, "length")), `"choices":[{`, `"choices":[{"finish_reason":"length"},{`, 1),
		"no finish":         string(contextAnswered(goodContext, "")),
		"no params":         string(contextAnswered(`null`, "length")),
		"a list":            string(contextAnswered(`[]`, "length")),
		"no id":             changed(`"disagg_request_id":4611686018427387905`, `"disagg_request_id":null`),
		"an id by float":    changed(`"disagg_request_id":4611686018427387905`, `"disagg_request_id":4.611686018427387905e18`),
		"another's id":      changed(`"disagg_request_id":4611686018427387905`, `"disagg_request_id":4611686018427387904`),
		"no context id":     changed(`"ctx_request_id":2049`, `"ctx_request_id":null`),
		"a negative id":     changed(`"ctx_request_id":2049`, `"ctx_request_id":-1`),
		"no first token":    changed(`[17]`, `[]`),
		"first tokens null": changed(`[17]`, `null`),
		"a token of text":   changed(`[17]`, `["x"]`),
		"a negative token":  changed(`[17]`, `[-1]`),
		"too many tokens":   changed(`[17]`, `[1`+strings.Repeat(`,1`, mostFirstTokens)+`]`),
		"state of a number": changed(`"c3RhdGU="`, `7`),
		"too large a state": changed(`"c3RhdGU="`, `"`+strings.Repeat("x", prefill.MaxKVBytes)+`"`),
		"no UTF-8":          changed(`c3RhdGU=`, "\xff"),
	} {
		kv, whole, err := TensorRT{}.OnPrefill(tensorRTPair(), prefill.ReadAnswer([]byte(answer)), time.Unix(0, 0))
		state := strings.Contains(answer, `"encoded_opaque_state":"c3RhdGU="`) && strings.Count(answer, "finish_reason\":\"length") == 1
		if err == nil || whole || (kv.Params != nil) != state {
			t.Errorf("%s: %v, whole %v, %.200s", name, err, whole, kv.Params)
		}
		// With the state it can be released, under the id that the context worker was given.
		if state && string(kv.Params) != `{"disaggregated_params":{"request_type":"generation_only","first_gen_tokens":[0],`+
			`"ctx_request_id":4611686018427387905,"disagg_request_id":4611686018427387905,"encoded_opaque_state":"c3RhdGU="},"prompt_token_ids":[1,2,3]}` {
			t.Errorf("%s: released with %s", name, kv.Params)
		}
		if err != nil && strings.Contains(err.Error(), "c3RhdGU=") {
			t.Errorf("%s: the error shows the state: %v", name, err)
		}
	}
}

func changed(old, to string) string {
	return strings.Replace(string(contextAnswered(goodContext, "length")), old, to, 1)
}

// A first token that ends the answer ends the request, with or without a hand-off in the answer.
func TestTensorRTEarlyFinish(t *testing.T) {
	for _, finish := range []string{"stop", "tool_calls", "content_filter"} {
		for _, params := range []string{goodContext, `null`} {
			for _, c := range []Connector{TensorRT{}, TensorRTGenerationFirst{}} {
				if kv, whole, err := c.OnPrefill(tensorRTPair(), prefill.ReadAnswer(contextAnswered(params, finish)), time.Unix(0, 0)); !whole || err != nil || kv.Params != nil {
					t.Errorf("%s: %v, %v", finish, whole, err)
				}
			}
		}
	}
}

// An abandoned hand-off is taken over for one token: it is there already, and the transfer frees the context worker.
func TestTensorRTAbandon(t *testing.T) {
	r := tensorRTPair()
	kv, _, err := TensorRT{}.OnPrefill(r, prefill.ReadAnswer(contextAnswered(goodContext, "length")), time.Unix(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	legs := TensorRT{}.Abandon(r, kv)
	if len(legs) != 1 || legs[0].Base != r.D.Address || legs[0].Path != "/v1/completions" || legs[0].Stream || legs[0].RequestID == r.ID {
		t.Fatalf("%+v", legs)
	}
	want := `{"model":"m","prompt":[1,2,3],"max_tokens":1,"disaggregated_params":` + goodGeneration + `}`
	if got := canonical(t, legs[0].Body.AppendTo(nil)); got != canonical(t, []byte(want)) {
		t.Errorf("got %s\nwant %s", got, want)
	}
	if legs := (TensorRT{}).Abandon(r, prefill.KV{}); legs != nil {
		t.Errorf("nothing is staged: %+v", legs)
	}
}

// Both legs of a generation-first pair carry one id, and generation's names where context is.
func TestTensorRTGenerationFirstPlan(t *testing.T) {
	r := carrying(tensorRTPair(), scan(t, openai.Chat, `{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":7,"stream":true}`), nil)
	for _, c := range []struct {
		endpoints []string
		want      string
	}{
		{[]string{"tcp://10.0.0.1:4711"}, `"ctx_dp_rank":0,"ctx_info_endpoint":"tcp://10.0.0.1:4711"`},
		{[]string{"", "tcp://127.0.0.1:4712"}, `"ctx_dp_rank":1,"ctx_info_endpoint":"tcp://10.0.0.1:4712"`},
	} {
		r.P.TransferIDs = c.endpoints
		plan, err := TensorRTGenerationFirst{}.Plan(r)
		if err != nil || plan.Order != DecodeFirst || plan.Prefill.Stream || !plan.Decode.Stream {
			t.Fatalf("%+v, %v", plan, err)
		}
		if plan.Prefill.Parting != 0 {
			t.Errorf("a client whose call decode has refused waits for prefill's answer, %v at most", plan.Prefill.Parting)
		}
		id := strconv.FormatInt(tensorRTID, 10)
		context := `{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":7,"stream":false,"disaggregated_params":{"request_type":"context_only","disagg_request_id":` + id + `,"schedule_style":1}}`
		generation := `{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":7,"stream":true,"disaggregated_params":{"request_type":"generation_only","ctx_request_id":` + id +
			`,"disagg_request_id":` + id + `,` + c.want + `,"schedule_style":1}}`
		if got := string(plan.Prefill.Body.AppendTo(nil)); got != context {
			t.Errorf("got %s\nwant %s", got, context)
		}
		if got := string(plan.Decode.Body.AppendTo(nil)); got != generation {
			t.Errorf("got %s\nwant %s", got, generation)
		}
	}
	if legs := (TensorRTGenerationFirst{}).Abandon(r, prefill.KV{}); legs != nil {
		t.Errorf("%+v", legs)
	}
	if _, _, err := (TensorRTGenerationFirst{}).OnPrefill(r, prefill.ReadAnswer(contextAnswered(goodContext, "length")), time.Unix(0, 0)); err != nil {
		t.Error(err)
	}
	if _, _, err := (TensorRTGenerationFirst{}).OnPrefill(r, prefill.ReadAnswer(contextAnswered(`null`, "length")), time.Unix(0, 0)); err == nil {
		t.Error("an answer without a hand-off was taken")
	}
}

// A priority is a number from 0 to 1, the higher the sooner, for engines that schedule by it.
func TestTensorRTPriorityOfLegs(t *testing.T) {
	for _, c := range []struct {
		priority int32
		want     string
	}{{0, `"priority":0.5`}, {1, `"priority":0.75`}, {-1, `"priority":0.25`}, {1 << 30, `"priority":0.99999`}, {-1 << 31, `"priority":0.0000000`}} {
		r := carrying(tensorRTPair(), scan(t, openai.Completions, `{"model":"m","prompt":"hi"}`), nil)
		r.Priority, r.P.Prioritizes = &c.priority, true
		for _, connector := range []Connector{TensorRT{}, TensorRTGenerationFirst{}} {
			plan, err := connector.Plan(r)
			if err != nil {
				t.Fatal(err)
			}
			if got := string(plan.Prefill.Body.AppendTo(nil)); !strings.Contains(got, c.want) {
				t.Errorf("%d: prefill gets %s", c.priority, got)
			}
			if got := string(plan.Decode.Body.AppendTo(nil)); strings.Contains(got, "priority") {
				t.Errorf("%d: decode, which does not schedule by it, gets %s", c.priority, got)
			}
		}
	}
}

// Pairs that could not exchange a block are refused at the choice, with a reason.
func TestTensorRTPairs(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(p, d *pools.Worker)
		first  string // context-first's reason, empty for a pair
		second string
	}{
		{"alike", func(_, _ *pools.Worker) {}, "", ""},
		{"blocks", func(_, d *pools.Worker) { d.BlockSize = 64 }, "tokens_per_block", "tokens_per_block"},
		{"releases", func(p, d *pools.Worker) { p.EngineVersion, d.EngineVersion = "1.2.0", "1.3.0" }, "same release", "same release"},
		{"no endpoint", func(p, _ *pools.Worker) { p.TransferIDs = nil }, "", "ctx_info_endpoint"},
	} {
		r := tensorRTPair()
		c.change(r.P, r.D)
		for connector, want := range map[Connector]string{TensorRT{}: c.first, TensorRTGenerationFirst{}: c.second} {
			err := connector.Pairs(r.P, r.D)
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %T: %v", c.name, connector, err)
			}
		}
	}
}

// Whatever a context worker answers, what goes to generation is one valid object with this round's id.
func FuzzTensorRTOnPrefill(f *testing.F) {
	f.Add(contextAnswered(goodContext, "length"))
	f.Add(contextAnswered(`{"disagg_request_id":4611686018427387905,"disagg_request_id":1,"ctx_request_id":1,"first_gen_tokens":[1]}`, "length"))
	f.Add([]byte(`{"choices":[{"finish_reason":"not_finished","disaggregated_params":{}}],"prompt_token_ids":{}}`))
	f.Fuzz(func(t *testing.T, answer []byte) {
		kv, whole, err := TensorRT{}.OnPrefill(tensorRTPair(), prefill.ReadAnswer(answer), time.Unix(0, 0))
		if err != nil || whole {
			if kv.Params == nil {
				return
			}
		}
		d := upstream.Leg{Path: openai.Chat.Path(), Body: upstream.Body{[]byte(`{"model":"m"}`)}}
		TensorRT{}.Bind(&d, kv)
		var body struct {
			Params struct {
				Type string `json:"request_type"`
				ID   int64  `json:"disagg_request_id"`
			} `json:"disaggregated_params"`
		}
		if err := json.Unmarshal(d.Body.AppendTo(nil), &body); err != nil || body.Params.Type != "generation_only" || body.Params.ID != tensorRTID {
			t.Fatalf("%v: %s", err, d.Body.AppendTo(nil))
		}
	})
}
