package engines

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/lab/fleet"
	"github.com/tandem-pd/tandem/models"
	"github.com/tandem-pd/tandem/pools"
)

// qwenModel is the folder of Qwen2.5's tokenizer and template, unpacked from the vectors.
func qwenModel(t *testing.T) string {
	t.Helper()
	const from = "../../../../../shared/vectors/tokenizer/qwen2.5"
	dir := t.TempDir()
	for _, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
		packed, err := os.Open(filepath.Join(from, name+".gz"))
		if err != nil {
			t.Skipf("reads ../shared, which is absent: %v", err)
		}
		defer packed.Close()
		r, err := gzip.NewReader(packed)
		require.NoError(t, err)
		data, err := io.ReadAll(r)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
	return dir
}

// smallTemplate is a chat template with tools, for the simulated model's tokenizer.
const smallTemplate = `{%- if tools %}<|im_start|>tools{% for tool in tools %}
{{ tool | tojson }}{% endfor %}<|im_end|>
{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}
{{ m.content or '' }}{% for call in m.tool_calls or [] %}
call {{ call.function.name }} {{ call.function.arguments | tojson }}{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}`

// published is how each engine's KV events look on the wire.
var published = map[string]wire.Dialect{"vllm": wire.VLLM, "sglang": wire.SGLang}

// Ten turns of a conversation with a system prompt and tools, to a pair of each engine: the blocks that the router
// counts on are, in each turn, those that the engine then reports as cached. The gateway makes the tokens with the
// model's tokenizer and template, as the engine does, and follows the engine's cache by its KV events alone. So it is
// of every release of SGLang, with a salt where its engine hashes it.
func TestTenTurns(t *testing.T) {
	for model, folder := range map[string]func(*testing.T) string{"qwen2.5": qwenModel,
		"own": func(t *testing.T) string { return fleet.ModelFolder(t, smallTemplate) }} {
		for name := range published {
			fleet.VirtualRun(t, model+"/"+name, func(t *testing.T) { tenTurns(t, folder(t), name, "", "") })
		}
	}
	for release, salt := range map[string]string{"0.5.8": "", "0.5.17": "", "0.5.19": "tenant", "0.5.20": "tenant", "0.5.23": "tenant"} {
		fleet.VirtualRun(t, "own/sglang "+release+salt, func(t *testing.T) {
			tenTurns(t, fleet.ModelFolder(t, smallTemplate), "sglang", release, salt)
		})
	}
}

func tenTurns(t *testing.T, folder, name, release, salt string) {
	language, err := models.Load(folder, 1<<20)
	require.NoError(t, err)
	cfg := fleet.GatewayConfig()
	cfg.Models.Tokenizers = []string{stack.SimModel + "=" + folder}
	var pair []*fleet.Stock
	for id, role := range map[string]pools.Role{"p1": pools.Prefill, "d1": pools.Decode} {
		s := fleet.NewStock(t, engine.Config{Role: string(role), ID: id, Engine: name, EngineVersion: release, Speedup: 20,
			BlockSize: 16, Language: language}, published[name], "kv-events")
		pair = append(pair, s)
		where := s.Published()
		if release != "" { // it reports that by itself
			where = ""
		}
		cfg.Workers.Static = append(cfg.Workers.Static, s.Endpoint(t, where))
	}
	f := fleet.NewStatic(t, cfg)
	for _, s := range pair {
		f.Launch(s)
	}
	f.Followed("p1", "d1")
	if w, _ := f.Gateway.Roster.Lookup("p1"); release != "" {
		assert.Equal(t, release, w.Worker.EngineVersion)
	}

	type message map[string]any
	messages := []message{{"role": "system", "content": "You are a patient guide to the weather. " + strings.Repeat(fleet.Long, 3)}}
	tools := []message{{"type": "function", "function": message{
		"name": "look", "description": "The weather — of a <place> & a day, é", "parameters": message{
			"type": "object", "properties": message{"place": message{"type": "string"},
				"day": message{"type": "integer", "default": 1}}, "required": []string{"place"},
		},
	}}}
	reused := 0
	for turn := range 10 {
		messages = append(messages, message{"role": "user",
			"content": fmt.Sprintf("Turn %d: what is it like in Ærø? %s", turn, fleet.Long[:20+7*turn])})
		asked := message{"model": stack.SimModel, "max_tokens": 40, "messages": messages, "tools": tools,
			"nvext": message{"extra_fields": []string{"routing", "worker_id"}}}
		if salt != "" {
			asked["cache_salt"] = salt
		}
		body, err := json.Marshal(asked)
		require.NoError(t, err)
		a := f.Good(fleet.ChatPath, string(body))
		got, nvext := f.Read(a), f.Nvext(a)
		counted := nvext.Routing.Prefill.Overlap * 16
		if actual := nvext.Routing.Actual; nvext.WorkerID.Prefill != "p1" || actual == nil || *actual != counted || got.Cached != counted {
			t.Errorf("turn %d: the router counts on %d cached tokens: %s", turn, counted, a.Body)
		}
		reused += counted
		messages = append(messages, message{"role": "assistant", "content": got.Text})
		if turn%3 == 1 {
			messages = append(messages,
				message{"role": "assistant", "content": "", "tool_calls": []message{{"id": fmt.Sprint("call-", turn), "type": "function",
					"function": message{"name": "look", "arguments": `{"place":"Ærø","day":` + fmt.Sprint(turn) + `}`}}}},
				message{"role": "tool", "tool_call_id": fmt.Sprint("call-", turn), "content": `{"wind":"strong"}`})
		}
		f.Eventually("the gateway knows what the engines hold", func() bool {
			s := f.Sources()
			for _, id := range []string{"p1", "d1"} {
				if b := f.Workers[id].Engine.Books(); !b.Idle() || s[id].Blocks != b.Blocks.Cached {
					return false
				}
			}
			return true
		})
	}
	assert.GreaterOrEqual(t, reused, 10*100, "tokens were reused in ten turns")
	t.Logf("%d tokens were reused in ten turns", reused)
}
