package routing

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/internal/tokens"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/fleet"
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

// A template that is not the engine's is detected by the ids that engines report, and dropped; the workers tokenize in
// its place. A right one, read in its place, is used and proven.
func TestWrongTemplatesAreFoundOut(t *testing.T) {
	t.Parallel()
	path := fleet.ModelFolder(t, "Some words of my own. "+chatML)
	f := fleet.New(t, fleet.Options{Gateway: func(c *stack.GatewayConfig) {
		c.Models.Tokenizers, c.Models.AskTimeout = []string{"tandem-sim=" + path}, 5*time.Second
		c.Flow.Explain = true
	}})
	turn := 0
	render := func() models.Source {
		t.Helper()
		turn++
		content := fmt.Sprintf("question %d", turn)
		r, text := routingOf(f, "tandem-sim", content)
		assert.Equal(t, fleet.Expected(fleet.ChatPrompt(content), 4), text, "the answer")
		return r.Routing.Tokens
	}
	for i, want := range []models.Source{models.FromOwn, models.FromOwn, models.FromOwn, models.FromEngine, models.FromEngine} {
		assert.Equal(t, want, render(), "request %d: tokens are from", i+1)
	}
	f.Eventually("the log reports it", func() bool { return strings.Contains(f.Logs.String(), "no longer used") })
	assert.Equal(t, 1, strings.Count(f.Logs.String(), "no longer used"), "log lines")
	for series, want := range map[string]string{
		`tandem_tokenizer_checks_total{model="tandem-sim",result="disagree"}`:            "3",
		`tandem_tokenize_calls_total{model="tandem-sim",outcome="answered"}`:             "2",
		`tandem_frontend_prompt_tokens_source_total{model="tandem-sim",source="own"}`:    "3",
		`tandem_frontend_prompt_tokens_source_total{model="tandem-sim",source="engine"}`: "2",
	} {
		assert.Equal(t, want, f.Metric(series), "%s", series)
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
	require.NoError(t, os.WriteFile(filepath.Join(path, "chat_template.jinja"), []byte("{{ broken"), 0o600))
	if err := f.Gateway.Reload(); err == nil || !strings.Contains(err.Error(), "chat_template.jinja") {
		t.Errorf("a broken template is read: %v", err)
	}
	assert.Equal(t, models.FromEngine, render(), "after a broken reload, tokens are from")
	require.NoError(t, os.WriteFile(filepath.Join(path, "chat_template.jinja"), []byte(chatML), 0o600))
	require.NoError(t, f.Gateway.Reload())
	for i := range 12 {
		assert.Equal(t, models.FromOwn, render(), "request %d after the reload: tokens are from", i+1)
	}
	if n := f.Value("tandem_tokenizer_checks_total", "agree"); n < 3 || n > 11 { // three at each prefill worker, and few of the others
		t.Errorf("%v comparisons agree", n)
	}
}

// ownTemplate is the template in the model's folder: the gateway's, and an engine's unless its operator overrides it.
const ownTemplate = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}" +
	"{% if tools %}<|im_start|>system\n the<|im_end|>\n{% endif %}" +
	"{% if add_generation_prompt %}<|im_start|>assistant\n{{ ' not' if thinking else ' the' }}{% endif %}"

// operator is how an operator has started an engine.
type operator struct {
	replace  [2]string // in the template (--chat-template)
	thinking bool      // --default-chat-template-kwargs
	excludes bool      // --exclude-tools-when-tool-choice-none
}

// chatting is a chat, as far as it bears on its prompt.
type chatting struct {
	content, thinking string // thinking is the client's own kwarg, empty for none
	tools             bool
	choice            string
}

// prompt is what an engine makes of a chat, written once more without any template.
func (o operator) prompt(c chatting) []uint32 {
	render := func(where, word string) string {
		return strings.NewReplacer(o.replace[0], o.replace[1]).Replace(where + word)
	}
	if o.replace[0] == "" {
		render = func(where, word string) string { return where + word }
	}
	text := "<|im_start|>user\n" + c.content + "<|im_end|>\n"
	if c.tools && !(o.excludes && c.choice == "none") {
		text += render("<|im_start|>system\n", " the") + "<|im_end|>\n"
	}
	word := " the"
	if c.thinking == "true" || c.thinking == "" && o.thinking {
		word = " not"
	}
	return tokens.Sim().Encode(nil, text+render("<|im_start|>assistant\n", word))
}

func (c chatting) body(stream bool) string {
	b := fmt.Sprintf(`{"model":"tandem-sim","max_tokens":4,"ignore_eos":true,"stream":%t,"messages":[{"role":"user","content":%q}]`,
		stream, c.content)
	if c.thinking != "" {
		b += `,"chat_template_kwargs":{"thinking":` + c.thinking + `}`
	}
	if c.tools {
		b += `,"tools":[{"type":"function","function":{"name":"look","parameters":{"type":"object"}}}],"tool_choice":"` + c.choice + `"`
	}
	return b + `,"nvext":{"extra_fields":["worker_id"]}}`
}

// sameWord puts one token in the place of another, in the sentence for tools or in every prompt.
var (
	otherTools = [2]string{"system\n the", "system\n this"}
	otherWord  = [2]string{"assistant\n the", "assistant\n this"}
)

// inTemplate is how the words stand in the template's text.
var inTemplate = map[[2]string][2]string{otherTools: otherTools, otherWord: {"else ' the'", "else ' this'"}}

// TestChatsAreRenderedAsTheEngineDoes: whatever an operator has started an engine with, no chat is computed with
// another prompt than that engine makes of it, though the gateway has a template that gives as many tokens. What an
// engine was seen to make counts for that kind of chat and for that process alone.
func TestChatsAreRenderedAsTheEngineDoes(t *testing.T) {
	t.Parallel()
	plain := func(int) chatting { return chatting{} }
	withTools := func(choice string) func(i int) chatting {
		return func(i int) chatting { return chatting{tools: i >= 6, choice: choice} }
	}
	thinks := operator{thinking: true}
	steps := []struct {
		name   string
		by     operator
		rolled bool // the second worker of each role stays as it was
		n      int
		chat   func(i int) chatting
	}{
		{"default kwargs", thinks, false, 24, plain},
		{"default kwargs, which nine of ten clients replace", thinks, false, 40, func(i int) (c chatting) {
			if i%10 != 9 {
				c.thinking = "false"
			}
			return c
		}},
		{"the folder's template", operator{}, false, 24, plain},
		{"started again with default kwargs", thinks, false, 24, plain},
		{"another sentence for tools, of as many tokens", operator{replace: otherTools}, false, 24, withTools("auto")},
		{"excluded tools", operator{excludes: true}, false, 24, withTools("none")},
		{"another word everywhere", operator{replace: otherWord}, false, 24, plain},
		{"the folder's template again", operator{}, false, 24, plain},
		{"a change that has come to one of two", thinks, true, 40, plain},
	}
	for _, c := range []struct {
		engine string
		legs   int
	}{{"vllm", 1}, {"vllm", 2}, {"sglang", 1}, {"sglang", 2}, {"trtllm", 1}, {"trtllm", 2}} {
		t.Run(fmt.Sprintf("%s with %d legs", c.engine, c.legs), func(t *testing.T) {
			t.Parallel()
			folder := fleet.ModelFolder(t, ownTemplate)
			o := fleet.Options{Both: 2, Speedup: 1000}
			if c.legs == 2 {
				o = fleet.Options{Prefill: 2, Decode: 2, Speedup: 1000}
			}
			o.Gateway = func(g *stack.GatewayConfig) { g.Models.Tokenizers = []string{"tandem-sim=" + folder} }
			by := map[string]operator{} // by worker
			next := operator{}
			languages := map[string]*models.Language{} // by template
			o.Worker = func(w *devfleet.WorkerConfig) {
				template := ownTemplate
				if at, ok := inTemplate[next.replace]; ok {
					template = strings.ReplaceAll(template, at[0], at[1])
				}
				if languages[template] == nil {
					language, err := models.Load(fleet.ModelFolder(t, template), 1<<20)
					require.NoError(t, err)
					languages[template] = language
				}
				e := &w.Engine
				e.Engine, e.Language, e.ExcludeTools = c.engine, languages[template], next.excludes
				if next.thinking {
					e.ChatTemplateKwargs = `{"thinking":true}`
				}
				by[e.ID] = next
			}
			f := fleet.New(t, o)
			for _, step := range steps {
				if step.by.excludes && c.engine != "vllm" {
					continue
				}
				next = step.by
				for id, w := range f.Workers {
					if step.rolled && strings.HasSuffix(id, "-2") {
						continue
					}
					w.Kill()
					f.Start(w.Record().Role, id, o, slog.New(slog.DiscardHandler))
				}
				f.Healthy()
				wrong, agreed := 0, f.Value("tandem_tokenizer_checks_total", "agree")
				for i := range step.n {
					chat := step.chat(i)
					chat.content = fmt.Sprintf("%s, number %d", step.name, i)
					a := f.Good(fleet.ChatPath, chat.body(i%2 == 1))
					last := a.Body
					if n := len(a.Events); n > 1 {
						last = []byte(a.Events[n-2])
					}
					served := f.Parse(last).Nvext.WorkerID
					prefill, decode := served.Prefill, served.Decode
					computed := by[decode]
					if prefill != "" {
						computed = by[prefill]
						if c.engine == "sglang" && computed != by[decode] {
							continue // its legs begin at once, and each engine makes its own prompt
						}
					}
					if f.Text(a) != fleet.Generated(computed.prompt(chat), 4, false) {
						wrong++
					}
					assert.NotContains(t, string(a.Body)+strings.Join(a.Events, ""), `token_ids":[`,
						"the client gets ids that it did not ask for")
				}
				// Where engines report ids, the same template is soon proven, and most prompts are pinned then.
				if n := f.Value("tandem_tokenizer_checks_total", "agree") - agreed; step.by == (operator{}) && c.legs == 2 &&
					(n < 3 || n > float64(step.n)*3/4) {
					t.Errorf("%s: %v of %d chats were compared", step.name, n, step.n)
				}
				assert.LessOrEqual(t, wrong, 0,
					"%s of %d chats are computed with another prompt than the engine's", step.name, step.n)
			}
			f.Idle()
		})
	}
}
