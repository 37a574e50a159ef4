package connector

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/prefill"
)

// tensorRTID is above 2^53: a float64 would round it.
const tensorRTID = 4611686018427387905

// tensorRTPair is a round of two TensorRT-LLM workers.
func tensorRTPair() Round {
	r := roundOf("trtllm", nil, nil)
	r.TransferID, r.P.TransferIDs = tensorRTID, []string{"tcp://10.0.0.1:4711"}
	return r
}

// The legs' bodies: context gets the client's limits and one name of the limit, generation what context handed over.
func TestTensorRTPlan(t *testing.T) {
	const ask = `,"stream":false,"disaggregated_params":{"request_type":"context_only","disagg_request_id":4611686018427387905}}`
	const tool = `,"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"required"`
	const sampling = `,"max_tokens":9,"min_tokens":3,"stop":["x"]`
	const seed, stream = `, "seed":9007199254740993`, `,"stream":true,"stream_options":{"include_usage":true}`
	for _, c := range []struct{ name, head, client, prefill, decode string }{ // the client's fields, and those that are left on each leg
		{"completion", hi, seed + stream + sampling, seed + sampling, seed + stream + sampling},
		{"a completion's newer limit means nothing", hi, `,"max_tokens":9,"max_completion_tokens":8`, `,"max_tokens":9`, `,"max_tokens":9`},
		{"chat with both limits", hiChat, `,"max_tokens":7,"max_completion_tokens":9,"nvext":{}`, `,"max_completion_tokens":9`,
			`,"max_completion_tokens":9`},
		{"chat whose newer limit is null", hiChat, `,"max_tokens":7,"max_completion_tokens":null` + tool, `,"max_tokens":7` + tool,
			`,"max_tokens":7` + tool},
	} {
		plan := planned(t, TensorRT{}, carrying(tensorRTPair(), scan(t, c.head+c.client+"}"), nil))
		assert.True(t, plan.Order == PrefillFirst && !plan.Prefill.Stream && plan.Prefill.Parting >= time.Second, "%s: %+v", c.name, plan)
		sameMembers(t, c.head+c.prefill+ask, text(plan.Prefill), c.name)
		assert.Equal(t, c.head+c.decode+"}", text(plan.Decode), c.name)
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
	take := func(params, finish string) prefill.KV {
		return took(t, TensorRT{}, tensorRTPair(), string(contextAnswered(params, finish)), now)
	}
	for _, finish := range []string{"length", "not_finished"} {
		kv := take(goodContext, finish)
		require.True(t, kv.Producer == "p1" && kv.Incarnation == "i" && kv.Expires.Equal(now.Add(time.Minute)), "%+v", kv)
		for _, c := range []struct{ endpoint, body, want string }{
			{openai.Completions.Path(), `{"model":"m","prompt":"hi" } `, `{"model":"m","prompt":[1,2,3] ,"disaggregated_params":` +
				goodGeneration + `} `},
			{openai.Chat.Path(), `{"model":"m","messages":[]}`, `{"model":"m","messages":[],"disaggregated_params":` + goodGeneration +
				`,"prompt_token_ids":[1,2,3]}`},
		} {
			d := http1.Leg{Path: c.endpoint, Body: http1.Body{[]byte(c.body[:9]), []byte(c.body[9:])}}
			TensorRT{}.Bind(&d, kv)
			sameMembers(t, c.want, text(d), finish)
		}
	}
	// An older release lacks ctx_usage, and refuses unknown fields.
	assert.NotContains(t, string(take(strings.Replace(goodContext, `"ctx_usage":null,`, ``, 1), "length").Params), "ctx_usage")
	// An address that means each machine itself is the context worker's.
	for _, host := range []string{"127.0.0.1", "localhost", "0.0.0.0", "*", "[::1]"} {
		here := strings.Replace(goodContext, "tcp://10.0.0.1:", "tcp://"+host+":", 1)
		assert.Contains(t, string(take(here, "length").Params), `"tcp://10.0.0.1:4711"`, host)
	}
	// Ids that fill a hand-off are made again by generation.
	long := changed(`[1,2,3]`, `[1`+strings.Repeat(`,123456`, prefill.MaxKVBytes/7)+`]`)
	params := string(took(t, TensorRT{}, tensorRTPair(), long, now).Params)
	assert.True(t, !strings.Contains(params, "prompt_token_ids") && strings.Contains(params, "generation_only"), "%d bytes", len(params))
}

// What generation would take and never finish is refused here.
func TestTensorRTMalformedHandOff(t *testing.T) {
	for name, answer := range map[string]string{
		"no JSON":    `no`,
		"no choices": `{"choices":[]}`,
		"two choices": strings.Replace(string(contextAnswered(goodContext, "length")), `"choices":[{`,
			`"choices":[{"finish_reason":"length"},{`, 1),
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
		assert.True(t, err != nil && !whole && (kv.Params != nil) == state, "%s: %v, whole %v, %.200s", name, err, whole, kv.Params)
		// With the state it can be released, under the id that the context worker was given.
		assert.True(t, !state || string(kv.Params) == `{"disaggregated_params":{"request_type":"generation_only","first_gen_tokens":[0],`+
			`"ctx_request_id":4611686018427387905,"disagg_request_id":4611686018427387905,"encoded_opaque_state":"c3RhdGU="},"prompt_token_ids":[1,2,3]}`,
			"%s: released with %s", name, kv.Params)
		assert.True(t, err == nil || !strings.Contains(err.Error(), "c3RhdGU="), "%s: the error shows the state: %v", name, err)
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
				kv, whole, err := c.OnPrefill(tensorRTPair(), prefill.ReadAnswer(contextAnswered(params, finish)), time.Unix(0, 0))
				assert.True(t, whole && err == nil && kv.Params == nil, "%s: %v, %v", finish, whole, err)
			}
		}
	}
}

// A released hand-off is taken over for one token: it is there already, and the transfer frees the context worker.
func TestTensorRTRelease(t *testing.T) {
	r := tensorRTPair()
	kv := took(t, TensorRT{}, r, string(contextAnswered(goodContext, "length")), time.Unix(0, 0))
	legs := TensorRT{}.Release(r, kv)
	require.True(t, len(legs) == 1 && !legs[0].Stream && legs[0].RequestID != r.ID, "%+v", legs)
	assert.Equal(t, r.D.Address+"/v1/completions", legs[0].Base+legs[0].Path)
	sameMembers(t, `{"model":"m","prompt":[1,2,3],"max_tokens":1,"disaggregated_params":`+goodGeneration+`}`, text(legs[0]), "release")
	assert.Nil(t, TensorRT{}.Release(r, prefill.KV{}), "nothing is staged")
}

// Both legs of a generation-first pair carry one id, and generation's names where context is.
func TestTensorRTGenerationFirstPlan(t *testing.T) {
	r := carrying(tensorRTPair(), scan(t, hiChat+`,"max_tokens":7,"stream":true}`), nil)
	for _, c := range []struct {
		endpoints []string
		want      string
	}{
		{[]string{"tcp://10.0.0.1:4711"}, `"ctx_dp_rank":0,"ctx_info_endpoint":"tcp://10.0.0.1:4711"`},
		{[]string{"", "tcp://127.0.0.1:4712"}, `"ctx_dp_rank":1,"ctx_info_endpoint":"tcp://10.0.0.1:4712"`},
	} {
		r.P.TransferIDs = c.endpoints
		plan := planned(t, TensorRTGenerationFirst{}, r)
		require.True(t, plan.Order == DecodeFirst && !plan.Prefill.Stream && plan.Decode.Stream, "%+v", plan)
		assert.Zero(t, plan.Prefill.Parting, "how long a client whose call decode has refused waits for prefill's answer")
		id := strconv.FormatInt(tensorRTID, 10)
		assert.Equal(t, hiChat+`,"max_tokens":7,"stream":false,"disaggregated_params":{"request_type":"context_only","disagg_request_id":`+id+`,"schedule_style":1}}`, text(plan.Prefill))
		assert.Equal(t, hiChat+`,"max_tokens":7,"stream":true,"disaggregated_params":{"request_type":"generation_only","ctx_request_id":`+id+
			`,"disagg_request_id":`+id+`,`+c.want+`,"schedule_style":1}}`, text(plan.Decode))
	}
	assert.Nil(t, TensorRTGenerationFirst{}.Release(r, prefill.KV{}))
	took(t, TensorRTGenerationFirst{}, r, string(contextAnswered(goodContext, "length")), time.Unix(0, 0))
	_, _, err := TensorRTGenerationFirst{}.OnPrefill(r, prefill.ReadAnswer(contextAnswered(`null`, "length")), time.Unix(0, 0))
	assert.Error(t, err, "an answer without a hand-off")
}

// Whatever a context worker answers, what goes to generation is one valid object with this round's id.
func FuzzTensorRTOnPrefill(f *testing.F) {
	f.Add(contextAnswered(goodContext, "length"))
	f.Add(contextAnswered(`{"disagg_request_id":4611686018427387905,"disagg_request_id":1,"ctx_request_id":1,"first_gen_tokens":[1]}`,
		"length"))
	f.Add([]byte(`{"choices":[{"finish_reason":"not_finished","disaggregated_params":{}}],"prompt_token_ids":{}}`))
	f.Fuzz(func(t *testing.T, answer []byte) {
		kv, whole, err := TensorRT{}.OnPrefill(tensorRTPair(), prefill.ReadAnswer(answer), time.Unix(0, 0))
		if (err != nil || whole) && kv.Params == nil {
			return
		}
		d := http1.Leg{Path: openai.Chat.Path(), Body: http1.Body{[]byte(`{"model":"m"}`)}}
		TensorRT{}.Bind(&d, kv)
		var body struct {
			Params struct {
				Type string `json:"request_type"`
				ID   int64  `json:"disagg_request_id"`
			} `json:"disaggregated_params"`
		}
		require.NoError(t, json.Unmarshal(d.Body.AppendTo(nil), &body))
		require.True(t, body.Params.Type == "generation_only" && body.Params.ID == tensorRTID, text(d))
	})
}
