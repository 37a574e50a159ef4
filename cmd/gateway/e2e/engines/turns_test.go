package engines

import (
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/internal/kvevents/wire"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/lab/zmqpub"
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
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
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

// ownModel is the folder of a model that is small enough to be everywhere.
func ownModel(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	tokenizer, err := os.ReadFile("../../../../internal/tokens/sim_tokenizer.json")
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{
		"tokenizer.json": tokenizer, "tokenizer_config.json": []byte(`{"eos_token":"<|im_end|>"}`), "chat_template.jinja": []byte(smallTemplate),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// published is how each engine's KV events look on the wire.
var published = map[string]wire.Dialect{"vllm": wire.VLLM, "sglang": wire.SGLang}

// stock starts a strict simulated engine as its maker ships it: it registers nowhere, reports of itself what that
// engine reports, and publishes its KV events over ZMQ. It returns the worker's URL with its options, for the gateway.
func stockEngine(f *fleet.Fleet, role pools.Role, id, name string, language *models.Language) string {
	f.T.Helper()
	at, replay := fleet.FreePort(f.T), fleet.FreePort(f.T)
	w, err := fleet.NewWorker(f.T, devfleet.WorkerConfig{
		Engine: engine.Config{Role: string(role), ID: id, Engine: name, Speedup: 20, BlockSize: 16, Language: language},
		Host:   "127.0.0.1", ModelInput: "text", Drain: time.Second,
		KVEvents: devfleet.WorkerEvents{ZMQ: &zmqpub.Config{
			Endpoint: fmt.Sprintf("tcp://*:%d", at), ReplayEndpoint: fmt.Sprintf("tcp://127.0.0.1:%d", replay), Dialect: published[name],
		}},
	})
	if err != nil {
		f.T.Fatal(err)
	}
	f.Run(id, w)
	return fmt.Sprintf("%s,id=%s,kv-events=tcp://127.0.0.1:%d,kv-replay=tcp://127.0.0.1:%d", w.Record().Address, id, at, replay)
}

// Ten turns of a conversation with a system prompt and tools, to a pair of each engine: the blocks that the router counts
// on are, in each turn, those that the engine then reports as cached. The gateway makes the tokens with the model's
// tokenizer and template, as the engine does, and knows the engine's cache by its KV events alone.
func TestTenTurns(t *testing.T) {
	for model, folder := range map[string]func(*testing.T) string{"qwen2.5": qwenModel, "own": ownModel} {
		for name := range published {
			fleet.VirtualRun(t, model+"/"+name, func(t *testing.T) { tenTurns(t, folder(t), name) })
		}
	}
}

func tenTurns(t *testing.T, folder, name string) {
	language, err := models.Load(folder, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	engines := &fleet.Fleet{T: t, Workers: map[string]*fleet.Worker{}}
	t.Cleanup(engines.Group.Wait) // after the other fleet has killed them
	p := stockEngine(engines, pools.Prefill, "p1", name, language)
	d := stockEngine(engines, pools.Decode, "d1", name, language)
	cfg := fleet.GatewayConfig()
	cfg.Models.Tokenizers = []string{stack.SimModel + "=" + folder}
	cfg.Workers.Static = append(cfg.Workers.Static, fleet.Endpoint(t, pools.Prefill, p), fleet.Endpoint(t, pools.Decode, d))
	f := fleet.NewStatic(t, cfg)
	for id, w := range engines.Workers {
		f.Workers[id] = w
	}
	f.Eventually("both are followed", func() bool {
		s := f.Sources()
		return s["p1"].State == "live" && s["d1"].State == "live" && f.Status("/health") == http.StatusOK
	})

	type message map[string]any
	messages := []message{{"role": "system", "content": "You are a patient guide to the weather. " + strings.Repeat(fleet.Long, 3)}}
	tools := []message{{"type": "function", "function": message{
		"name": "look", "description": "The weather — of a <place> & a day, é", "parameters": message{
			"type": "object", "properties": message{"place": message{"type": "string"}, "day": message{"type": "integer", "default": 1}}, "required": []string{"place"},
		},
	}}}
	reused := 0
	for turn := range 10 {
		messages = append(messages, message{"role": "user", "content": fmt.Sprintf("Turn %d: what is it like in Ærø? %s", turn, fleet.Long[:20+7*turn])})
		body, err := json.Marshal(message{
			"model": stack.SimModel, "max_tokens": 40, "messages": messages, "tools": tools, "nvext": message{"extra_fields": []string{"routing", "worker_id"}},
		})
		if err != nil {
			t.Fatal(err)
		}
		a := f.Post(fleet.ChatPath, string(body))
		var said struct {
			fleet.Chunk
			Nvext struct {
				WorkerID struct {
					Prefill string `json:"prefill_worker_id"`
				} `json:"worker_id"`
				Routing struct {
					Prefill struct {
						Overlap int `json:"overlap_blocks"`
					}
					Actual *int `json:"actual_cached_tokens"`
				}
			} `json:"nvext"`
		}
		if err := json.Unmarshal(a.Body, &said); err != nil || a.Status != http.StatusOK || said.Nvext.WorkerID.Prefill != "p1" {
			t.Fatalf("turn %d: %v, %d %s", turn, err, a.Status, a.Body)
		}
		counted := said.Nvext.Routing.Prefill.Overlap * 16
		if actual := said.Nvext.Routing.Actual; actual == nil || *actual != counted || said.Usage.Details.Cached != counted {
			t.Errorf("turn %d: the router counts on %d cached tokens: %s", turn, counted, a.Body)
		}
		reused += counted
		messages = append(messages, message{"role": "assistant", "content": said.Choices[0].Message.Content})
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
	if reused < 10*100 {
		t.Errorf("%d tokens were reused in ten turns", reused)
	}
	t.Logf("%d tokens were reused in ten turns", reused)
}
