package admission

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
)

// TestClientsSteerNoEngine sends each field by which a client could steer a hand-off, a rank, the engine's queue or
// another tenant's cache: it is refused by name and reaches no engine. What asks for nothing is taken out of the body, and
// a priority, which is the operator's to give, as well.
func TestClientsSteerNoEngine(t *testing.T) {
	f := fleet.New(t, fleet.Options{Prefill: 1, Decode: 1})
	prefill, decode := f.Record("prefill-1"), f.Record("decode-1")
	const chatPath = "/v1/chat/completions"
	chat := func(field string) string {
		return `{"model":"tandem-sim","max_tokens":2,"messages":[{"role":"user","content":"hello"}],` + field + `}`
	}
	type sent struct{ param, body string }
	var all []sent
	nothing := []string{`"priority":-7`, `"data_parallel_rank":0`}
	for name, value := range map[string]string{
		"kv_transfer_params": `{"do_remote_prefill":true}`, "ec_transfer_params": `{}`,
		"disaggregated_params": `{"request_type":"context_only"}`,
		"bootstrap_host":       `"10.0.0.1"`, "bootstrap_port": `8998`, "bootstrap_room": `1`, "bootstrap_pair_key": `"x"`,
		"routed_dp_rank": `1`, "disagg_prefill_dp_rank": `1`, "data_parallel_rank": `1`, "rid": `"x"`, "request_id": `"x"`,
		"input_ids": `[1]`, "prompt_token_ids": `[1]`, "prompt_token_ids_b64": `"AQAAAA=="`, "extra_key": `"x"`,
		"session_params": `{"id":"x"}`,
		"lora_path":      `"/etc"`, "lora_request": `{"lora_name":"x","lora_int_id":1,"lora_path":"/etc"}`, "return_hidden_states": `true`,
	} {
		all = append(all, sent{name, chat(`"` + name + `":` + value)},
			sent{"vllm_xargs." + name, chat(`"vllm_xargs":{"a":1,"` + name + `":` + value + `}`)})
		nothing = append(nothing, `"`+name+`":null`)
	}
	all = append(all,
		sent{"sampling_params.extra_args", chat(`"sampling_params":{"extra_args":{"kv_transfer_params":{}}}`)},
		sent{"messages[0].content[0].uuid", `{"model":"tandem-sim","messages":[{"role":"user","content":[{"type":"image_url",` +
			`"image_url":{"url":"http://h/i.png"},"uuid":"another's"}]}]}`},
	)
	for _, s := range all {
		a := f.Post(chatPath, s.body)
		var answer struct{ Error struct{ Param string } }
		if err := json.Unmarshal(a.Body, &answer); err != nil || a.Status != http.StatusBadRequest || answer.Error.Param != s.param {
			t.Errorf("%s: %d, parameter %q, %v", s.param, a.Status, answer.Error.Param, err)
		}
	}
	if p, d := prefill.Take(), decode.Take(); len(p)+len(d) > 0 {
		t.Errorf("engines got %d and %d requests of such clients", len(p), len(d))
	}
	for _, field := range nothing {
		a := f.Post(chatPath, chat(field))
		bodies := append(prefill.TakeBodies(), decode.TakeBodies()...)
		assert.True(t, a.Status == http.StatusOK && len(bodies) == 2 && !strings.Contains(bodies[0]+bodies[1], field),
			"%s: %d %s; engines got %q", field, a.Status, a.Body, bodies)
	}
	prefill.Take()
	decode.Take()
	if a := f.Post(chatPath, chat(`"seed":1`)); a.Status != http.StatusOK || len(prefill.Take()) != 1 || len(decode.Take()) != 1 {
		t.Errorf("%d: an honest request did not reach both engines", a.Status)
	}
}
