package connector

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/pools"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// newest is a release of each engine that takes pinned ids.
var newest = map[string]string{"vllm": "0.33.0", "sglang": "0.5.23", "trtllm": "1.3.0"}

// engineOf is the engine of a connector's workers.
func engineOf(name string) string {
	switch {
	case strings.HasPrefix(name, "sglang"):
		return "sglang"
	case strings.HasPrefix(name, "trtllm"):
		return "trtllm"
	}
	return "vllm"
}

// roundOf is a round of a request between two workers of a connector.
func roundOf(name string, r *openai.Request, pinned []byte) Round {
	worker := func(id string, role pools.Role) *pools.Worker {
		engine := engineOf(name)
		return &pools.Worker{
			ID: id, Incarnation: "i", Role: role, Model: "m", Engine: engine, EngineVersion: newest[engine], Connector: name, BlockSize: 16,
			Address: "http://10.0.0." + id[1:] + ":8000", Transfer: "10.0.0." + id[1:] + ":5600", TransferIDs: []string{"10.0.0." + id[1:] +
				":5601"},
		}
	}
	return Round{
		ID: "0123456789abcdef-1", TransferID: 1<<42 + 7, P: worker("p1", pools.Prefill), D: worker("d2", pools.Decode),
		Request: r, PinnedIDs: pinned, Kept: 4000,
	}
}

// legs are the calls of each connector for a request, and of one leg to each engine, by name. Refusals are left out.
func legs(r *openai.Request, pinned []byte) map[string][]byte {
	all := map[string][]byte{}
	add := func(name string, l *http1.Leg) {
		if l.Path != "" {
			all[name] = l.Body.AppendTo(nil)
		}
	}
	for name, c := range connectors {
		if plan, err := c.Plan(roundOf(name, r, pinned)); err == nil {
			add(name+" prefill", &plan.Prefill)
			add(name+" decode", &plan.Decode)
		}
	}
	for engine := range newest {
		round := roundOf(engine, r, pinned)
		round.P = nil
		if plan, err := (Local{}).Plan(round); err == nil {
			add(engine+" alone", &plan.Decode)
		}
	}
	return all
}

// raw is an object's members as they stand, from a key's quote to its value's end, by key; and the keys in order.
func raw(t *testing.T, object []byte) (text map[string]string, order []string) {
	t.Helper()
	text = map[string]string{}
	d := json.NewDecoder(bytes.NewReader(object))
	_, err := d.Token()
	require.NoError(t, err, "in %s", object)
	for d.More() {
		from := d.InputOffset()
		key, err := d.Token()
		require.NoError(t, err, "in %s", object)
		var v json.RawMessage
		require.NoError(t, d.Decode(&v), "in %s", object)
		name := key.(string)
		require.NotContains(t, text, name, "it stands twice in %s", object)
		text[name] = strings.TrimLeft(string(object[from:d.InputOffset()]), ", \t\r\n")
		order = append(order, name)
	}
	return text, order
}

// prompting are the fields that change the prompt's tokens or its blocks' names (clients.md §2.4).
var prompting = []string{
	"messages", "prompt", "tools", "functions", "tool_choice", "function_call", "response_format", "reasoning_effort", "thinking",
	"chat_template",
	"chat_template_kwargs", "documents", "add_generation_prompt", "continue_final_message", "add_special_tokens", "truncate_prompt_tokens",
	"truncation_side", "mm_processor_kwargs", "media_io_kwargs", "model", "cache_salt", "input_ids", "prompt_token_ids",
}

// ending are the fields that a prefill leg may lose or change: they concern the answer alone.
var ending = slices.Concat(endFields, []string{"stream", "max_tokens", "max_completion_tokens", "ignore_eos", "n"})

// checkLegs holds every leg of a body against the body: each member that is there stands as the client wrote it and in its
// order, none is lost that matters, and both legs of a pair have the same prompt.
func checkLegs(t *testing.T, r *openai.Request, pinned []byte) {
	t.Helper()
	sent, order := raw(t, r.Raw)
	all := legs(r, pinned)
	for name, body := range all {
		require.True(t, json.Valid(body), "%s: no JSON: %s", name, body)
		got, gotOrder := raw(t, body)
		engine, role, _ := strings.Cut(name, " ")
		may := func(field string) bool {
			switch field {
			case "nvext", "vllm_xargs":
				return true
			case "max_tokens", "max_completion_tokens":
				return role == "prefill" || engineOf(engine) == "trtllm"
			case "stream_options": // SGLang counts tokens; see TestSGLangPlan
				return role == "prefill" || engineOf(engine) == "trtllm" || engineOf(engine) == "sglang" && r.Stream
			case "model":
				return r.Model != "m"
			case "messages":
				return r.HasMedia() && engineOf(engine) == "vllm"
			case "truncate_prompt_tokens":
				return r.Truncate < 0
			case "tools", "functions", "tool_choice", "function_call":
				return true // an empty list goes, and a required choice of the prefill leg; see the tests of these
			}
			if role == "prefill" && slices.Contains(ending, field) {
				return true
			}
			return engineOf(engine) == "trtllm" && got[field] == "" && !tensorRTKeeps(r.Endpoint, field)
		}
		for _, field := range order {
			require.True(t, got[field] == sent[field] || may(field),
				"%s: %s became %q, the client wrote %q\nin %s", name, field, got[field], sent[field], body)
		}
		kept := slices.DeleteFunc(slices.Clone(order), func(field string) bool { return got[field] == "" })
		require.True(t, slices.Equal(kept, gotOrder[:len(kept)]),
			"%s: members are in the order %v, the client's is %v", name, gotOrder, kept)
		if decode, both := all[engine+" decode"]; both && role == "prefill" {
			other, _ := raw(t, decode)
			for _, field := range prompting {
				require.True(t, got[field] == other[field] || field == "tool_choice" && r.ToolRequired,
					"%s: %s is %q for prefill and %q for decode", engine, field, got[field], other[field])
			}
		}
	}
}

// tensorRTKeeps reports whether TensorRT-LLM gets a field: of those that clients send here, all that it has.
func tensorRTKeeps(endpoint openai.Endpoint, field string) bool {
	if endpoint == openai.Completions && slices.Contains([]string{"prompt", "model", "add_special_tokens", "truncate_prompt_tokens",
		"response_format"}, field) {
		return true
	}
	return endpoint == openai.Chat && field != "prompt" && field != "continue_final_message" && slices.Contains(prompting, field) ||
		slices.Contains([]string{"temperature", "top_p", "top_k", "min_p", "seed", "stop", "user", "logit_bias", "frequency_penalty",
			"repetition_penalty"}, field)
}

// corpus is small bodies of the forms that clients send: the field shapes of OpenAI's Agents SDK, Codex, LangChain,
// Claude Code through a converter, Cursor, Open WebUI, vLLM's benchmark, and templates' options.
func corpus(t testing.TB) map[string]*openai.Request {
	t.Helper()
	files, err := filepath.Glob("../../internal/openai/testdata/bodies/*.json")
	require.True(t, err == nil && len(files) >= 8, "%d bodies, %v", len(files), err)
	all := map[string]*openai.Request{}
	for _, file := range files {
		body, err := os.ReadFile(file)
		require.NoError(t, err)
		all[strings.TrimSuffix(filepath.Base(file), ".json")] = scan(t, string(body))
	}
	return all
}

// TestBodiesOfRealClients runs the corpus through every connector's legs. What comes out for one of each engine is in
// testdata/legs; -update rewrites it.
func TestBodiesOfRealClients(t *testing.T) {
	for name, r := range corpus(t) {
		checkLegs(t, r, nil)
		checkLegs(t, r, []byte(`[7,8,9]`))
		var out strings.Builder
		all := legs(r, []byte(`[7,8,9]`))
		for _, leg := range slices.Sorted(maps.Keys(all)) {
			if name, role, _ := strings.Cut(leg, " "); role != "alone" && name != "vllm-nixl" && name != "sglang" && name != "trtllm" {
				continue // the other connectors' own tests have their legs
			}
			fmt.Fprintf(&out, "== %s\n%s\n", leg, bytes.TrimSpace(all[leg]))
		}
		file := filepath.Join("testdata", "legs", name+".txt")
		if *update {
			require.NoError(t, os.WriteFile(file, []byte(out.String()), 0o644))
		}
		want, err := os.ReadFile(file)
		assert.True(t, err == nil && string(want) == out.String(), "%s: %v; the legs are\n%s", name, err, out.String())
	}
}

// TestNullsOfTheGatewaysFields: a body with fields that only the gateway sends, none of which asks for anything, has the legs
// of the body without them.
func TestNullsOfTheGatewaysFields(t *testing.T) {
	const body = `{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":3`
	const nulls = `,"kv_transfer_params":null,"priority":-7,"rid":false,"request_id":null,"bootstrap_room":0,"input_ids":null,"prompt_token_ids":null,"disaggregated_params":null,"data_parallel_rank":0}`
	for _, pinned := range [][]byte{nil, []byte(`[7,8,9]`)} {
		with, without := legs(scan(t, body+nulls), pinned), legs(scan(t, body+"}"), pinned)
		for name, leg := range without {
			want, _ := raw(t, leg)
			got, _ := raw(t, with[name])
			assert.Equal(t, want, got, name)
		}
	}
}

// FuzzLegs: whatever a client writes that the scan accepts, its untouched bytes survive in every engine's legs, and
// prefill and decode have the same prompt.
func FuzzLegs(f *testing.F) {
	for _, r := range corpus(f) {
		f.Add(r.Raw, r.Endpoint == openai.Chat, true)
		f.Add(r.Raw, r.Endpoint == openai.Chat, false)
	}
	f.Add([]byte(`{"model":"n","messages":[{"role":"user","content":[{"type":"image_url","image_url":"data:,x"}]}],"tools":[ ],"a":{"kv_transfer_params":{"prompt_token_ids":1}}}`), true, true)
	f.Fuzz(func(t *testing.T, body []byte, chat, pin bool) {
		endpoint, pinned := openai.Completions, []byte(nil)
		if chat {
			endpoint = openai.Chat
		}
		if pin {
			pinned = []byte(`[1,2,3]`)
		}
		if r, err := (openai.Limits{}).Scan(endpoint, body); err == nil {
			checkLegs(t, r, pinned)
		}
	})
}

// TestPromptFieldsAreTheSameOnBothLegs goes through every field that changes a prompt, one by one.
func TestPromptFieldsAreTheSameOnBothLegs(t *testing.T) {
	for field, value := range map[string]string{
		"tools":           `[{"type":"function","function":{"name":"b"}}, {"type":"function","function":{"name":"a"}}]`,
		"tool_choice":     `{"type":"function","function":{"name":"a"}}`,
		"response_format": `{"type":"json_object"}`, "reasoning_effort": `"high"`, "thinking": `{"type":"enabled"}`,
		"chat_template":        `"{{ messages }}"`,
		"chat_template_kwargs": `{"b":1, "a":2}`, "documents": `[{"text":"x"}]`, "add_generation_prompt": `false`,
		"continue_final_message": `true`,
		"add_special_tokens":     `true`, "truncate_prompt_tokens": `-1`, "truncation_side": `"right"`, "mm_processor_kwargs": `{"fps":1}`,
		"media_io_kwargs": `{"image":{}}`,
		"cache_salt":      `"s"`, "nvext": `{"cache_salt":"s"}`,
	} {
		r := scan(t, `{"model":"other","messages":[{"role":"user","content":"hi"}],"`+field+`":`+value+`}`)
		checkLegs(t, r, nil) // the same for prefill and decode
		all := legs(r, nil)
		for name := range connectors {
			leg, planned := all[name+" prefill"]
			if !planned && engineOf(name) == "trtllm" {
				continue
			}
			p, _ := raw(t, leg)
			assert.True(t, field == "nvext" || p[field] != "", "%s: prefill gets no %s", name, field)
			assert.True(t, (p["cache_salt"] != "" || !strings.Contains(value, `"s"`)) && p["model"] == `"model":"m"`,
				"%s: salt %q, model %q", name, p["cache_salt"], p["model"])
		}
	}
}

// TestPinnedIDs: the ids of a text-only chat reach engines whose release takes them, on every leg, next to the messages.
func TestPinnedIDs(t *testing.T) {
	const text = hiChat + `,"tools":[{"type":"function","function":{"name":"f"}}]}`
	const image = `{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"http://h/i.png"}}]}]}`
	ids := []byte(`[` + strings.Repeat("1,", 3000) + `2]`)
	for _, c := range []struct{ engine, version, body, field string }{
		{"vllm", "0.33.0", text, "kv_transfer_params"}, {"vllm", "v0.27.0", text, "kv_transfer_params"},
		{"vllm", "0.27.0rc1", text, "kv_transfer_params"},
		{"vllm", "0.26.9", text, ""}, {"vllm", "", text, ""}, {"vllm", "nightly", text, ""}, {"vllm", "0.33.0", image, ""},
		{"sim", "", text, "kv_transfer_params"},
		{"sglang", "0.5.20", text, "input_ids"}, {"sglang", "0.5.19", text, ""}, {"sglang", "0.6", image, ""},
		{"trtllm", "1.2.0rc4", text, "prompt_token_ids"}, {"trtllm", "1.1.0", text, ""},
		{"vllm", "0.33.0", hi + `}`, ""},
	} {
		r := roundOf(c.engine, scan(t, c.body), ids)
		r.P, r.D.EngineVersion, r.D.Engine = nil, c.version, c.engine
		got, _ := raw(t, planned(t, Local{}, r).Decode.Body.AppendTo(nil))
		for _, field := range []string{"kv_transfer_params", "input_ids", "prompt_token_ids"} {
			want := ""
			if field == c.field {
				if want = `"` + field + `":` + string(ids); field == "kv_transfer_params" {
					want = `"` + field + `":{"prompt_token_ids":` + string(ids) + `}`
				}
			}
			assert.Equal(t, want, got[field], "%s %s: %s", c.engine, c.version, field)
		}
		assert.Equal(t, r.Request.Endpoint == openai.Chat, got["messages"] != "", "%s %s: there are messages", c.engine, c.version)
	}
}

// TestPinnedIDsMergeWithTheHandOff: on vLLM the ids stand in the object that hands over, on both legs.
func TestPinnedIDsMergeWithTheHandOff(t *testing.T) {
	r := roundOf("vllm-nixl", scan(t, ` `+hiChat+` } `), []byte(`[7,8]`))
	plan := planned(t, NIXL{}, r)
	before := text(plan.Prefill)
	got, _ := raw(t, []byte(before))
	assert.Equal(t, `"kv_transfer_params":{"prompt_token_ids":[7,8],`+string(prefillParams[1:]), got["kv_transfer_params"])
	NIXL{}.Bind(&plan.Decode, took(t, NIXL{}, r, `{"kv_transfer_params":`+goodParams+`}`, time.Now()))
	assert.Equal(t, ` `+hiChat+` ,"kv_transfer_params":{"prompt_token_ids":[7,8],`+goodParams[1:]+`} `, text(plan.Decode))
	assert.Equal(t, before, text(plan.Prefill), "binding changed the prefill leg, which shares segments")
}

// TestSaltsReachBothLegs: engines get the salt that the gateway hashes with, wherever it came from.
func TestSaltsReachBothLegs(t *testing.T) {
	for _, c := range []struct {
		name, more, want string
		isolated         bool
	}{
		{"the body's, as it was written", `,"cache_salt":"\u0061"`, `"cache_salt":"\u0061"`, false},
		{"nvext's", `,"nvext":{"cache_salt":"a"}`, `"cache_salt":"a"`, false},
		{"nvext's next to null", `,"cache_salt":null,"nvext":{"cache_salt":"a"}`, `"cache_salt":"a"`, false},
		{"a tenant's", `,"cache_salt":"a"`, "", true},
		{"none", ``, "", false},
	} {
		r := scan(t, hiChat+c.more+`}`)
		if c.isolated {
			r.Isolate([32]byte{1})
			c.want = `"cache_salt":"` + r.CacheSalt + `"`
		}
		for name, body := range legs(r, nil) {
			got, _ := raw(t, body)
			assert.Equal(t, c.want, got["cache_salt"], "%s: %s", c.name, name)
		}
	}
}

// TestAdaptersHaveTheirEnginesNames: vLLM lists an adapter as a model, SGLang has it behind its base model.
func TestAdaptersHaveTheirEnginesNames(t *testing.T) {
	r := scan(t, strings.Replace(hiChat, `"m"`, `"sql"`, 1)+`}`)
	r.Model, r.Adapter = "m", "sql"
	for name, body := range legs(r, nil) {
		want := `"model":"sql"`
		if strings.HasPrefix(name, "sglang") {
			want = `"model":"m:sql"`
		}
		got, _ := raw(t, body)
		assert.Equal(t, want, got["model"], name)
	}
}
