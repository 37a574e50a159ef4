package openai

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func scanned(t testing.TB, ep Endpoint, body string) *Request {
	t.Helper()
	r, err := scanBody(ep, []byte(body))
	require.NoError(t, err, "%s, %.200s", ep, body)
	return r
}

func TestScanReadsWhatRoutingNeeds(t *testing.T) {
	r := scanned(t, Completions, `{"model":"m","prompt":"a\n\u00e9\ud83d\ude00","stream":true,
		"stream_options":{"include_usage":true,"x":1},"max_tokens":7,"max_completion_tokens":3,"min_tokens":2,"n":3,
		"stop":["a","b","c","d","e"],"ignore_eos":true,"logprobs":0,"cache_salt":"s","seed":9223372036854775807,
		"tools":[1],"unknown":{"deep":[1e400,{}]}}`)
	assert.Equal(t, "a\né😀", r.Prompt.Text())
	r.Raw, r.members, r.Prompt = nil, nil, Prompt{}
	want := Request{Endpoint: Completions, Model: "m", Stream: true, IncludeUsage: true, MaxTokens: 7, MinTokens: 2, N: 3,
		Stop: []string{"a", "b", "c", "d", "e"}, IgnoreEOS: true, Logprobs: true, CacheSalt: "s"}
	assert.Equal(t, want, *r)
}

func TestScanPrompts(t *testing.T) {
	for _, tt := range []struct {
		prompt string
		kind   PromptKind
		text   string
		ids    []uint32
		least  int // tokens, at 4 bytes the longest token
	}{
		{`"abcde"`, PromptText, "abcde", nil, 2},
		{`["abcd"]`, PromptText, "abcd", nil, 1},
		{`"\u0041\n"`, PromptText, "A\n", nil, 1},
		{`[1,2,3]`, PromptIDs, "", []uint32{1, 2, 3}, 3},
		{` [ 0 , 4294967295 ] `, PromptIDs, "", []uint32{0, 4294967295}, 2},
		{`[10, 1234567,12345678, 1234567890,0, 20,123456789,7]`, PromptIDs, "",
			[]uint32{10, 1234567, 12345678, 1234567890, 0, 20, 123456789, 7}, 8},
		{`[[7, 8]]`, PromptIDs, "", []uint32{7, 8}, 2},
	} {
		p := &scanned(t, Completions, `{"model":"m","prompt":`+tt.prompt+`}`).Prompt
		assert.Equal(t, []any{tt.kind, tt.text, tt.ids, tt.least}, []any{p.Kind, p.Text(), p.IDs, p.TokensAtLeast(4)}, tt.prompt)
	}
}

func TestScanMessages(t *testing.T) {
	r := scanned(t, Chat, `{"model":"m","messages":[
		{"role":"system","content":"be \"brief\""},
		{"content":[{"type":"text","text":"a"},{"text":"\u0062","type":"text"},{"type":"image_url","image_url":{"url":"u"}}],"role":"user","name":"x"},
		{"role":"assistant","content":null,"tool_calls":[]},
		{"r\u006fle":"assistant"}]}`)
	want := []Message{{"system", `be "brief"`}, {"user", "a\nb"}, {"assistant", ""}, {"assistant", ""}}
	assert.Equal(t, want, r.Prompt.Messages())
	assert.True(t, r.HasMedia() && !r.HasTools && !r.HasToolMessages)
	assert.Equal(t, len(`be "brief"`)+len("a\nb"), r.Prompt.TokensAtLeast(1))
}

func TestScanNvext(t *testing.T) {
	r := scanned(t, Completions, `{"model":"m","prompt":"p","nvext":{"extra_fields":["worker_id","timing"],
		"annotations":["query_instance_id:"],
		"agent_hints":{"priority":-3,"strict_priority":4294967295,"osl":100,"latency_sensitivity":0.5,"speculative_prefill":true},
		"backend_instance_id":9223372036854775807,"decode_worker_id":"d","prefill_worker_id":0,"dp_rank":1,"prefill_dp_rank":2,
		"routing_constraints":{"required_taints":["a"],"preferred_taints":{"b":0.5}},
		"router":{"ttft_target":200,"itl_target":20.5},"cache_salt":"s","session_id":"c","token_data":null,"use_raw_prompt":false,
		"greed_sampling":false,"max_thinking_tokens":null,"request_timestamp_ms":1.5}}`)
	u32 := func(v uint32) *uint32 { return &v }
	priority := int32(-3)
	want := Nvext{ExtraFields: []string{"worker_id", "timing"}, Annotations: []string{"query_instance_id:"},
		Priority: &priority, StrictPriority: u32(4294967295), OSL: u32(100), TTFTTarget: 200 * time.Millisecond,
		BackendInstanceID: "9223372036854775807", DecodeWorkerID: "d", PrefillWorkerID: "0", DPRank: u32(1), PrefillDPRank: u32(2),
		RequiredTaints: []string{"a"}, PreferredTaints: map[string]float64{"b": 0.5}, CacheSalt: "s", SessionID: "c"}
	assert.Equal(t, want, r.Nvext)
	assert.Equal(t, []string{"nvext.agent_hints.latency_sensitivity", "nvext.agent_hints.speculative_prefill",
		"nvext.router.itl_target", "nvext.request_timestamp_ms"}, r.Ignored, "a completion has no next turn")
	assert.Equal(t, "s", r.CacheSalt)
	assert.Equal(t, "c", r.Session)
	assert.True(t, r.Nvext.Wants("timing") && !r.Nvext.Wants("routing"))
}

// TestScanRefuses holds bad bodies, each with the field its error must name.
func TestScanRefuses(t *testing.T) {
	completion := func(more string) string { return `{"model":"m","prompt":"p",` + more + `}` }
	chat := func(messages string) string { return `{"model":"m","messages":` + messages + `}` }
	nvext := func(more string) string { return completion(`"nvext":{` + more + `}`) }
	type refused struct {
		ep          Endpoint
		body, param string
		contains    string // a part of the message
	}
	tests := []refused{
		{Completions, nvext(`"token_data":[1,2]`), "nvext.token_data", "send the token ids as prompt"},
		{Completions, nvext(`"token_data":[1,-2]`), "nvext.token_data", "array of token ids"},
		{Chat, `{"model":"m","messages":[{"role":"user","content":"x"}],"nvext":{"use_raw_prompt":true}}`, "nvext.use_raw_prompt",
			"/v1/completions"},
		{Completions, nvext(`"greed_sampling":true`), "nvext.greed_sampling", "temperature 0"},
		{Completions, nvext(`"max_thinking_tokens":9`), "nvext.max_thinking_tokens", "not supported"},
		{Completions, nvext(`"agent_hints":{"latency_sensitivity":-1}`), "nvext.agent_hints.latency_sensitivity", "not below 0"},
		{Completions, ``, "", "empty"},
		{Completions, `[]`, "", "must be a JSON object"},
		{Completions, `{`, "", "invalid JSON at byte 1"},
		{Completions, `{"model":"m","prompt":"p"} x`, "", "unexpected data"},
		{Completions, `{"model":"m","prompt":"p",}`, "", "key"},
		{Completions, `{"model":"m","prompt":"p"`, "", "comma"},
		{Completions, `{model:"m"}`, "", "key"},
		{Completions, "{\"model\":\"a\nb\"}", "", "control"},
		{Completions, `{"model":"\x"}`, "", "escape"},
		{Completions, `{"model":"m","x":"\ud800"}`, "", "escape"},
		{Completions, `{"model":"m","\ud800x":1}`, "", "escape"},
		{Completions, "{\"model\":\"\xff\"}", "", "UTF-8 at byte 10"},
		{Completions, nvext(`"` + strings.Repeat("\xbb", 2*longestKey) + `":1`), "", "UTF-8 at byte"},
		{Completions, completion(`"x":01`), "", "number"},
		{Completions, completion(`"x":nul`), "", "value"},
		{Completions, completion(`"x":[1,]`), "", "value"},
		{Completions, completion(`"x":{"a":1]`), "", "comma"},
		{Completions, `{"model":"m","prompt":"p","model":"n"}`, "model", "more than once"},
		{Completions, `{"model":"m","prompt":"p","mod\u0065l":"m"}`, "model", "more than once"},
		{Completions, completion(`"zz":1,"\u007az":2`), "zz", "more than once"},
		{Completions, `{"model":1,"prompt":"p"}`, "model", "string"},
		{Completions, `{"model":"m"}`, "prompt", "required"},
		{Completions, `{"model":"m","prompt":""}`, "prompt", "empty"},
		{Completions, `{"model":"m","prompt":[]}`, "prompt", "empty"},
		{Completions, `{"model":"m","prompt":[[]]}`, "prompt", "empty"},
		{Completions, `{"model":"m","prompt":[""]}`, "prompt", "empty"},
		{Completions, `{"model":"m","prompt":{}}`, "prompt", "array of token ids"},
		{Completions, `{"model":"m","prompt":["a",[1]]}`, "prompt", "array of strings"},
		{Completions, `{"model":"m","prompt":[[1],"a"]}`, "prompt", "array of strings"},
		{Completions, `{"model":"m","prompt":[[1],[[2]]]}`, "prompt", "token ids"},
		{Completions, `{"model":"m","prompt":["a",""]}`, "prompt", "empty"},
		{Completions, `{"model":"m","prompt":[[1],[]]}`, "prompt", "empty"},
		{Completions, `{"model":"m","prompt":["a",null]}`, "prompt", "token ids"},
		{Completions, `{"model":"m","prompt":[` + strings.Repeat(`"a",`, 1e6) + `"a"]}`, "prompt", "at most 1024 prompts"},
		{Completions, `{"model":"m","prompt":[` + strings.Repeat(`[1],`, 1024) + `[1]]}`, "prompt", "at most 1024 prompts"},
		{Completions, `{"model":"m","prompt":` + strings.Repeat("[", 200) + strings.Repeat("]", 200) + `}`, "prompt", "token ids"},
		{Completions, `{"model":"m","prompt":["a","b"`, "", "comma"},
		{Completions, `{"model":"m","prompt":["a",1]}`, "prompt", "token ids"},
		{Completions, `{"model":"m","prompt":[1,"a"]}`, "prompt", "token ids"},
		{Completions, `{"model":"m","prompt":["1e3",1]}`, "prompt", "token ids"},
		{Completions, `{"model":"m","prompt":[01]}`, "", "number"},
		{Completions, `{"model":"m","prompt":[1,00,200000000]}`, "", "number"},
		{Completions, `{"model":"m","prompt":[1,2,]                }`, "prompt", "token ids"},
		{Completions, `{"model":"m","prompt":[1,,2]}`, "prompt", "token ids"},
		{Chat, `{"model":"m","messages":[{"role":"a"}],"max_tokens":0}`, "max_tokens", "from 1 to 2147483647"},
		{Completions, completion(`"max_tokens":-5`), "max_tokens", "from 0"},
		{Completions, completion(`"max_tokens":2147483648`), "max_tokens", "from 0"},
		{Completions, completion(`"max_tokens":1.5`), "max_tokens", "whole number"},
		{Completions, completion(`"min_tokens":5,"max_tokens":4`), "min_tokens", "must not be above"},
		{Completions, completion(`"n":0`), "n", "from 1 to 128"},
		{Completions, completion(`"n":129`), "n", "from 1 to 128"},
		{Completions, completion(`"stream":"yes "`), "stream", "true or false"},
		{Completions, completion(`"stream_options":{"include_usage":true}`), "stream_options", "only allowed"},
		{Completions, completion(`"stream":true,"stream_options":{"include_usage":"ja"}`), "stream_options.include_usage", "true or false"},
		{Completions, completion(`"stream":true,"stream_options":[]`), "stream_options", "object"},
		{Completions, completion(`"stop":[1]`), "stop", "strings"},
		{Completions, completion(`"stop":7`), "stop", "string"},
		{Completions, completion(`"stop":""`), "stop", "none of them empty"},
		{Completions, completion(`"temperature":-0.1`), "temperature", "from 0 to 2"},
		{Completions, completion(`"temperature":1e400`), "temperature", "from 0 to 2"},
		{Completions, completion(`"temperature":"hot"`), "temperature", "number"},
		{Completions, completion(`"top_p":1.5`), "top_p", "from 0 to 1"},
		{Completions, completion(`"seed":9223372036854775808`), "seed", "whole number"},
		{Completions, completion(`"user":1`), "user", "string"},
		{Completions, completion(`"echo":1.5`), "echo", "true or false"},
		{Completions, completion(`"stream":`) + `,`, "stream", "true or false"},
		{Completions, `{"model":"m","n":`, "", "unexpected end"},
		{Completions, `{"model":"m","prompt":[[1`, "", "end"},
		{Completions, completion(`"logit_bias":[]`), "logit_bias", "object"},
		{Completions, completion(`"kv_tr\u0061nsfer_params":{}`), "kv_transfer_params", "set by the gateway"},
		{Completions, completion(`"\u0072id":"x"`), "rid", "set by the gateway"},
		{Completions, completion(`"vllm_xargs":{"a":1,"kv_transfer\u005fparams":{}}`), "vllm_xargs.kv_transfer_params", "set by the gateway"},
		{Completions, completion(`"vllm_xargs":{"rid":1}`), "vllm_xargs.rid", "set by the gateway"},
		{Chat, `{"model":"m","messages":[{"role":"a"}],"input_ids":[1]}`, "input_ids", "set by the gateway"},
		{Completions, completion(`"sampling_params":{"extra\u005fargs":{}}`), "sampling_params.extra_args", "set by the gateway"},
		{Completions, completion(`"sampling_params":{"kv_transfer_params":{}}`), "sampling_params.kv_transfer_params", "set by the gateway"},
		{Completions, completion(`"vllm_xargs":{"ec_transfer_params":{}}`), "vllm_xargs.ec_transfer_params", "set by the gateway"},
		{Chat, chat(`[{"role":"a","content":[{"type":"text","text":"x"},{"type":"image_url","image_url":{"url":"u"},"uuid":"x"}]}]`),
			"messages[0].content[1].uuid", "set by the gateway"},
		{Completions, completion(`"truncate_prompt_tokens":-2`), "truncate_prompt_tokens", "whole number from -1"},
		{Completions, completion(`"truncation_side":"middle"`), "truncation_side", "left"},
		{Completions, completion(`"vllm_xargs":7`), "vllm_xargs", "object"},
		{Completions, completion(`"nvext":[]`), "nvext", "object"},
		{Completions, nvext(`"prority":1`), "nvext.prority", "extra_fields, annotations, agent_hints"},
		{Completions, nvext(`"agent_hints":{"prio":1}`), "nvext.agent_hints.prio", "priority, strict_priority, osl"},
		{Completions, nvext(`"agent_hints":{"priority":2147483648}`), "nvext.agent_hints.priority", "whole number"},
		{Completions, nvext(`"agent_hints":{"strict_priority":-1}`), "nvext.agent_hints.strict_priority", "whole number"},
		{Completions, nvext(`"agent_hints":{"osl":1,"\u006fsl":1}`), "nvext.agent_hints.osl", "more than once"},
		{Completions, nvext(`"dp_rank":1,"dp\u005frank":2`), "nvext.dp_rank", "more than once"},
		{Completions, nvext(`"extra_fields":["worker"]`), "nvext.extra_fields", "worker_id, timing"},
		{Completions, nvext(`"extra_fields":"timing"`), "nvext.extra_fields", "array of strings"},
		{Completions, nvext(`"decode_worker_id":-1`), "nvext.decode_worker_id", "worker id"},
		{Completions, nvext(`"decode_worker_id":1.5`), "nvext.decode_worker_id", "worker id"},
		{Completions, nvext(`"decode_worker_id":""`), "nvext.decode_worker_id", "not empty"},
		{Completions, nvext(`"routing_constraints":{"taints":[]}`), "nvext.routing_constraints.taints", "required_taints"},
		{Completions, nvext(`"routing_constraints":{"preferred_taints":{"a":"x"}}`), "nvext.routing_constraints.preferred_taints", "number"},
		{Completions, nvext(`"routing_constraints":{"preferred_taints":{"a":1,"\u0061":2}}`),
			"nvext.routing_constraints.preferred_taints.a", "more than once"},
		{Completions, nvext(`"routing_constraints":{"preferred_taints":"a"}`), "nvext.routing_constraints.preferred_taints", "object of weights"},
		{Completions, nvext(`"router":{"ttft_target":-1}`), "nvext.router.ttft_target", "not below 0"},
		{Completions, completion(`"cache_salt":"a","nvext":{"cache_salt":"b"}`), "nvext.cache_salt", "differ"},
		{Chat, `{"model":"m"}`, "messages", "required"},
		{Chat, `{"model":"m","tools":{}}`, "tools", "array"},
		{Chat, chat(`[]`), "messages", "at least one"},
		{Chat, chat(`{}`), "messages", "array"},
		{Chat, chat(`["x"]`), "messages[0]", "object"},
		{Chat, chat(`[{"role":"user","content":"x"},{"content":"x"}]`), "messages[1].role", "required"},
		{Chat, chat(`[{"role":"","content":"x"}]`), "messages[0].role", "required"},
		{Chat, chat(`[{"role":7}]`), "messages[0].role", "string"},
		{Chat, chat(`[{"role":"a","role":"b"}]`), "messages[0].role", "more than once"},
		{Chat, chat(`[{"role":"a","content":7}]`), "messages[0].content", "array of parts"},
		{Chat, chat(`[{"role":"a","content":"x","content":null}]`), "messages[0].content", "more than once"},
		{Chat, chat(`[{"role":"a","content":[7]}]`), "messages[0].content[0]", "object with a type"},
		{Chat, chat(`[{"role":"a","content":[{"type":"text","text":7}]}]`), "messages[0].content[0]", "text"},
		{Chat, chat(`[{"role":"a","content":[{"text":"x"}]}]`), "messages[0].content[0]", "type"},
	}
	for _, field := range strings.Fields("kv_transfer_params bootstrap_room bootstrap_anything disaggregated_params ec_transfer_params data_parallel_rank " +
		"routed_dp_rank disagg_prefill_dp_rank request_id prompt_token_ids prompt_token_ids_b64 extra_key session_params " +
		"lora_path lora_request return_hidden_states") {
		tests = append(tests, refused{Completions, completion(`"` + field + `":{"a":1}`), field, "set by the gateway"})
	}
	for _, tt := range tests {
		_, err := scanBody(tt.ep, []byte(tt.body))
		e, refused := errors.AsType[*Error](err)
		assert.True(t, refused && e.Status == 400 && e.Param == tt.param && strings.Contains(e.Message, tt.contains),
			"%s:\ngot  %+v\nwant 400 %q X%sX", tt.body, e, tt.param, tt.contains)
	}
}

// TestScanReadsAsEnginesDo: the values are those that vLLM 0.32.0 and SGLang 0.5.23 made of such bodies. The body goes
// on as it came, but for what only a gateway sends.
func TestScanReadsAsEnginesDo(t *testing.T) {
	const chat = `"messages":[{"role":"user","content":"x"}]`
	parts := func(parts string) string { return `"messages":[{"role":"user","content":[` + parts + `]}]` }
	seen := func(r *Request) any { return fmt.Sprint([]bool{r.HasTools, r.HasToolMessages, r.HasMedia()}) }
	for _, tt := range []struct {
		ep   Endpoint
		body string
		read func(*Request) any
		want any
	}{
		{Chat, `"max_tokens":3.0,` + chat, func(r *Request) any { return r.MaxTokens }, 3},
		{Chat, `"max_tokens":"3",` + chat, func(r *Request) any { return r.MaxTokens }, 3},
		{Chat, `"max_completion_tokens":1e2,` + chat, func(r *Request) any { return r.MaxTokens }, 100},
		{Chat, `"min_tokens":true,` + chat, func(r *Request) any { return r.MinTokens }, 1},
		{Chat, `"n":1.0,"temperature":"0.5","top_p":true,"seed":"-7","top_k":"5",` + chat, func(r *Request) any { return r.N }, 1},
		{Chat, `"n":"2","logit_bias":{"5":"1.5"},` + chat, func(r *Request) any { return r.N }, 2},
		{Chat, `"stream":0,` + chat, func(r *Request) any { return r.Stream }, false},
		{Chat, `"stream":"false",` + chat, func(r *Request) any { return r.Stream }, false},
		{Chat, `"stream":"false","stream_options":{"include_usage":true},` + chat,
			func(r *Request) any { return r.Stream || r.IncludeUsage }, false},
		{Chat, `"stream_options":{ },` + chat, func(r *Request) any { return r.Stream }, false},
		{Chat, `"stream":"ON","stream_options":{"include_usage":1},` + chat, func(r *Request) any { return r.Stream && r.IncludeUsage }, true},
		{Chat, `"ignore_eos":"yes",` + chat, func(r *Request) any { return r.IgnoreEOS }, true},
		{Chat, `"logprobs":1,"top_logprobs":"3",` + chat, func(r *Request) any { return r.TopLogprobs }, 3},
		{Chat, `"stop_token_ids":["5",6.0,true],` + chat, func(r *Request) any { return r.LargestID }, uint32(6)},
		{Completions, `"prompt":"p","logprobs":true`, func(r *Request) any { return r.TopLogprobs }, 1},
		{Completions, `"prompt":"p","echo":"yes"`, func(r *Request) any { v, _ := r.Bool("echo"); return v }, true},
		{Completions, `"prompt":[1e2,"1_0",true]`, func(r *Request) any { return fmt.Sprint(r.Prompt.IDs) }, "[100 10 1]"},
		{Completions, `"prompt":["1","2",3]`, func(r *Request) any { return fmt.Sprint(r.Prompt.IDs) }, "[1 2 3]"},
		{Completions, `"prompt":["1"]`, func(r *Request) any { return r.Prompt.Text() }, "1"},
		{Chat, `"nvext":{"agent_hints":{"priority":"5"}},` + chat, func(r *Request) any { return *r.Nvext.Priority }, int32(5)},
		{Chat, parts(`"a",{"type":"text","text":"b"}`), func(r *Request) any { return r.Prompt.Messages()[0].Content }, "a\nb"},
		{Chat, parts(`{"type":"text","text":"a"},{"type":"text","text":null},{"type":"text"},{"type":"text","text":""},{"type":"text","text":"b"}`),
			func(r *Request) any { return r.Prompt.Messages()[0].Content }, "a\nb"},
		{Chat, parts(`{"image_url":"http://a"},{"type":null,"audio_url":"http://b"}`), func(r *Request) any { return len(r.media) }, 2},
		{Chat, parts(`{"image_url":"/etc/passwd"}`), func(r *Request) any { return r.NamesFiles() }, true},
		{Chat, parts(`{"type":"input_audio","input_audio":{}}`), seen, "[false false true]"},
		{Chat, chat + `,"tools":[{"type":"function"}]`, seen, "[true false false]"},
		{Chat, chat + `,"functions":[{}]`, seen, "[true false false]"},
		{Chat, chat + `,"tools":[]`, seen, "[false false false]"},
		{Chat, chat + `,"tools":null`, seen, "[false false false]"},
		{Chat, `"messages":[{"role":"user","content":"x"},{"role":"assistant","tool_calls":[{"id":"1"}]}]`, seen, "[false true false]"},
		{Chat, `"messages":[{"role":"user","content":"x"},{"role":"tool","content":"1"}]`, seen, "[false true false]"},
		{Chat, chat, func(r *Request) any { return r.Model }, ""},
		{Chat, `"model":null,` + chat, func(r *Request) any { return r.Model }, ""},
		{Chat, `"priority":5,"user":"u",` + chat,
			func(r *Request) any { return fmt.Sprint(r.Ignored, " ", string(r.Edit().Bytes())) }, `[priority] {"user":"u",` + chat + `}`},
		{Chat, `"priority":null,"rid":false,"data_parallel_rank":0,"return_hidden_states":0.0,"user":"u",` + chat,
			func(r *Request) any { return fmt.Sprint(r.Ignored, " ", string(r.Edit().Bytes())) }, `[] {"user":"u",` + chat + `}`},
		{Completions, `"prompt":[1],"stream":null,"stream_options":null,"max_tokens":null,"min_tokens":null,"n":null,"stop":null,"nvext":null,"temperature":null,"cache_salt":null`,
			func(r *Request) any { return fmt.Sprint(r.N, r.MaxTokens, r.Stream, r.Stop == nil) }, "1 0 false true"},
		{Chat, `"max_tokens":5,"max_completion_tokens":6,` + chat, func(r *Request) any { return r.MaxTokens }, 6},
		{Chat, `"max_completion_tokens":6,"max_tokens":7,` + chat, func(r *Request) any { return r.MaxTokens }, 6},
		{Chat, `"max_tokens":5,"max_completion_tokens":null,` + chat, func(r *Request) any { return r.MaxTokens }, 5},
		{Completions, `"prompt":"p","vllm_xargs":{"a":1,"b":[{"rid":1}]},"user":"u","echo":false,"nvext":{"routing_constraints":{"preferred_taints":["a","b"]}}`,
			func(r *Request) any { return fmt.Sprint(r.Nvext.PreferredTaints) }, "map[a:1 b:1]"},
	} {
		body := "\ufeff{" + tt.body + "}"
		r := scanned(t, tt.ep, body)
		assert.Equal(t, tt.want, tt.read(r), body)
		assert.Equal(t, body[len("\ufeff"):], string(r.Raw), "the body")
	}
}

func TestScanHandOffFieldsOfAnEngine(t *testing.T) {
	r, err := Limits{HandOff: true}.Scan(Completions,
		[]byte(`{"model":"m","prompt":[1],"kv_transfer_params":{"do_remote_decode":true},"rid":"x"}`))
	require.NoError(t, err)
	got, _ := r.Field("kv_transfer_params")
	assert.Equal(t, `{"do_remote_decode":true}`, string(got))
}

func TestScanLimits(t *testing.T) {
	nested := func(n int) string {
		return `{"model":"m","prompt":"p","x":` + strings.Repeat("[", n-1) + strings.Repeat("]", n-1) + `}`
	}
	var fields strings.Builder
	for i := range 600 {
		fields.WriteString(`,"f` + strings.Repeat("x", i) + `":1`)
	}
	messages := func(n int) string {
		return `{"model":"m","messages":[{"role":"a"}` + strings.Repeat(`,{"role":"a"}`, n-1) + `]}`
	}
	media := func(n int) string {
		return `{"model":"m","messages":[{"role":"a","content":[{"type":"image"}` + strings.Repeat(`,{"type":"image"}`, n-1) + `]}]}`
	}
	for _, tt := range []struct {
		name     string
		ep       Endpoint
		limits   Limits
		body     string
		status   int    // 0: accepted
		contains string // a part of the message
	}{
		{"as deep as may be", Completions, Limits{}, nested(128), 0, ""},
		{"deeper", Completions, Limits{}, nested(129), 400, ""},
		{"a limit of its own", Completions, Limits{MaxDepth: 2}, nested(2), 0, ""},
		{"past a limit of its own", Completions, Limits{MaxDepth: 2}, nested(3), 400, ""},
		{"the most there is", Completions, Limits{MaxDepth: 1 << 20}, nested(512), 0, ""},
		{"past the most there is", Completions, Limits{MaxDepth: 1 << 20}, nested(513), 400, ""},
		{"a million arrays", Completions, Limits{}, nested(1_000_000), 400, ""},
		{"a million open arrays", Completions, Limits{}, strings.Repeat("[", 1_000_000), 400, ""},
		{"a million objects", Completions, Limits{}, `{"x":` + strings.Repeat(`{"a":`, 1_000_000), 400, ""},
		{"deep in messages", Completions, Limits{MaxDepth: 4},
			`{"model":"m","prompt":"p","messages":[{"content":[{"type":"x","y":[]}]}]}`, 400, ""},
		{"too long", Completions, Limits{MaxBytes: 10}, `{"model":"m"}`, 413, ""},
		{"too many fields", Completions, Limits{}, `{"model":"m","prompt":"p"` + fields.String() + `}`, 400, ""},
		{"as many stops as may be", Completions, Limits{},
			`{"model":"m","prompt":"p","stop":["a"` + strings.Repeat(`,"a"`, maxStrings-1) + `]}`, 0, ""},
		{"too many stops", Completions, Limits{}, `{"model":"m","prompt":"p","stop":["a"` + strings.Repeat(`,"a"`, maxStrings) + `]}`, 400, ""},
		{"commas for ids", Completions, Limits{}, `{"model":"m","prompt":[` + strings.Repeat(",", 1_000_000) + `]}`, 400, ""},
		{"as many messages as may be", Chat, Limits{}, messages(maxMessages), 0, ""},
		{"too many messages", Chat, Limits{}, messages(maxMessages + 1), 400, "at most 262144 messages"},
		{"as many media as may be", Chat, Limits{}, media(maxMedia), 0, ""},
		{"too many media", Chat, Limits{}, media(maxMedia + 1), 400, "more than 16384 parts"},
	} {
		_, err := tt.limits.Scan(tt.ep, []byte(tt.body))
		if tt.status == 0 {
			assert.NoError(t, err, tt.name)
			continue
		}
		e, _ := errors.AsType[*Error](err)
		assert.True(t, e != nil && e.Status == tt.status && strings.Contains(e.Message, tt.contains), "%s: %v", tt.name, err)
	}
}

func TestScanErrorsRepeatLittle(t *testing.T) {
	long := strings.Repeat("é", 1000)
	_, err := scanBody(Completions, []byte(`{"model":"m","nvext":{"`+long+`":1}}`))
	require.Error(t, err)
	assert.LessOrEqual(t, len(err.Error()), 1000)
	_, err = scanBody(Completions, []byte(`{"model":"m","prompt":["secret",["secret"]]}`))
	require.Error(t, err)
	assert.NotContains(t, err.Error(), "secret")
}

// scanBody scans under the default limits.
func scanBody(ep Endpoint, body []byte) (*Request, error) { return Limits{}.Scan(ep, body) }

// A schema that an engine would unroll into a grammar without end is refused, wherever it may stand and however it is
// written.
func TestSchemasThatEnginesUnroll(t *testing.T) {
	for _, c := range []struct {
		endpoint       Endpoint
		field, members string
	}{
		{Completions, "structured_outputs", `"structured_outputs":{"json":%s}`},
		{Completions, "guided_json", `"guided_json":%s`},
		{Completions, "json_schema", `"json_schema":"%q"`},
		{Completions, "guided_json", `"guided_json":"%q"`},
		{Completions, "structural_tag", `"structural_tag":{"structures":[{"schema":%s}]}`},
		{Completions, "response_format", `"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":%s}}`},
		{Chat, "response_format", `"response_format":{"type":"json_schema","json_schema":{"name":"a","schema":%s}}`},
		{Chat, "tools", `"tools":[{"type":"function","function":{"name":"f","parameters":%s}}]`},
	} {
		for schema, good := range map[string]bool{
			`{"type":"array","minItems":10000,"maxLength":2000000000}`: true,
			`{"properties":{"minItems":{"type":"integer"}}}`:           true,
			`{"minItems":10001}`: false,
			`{"anyOf":[{"properties":{"a":{"items":{"maxItems":1e9}}}}]}`: false,
			`{ "min\u0049tems" : 1e999 }`:                                 false,
			`{"minProperties":99999999999999999999}`:                      false,
			`{"a":[1,"x",null,true,{"maxContains":1000000}]}`:             false,
		} {
			prompt := `"prompt":"x"`
			if c.endpoint == Chat {
				prompt = `"messages":[{"role":"user","content":"x"}]`
			}
			quoted := strings.ReplaceAll(strings.ReplaceAll(schema, `\`, `\\`), `"`, `\"`)
			body := `{"model":"m",` + prompt + `,` + strings.NewReplacer("%s", schema, "%q", quoted).Replace(c.members) + `}`
			_, err := Limits{}.Scan(c.endpoint, []byte(body))
			e, refused := errors.AsType[*Error](err)
			assert.True(t, refused != good && (!refused || e.Param == c.field), "%s: %v", body, err)
		}
	}
}

// Every field that names token ids is compared with the vocabulary, at its edge, and ids below 0 are refused whatever
// its size: SGLang 0.5.23 ends with an IndexError over those of a prompt and of stop_token_ids. Values that are
// infinite in the 32 bits of an engine's logits are refused too.
func TestVocabulary(t *testing.T) {
	const size = 1000
	for _, c := range []struct{ field, good, outside, wrong string }{
		{"prompt", `[0,999]`, `[1000,3]`, `[3,-1]`},
		{"prompt", `[[0,999]]`, `[[3,4294967295]]`, `[[3,-1]]`},
		{"prompt", `"1000"`, ``, `[4294967296]`},
		{"stop_token_ids", `[999]`, `[3,1000]`, `[-1]`},
		{"stop_token_ids", `[]`, `[999999]`, `[3.5]`},
		{"allowed_token_ids", `[999]`, `[1000]`, `[-1]`},
		{"logprob_token_ids", `[999]`, `[1000]`, `[1e-3]`},
		{"token_ids_logprob", `[999]`, `[1000]`, `["x"]`},
		{"bad_token_ids", `[999]`, `[1000]`, `3`},
		{"bad_words_token_ids", `[[999],[3,4]]`, `[[3],[4,1000]]`, `[[-1]]`},
		{"bad_words_ids", `[999]`, `[1000]`, `[[3],-1]`},
		{"logprobs", `1000`, `1001`, `-2`},
		{"logprobs", `-1`, `2147483647`, `"5e0"`},
		{"logit_bias", `{"0":-100,"999":1e6}`, `{"3":1,"1000":0}`, `{"-1":0}`},
		{"logit_bias", `{}`, `{"4294967295":1}`, `{"3":1e39}`},
		{"logit_bias", `{"\u0033":1.5," 03":1}`, `{"01000":1}`, `{"3.0":1}`},
		{"logit_bias", `null`, ``, `{"3":null}`},
		{"repetition_penalty", `1e-6`, ``, `1e-40`},
		{"stream_interval", `1`, ``, `1180591620717411303424`}, // over which vLLM 0.32 answers 500
		{"repetition_penalty", `2`, ``, `1e39`},
	} {
		body := func(value string) []byte {
			if c.field == "prompt" {
				return []byte(`{"model":"m","prompt":` + value + `}`)
			}
			return []byte(`{"model":"m","prompt":[0],"` + c.field + `":` + value + `}`)
		}
		outside := func(value string) *Error {
			r, err := Limits{}.Scan(Completions, body(value))
			require.NoError(t, err, "%s %s", c.field, value)
			return r.OutsideVocabulary(size)
		}
		assert.Nil(t, outside(c.good), "%s %s", c.field, c.good)
		if c.outside != "" {
			if err := outside(c.outside); err == nil || err.Status != http.StatusBadRequest || err.Param != c.field ||
				!strings.Contains(err.Message, "ends at 999") && !strings.Contains(err.Message, "has 1000 tokens") {
				t.Errorf("%s %s: %+v", c.field, c.outside, err)
			}
		}
		_, err := Limits{}.Scan(Completions, body(c.wrong))
		e, refused := errors.AsType[*Error](err)
		assert.True(t, refused && e.Status == http.StatusBadRequest && e.Param == c.field, "%s %s: %v", c.field, c.wrong, err)
	}
}
