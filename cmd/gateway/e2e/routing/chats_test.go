package routing

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
)

// TestChatStaysChat: both legs of a chat are chats with the client's own bytes, and the ids of its prompt next to them,
// the same on both; with tools, which the simulated model's template lacks, prefill goes without ids and decode gets those
// that prefill's engine made; with images both go without. No leg has what the client left out.
func TestChatStaysChat(t *testing.T) {
	f := fleet.New(t, fleet.Options{Prefill: 1, Decode: 1})
	prefill, decode := f.Record("prefill-1"), f.Record("decode-1")
	const messages = `"messages":[ {"role":"system","content":"Be brief."},{"content":"caf\u00e9?","role":"user"} ]`
	for name, c := range map[string]struct {
		body string
		kept []string
		ids  bool
	}{
		"text":   {`{"model":"tandem-sim",` + messages + `,"max_tokens":3,"seed":9007199254740993,"x":{"b":1, "a":2}}`, []string{messages, `"seed":9007199254740993`, `"x":{"b":1, "a":2}`}, true},
		"stream": {`{"stream":true,"model":"tandem-sim",` + messages + `,"max_tokens":3}`, []string{messages}, true},
		"tools": {`{"model":"tandem-sim",` + messages + `,"max_tokens":3,"tools":[{"type":"function","function":{"name":"f","parameters":{"z":1,"a":2}}}],"tool_choice":"auto"}`,
			[]string{messages, `"tools":[{"type":"function","function":{"name":"f","parameters":{"z":1,"a":2}}}]`, `"tool_choice":"auto"`}, false},
		"image": {`{"model":"tandem-sim","max_tokens":3,"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA"}}]}]}`,
			[]string{`{"url":"data:image/png;base64,AAAA"},"uuid":"`}, false},
		"no tools": {`{"model":"tandem-sim",` + messages + `,"max_tokens":3,"tools":[]}`, []string{messages}, true},
	} {
		f.Good("/v1/chat/completions", c.body)
		ids := map[string][]uint32{}
		for leg, r := range map[string]*fleet.Recorder{"prefill": prefill, "decode": decode} {
			sent := r.TakeBodies()
			if len(sent) != 1 || !strings.HasPrefix(sent[0], "/v1/chat/completions ") {
				t.Fatalf("%s: %s got %.300q", name, leg, sent)
			}
			for _, kept := range c.kept {
				if !strings.Contains(sent[0], kept) {
					t.Errorf("%s: %s lacks %s in %s", name, leg, kept, sent[0])
				}
			}
			if strings.Contains(sent[0], `"tools":[]`) {
				t.Errorf("%s: %s got an empty list of tools", name, leg)
			}
			var body struct {
				Params struct {
					IDs []uint32 `json:"prompt_token_ids"`
				} `json:"kv_transfer_params"`
			}
			if err := json.Unmarshal([]byte(sent[0][strings.IndexByte(sent[0], ' '):]), &body); err != nil {
				t.Fatal(err)
			}
			ids[leg] = body.Params.IDs
		}
		if (len(ids["prefill"]) > 0) != c.ids || c.ids && !slices.Equal(ids["prefill"], ids["decode"]) || (len(ids["decode"]) > 0) != (name != "image") {
			t.Errorf("%s: the legs have the ids %v", name, ids)
		}
	}
	f.Idle()
}
