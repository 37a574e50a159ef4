package routing

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/models"
)

// chatML is the simulated model's template, as a chat template.
const chatML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}" +
	"{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"

// routingOf sends a chat and returns how it was routed, and the answer's text.
func routingOf(f *fleet.Fleet, model, content string) (*fleet.Nvext, string) {
	f.T.Helper()
	a := f.Good(fleet.ChatPath, fmt.Sprintf(`{"model":%q,"max_tokens":4,"messages":[{"role":"user","content":%q}],`+
		`"nvext":{"extra_fields":["routing"]}}`, model, content))
	return f.Nvext(a), f.Text(a)
}

// A template that is not the engine's is found out by the ids that engines report, and left; the workers are asked in its
// place. A right one, read in its place, is used and proven.
func TestWrongTemplatesAreFoundOut(t *testing.T) {
	path := fleet.ModelFolder(t, "Some words of my own. "+chatML)
	f := fleet.New(t, fleet.Options{Gateway: func(c *stack.GatewayConfig) {
		c.Models.Tokenizers, c.Models.AskTimeout = []string{"tandem-sim=" + path}, 5*time.Second
		c.Flow.Explain = true
	}})
	turn := 0
	say := func() models.Source {
		t.Helper()
		turn++
		content := fmt.Sprintf("question %d", turn)
		r, text := routingOf(f, "tandem-sim", content)
		if want := fleet.Expected(fleet.ChatPrompt(content), 4); text != want {
			t.Errorf("the answer is %q, want %q", text, want)
		}
		return r.Routing.Tokens
	}
	for i, want := range []models.Source{models.FromOwn, models.FromOwn, models.FromOwn, models.FromEngine, models.FromEngine} {
		if got := say(); got != want {
			t.Errorf("request %d: tokens are from %s, want %s", i+1, got, want)
		}
	}
	f.Eventually("the log says so", func() bool { return strings.Contains(f.Logs.String(), "no longer used") })
	if n := strings.Count(f.Logs.String(), "no longer used"); n != 1 {
		t.Errorf("%d log lines", n)
	}
	for series, want := range map[string]string{
		`tandem_tokenizer_distrusted{model="tandem-sim"}`:                                "1",
		`tandem_tokenizer_checks_total{model="tandem-sim",result="disagree"}`:            "3",
		`tandem_tokenize_calls_total{model="tandem-sim",outcome="answered"}`:             "2",
		`tandem_frontend_prompt_tokens_source_total{model="tandem-sim",source="own"}`:    "3",
		`tandem_frontend_prompt_tokens_source_total{model="tandem-sim",source="engine"}`: "2",
	} {
		if got := f.Metric(series); got != want {
			t.Errorf("%s is %q, want %s", series, got, want)
		}
	}
	var report struct {
		Models map[string]struct {
			Path       string
			Distrusted bool
			Disagreed  int
		}
	}
	f.Get("/workers", &report)
	if m := report.Models["tandem-sim"]; m.Path != path || !m.Distrusted || m.Disagreed != 3 {
		t.Errorf("/workers shows %+v", m)
	}
	if err := os.WriteFile(filepath.Join(path, "chat_template.jinja"), []byte("{{ broken"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := f.Gateway.Reload(); err == nil || !strings.Contains(err.Error(), "chat_template.jinja") {
		t.Errorf("a broken template is read: %v", err)
	}
	if got := say(); got != models.FromEngine {
		t.Errorf("after a broken reload, tokens are from %s", got)
	}
	if err := os.WriteFile(filepath.Join(path, "chat_template.jinja"), []byte(chatML), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := f.Gateway.Reload(); err != nil {
		t.Fatal(err)
	}
	for i := range 12 {
		if got := say(); got != models.FromOwn {
			t.Errorf("request %d after the reload: tokens are from %s", i+1, got)
		}
	}
	if n := f.Value("tandem_tokenizer_checks_total", "agree"); n < 3 || n > 11 { // three at each prefill worker, and few of the others
		t.Errorf("%v comparisons agree", n)
	}
}

// A model that the gateway has no tokenizer for is routed by the tokens that its workers give: what they have cached is
// foretold to the block. An alias is the model.
func TestWorkersAreAskedForTokens(t *testing.T) {
	f := fleet.New(t, fleet.Options{
		Prefill: 2, Decode: 1,
		Gateway: func(c *stack.GatewayConfig) {
			c.Models.AskTimeout, c.Flow.Explain, c.Pools.Aliases = 5*time.Second, true, []string{"small=another-model"}
		},
		Worker: func(c *devfleet.WorkerConfig) { c.Engine.Model = "another-model" },
	})
	prompt := strings.Repeat(fleet.Long, 12)
	for i, model := range []string{"another-model", "small", "another-model"} {
		n, text := routingOf(f, model, prompt)
		r := n.Routing
		if want := fleet.Expected(fleet.ChatPrompt(prompt), 4); r.Tokens != models.FromEngine || text != want {
			t.Errorf("%s: tokens are from %s, the answer is %q, want %q", model, r.Tokens, text, want)
		}
		if r.Actual == nil || *r.Actual != r.Predicted || i > 0 && r.Predicted == 0 {
			t.Errorf("request %d: %d tokens were predicted to be cached, %v were", i+1, r.Predicted, r.Actual)
		}
		f.Eventually("the events have come", func() bool { return !strings.Contains(f.Books(), "running") && i < 3 })
	}
	if asked, remembered := f.Value("tandem_tokenize_calls_total", "answered"), f.Value("tandem_tokenize_calls_total",
		"remembered"); asked != 1 || remembered != 2 {
		t.Errorf("the workers were asked %v times, and %v answers were remembered", asked, remembered)
	}
	var list struct{ Data []struct{ ID string } }
	f.Get("/v1/models", &list)
	if len(list.Data) != 2 {
		t.Errorf("the models are %+v", list.Data)
	}
}

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
		"text": {`{"model":"tandem-sim",` + messages + `,"max_tokens":3,"seed":9007199254740993,"x":{"b":1, "a":2}}`,
			[]string{messages, `"seed":9007199254740993`, `"x":{"b":1, "a":2}`}, true},
		"stream": {`{"stream":true,"model":"tandem-sim",` + messages + `,"max_tokens":3}`, []string{messages}, true},
		"tools": {`{"model":"tandem-sim",` + messages + `,"max_tokens":3,"tools":[{"type":"function","function":{"name":"f",` +
			`"parameters":{"z":1,"a":2}}}],"tool_choice":"auto"}`,
			[]string{messages, `"tools":[{"type":"function","function":{"name":"f","parameters":{"z":1,"a":2}}}]`,
				`"tool_choice":"auto"`}, false},
		"image": {`{"model":"tandem-sim","max_tokens":3,"messages":[{"role":"user","content":[{"type":"image_url",` +
			`"image_url":{"url":"data:image/png;base64,AAAA"}}]}]}`,
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
		if (len(ids["prefill"]) > 0) != c.ids || c.ids && !slices.Equal(ids["prefill"], ids["decode"]) ||
			(len(ids["decode"]) > 0) != (name != "image") {
			t.Errorf("%s: the legs have the ids %v", name, ids)
		}
	}
	f.Idle()
}

// An image of 3 MiB is served by workers whose cache has room for a tenth of
// its base64 in tokens, and is booked as an image.
func TestImagesAreBookedByTheirTokens(t *testing.T) {
	f := fleet.New(t, fleet.Options{Worker: func(c *devfleet.WorkerConfig) {
		c.Engine.ContextLength, c.Engine.TotalKVBlocks = 65_536, 4_200
	}})
	image := strings.Repeat("iVBORw0K", 3<<17)
	for _, ask := range []string{"What is this?", "And what is that?"} {
		a := f.Post("/v1/chat/completions", fmt.Sprintf(`{"model":"tandem-sim","max_tokens":4,"messages":[{"role":"user","content":[`+
			`{"type":"text","text":%q},{"type":"image_url","image_url":{"url":"data:image/png;base64,%s"}}]}]}`, ask, image))
		if a.Status != http.StatusOK {
			t.Fatalf("%d %.200s", a.Status, a.Body)
		}
	}
	f.Idle()
	if logs := f.Logs.String(); strings.Count(logs, " isl=10") != 2 { // 1,024 and the question
		t.Errorf("an image was not booked by its tokens")
	}
}
