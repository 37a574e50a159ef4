package routing

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/internal/tokens"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/models"
)

// ownTemplate is the template in the model's folder: the gateway's, and an engine's unless its operator says otherwise.
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
	say := func(where, word string) string {
		return strings.NewReplacer(o.replace[0], o.replace[1]).Replace(where + word)
	}
	if o.replace[0] == "" {
		say = func(where, word string) string { return where + word }
	}
	text := "<|im_start|>user\n" + c.content + "<|im_end|>\n"
	if c.tools && !(o.excludes && c.choice == "none") {
		text += say("<|im_start|>system\n", " the") + "<|im_end|>\n"
	}
	word := " the"
	if c.thinking == "true" || c.thinking == "" && o.thinking {
		word = " not"
	}
	return tokens.Sim().Encode(nil, text+say("<|im_start|>assistant\n", word))
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

// TestChatsAreRenderedAsTheEngineDoes: whatever an operator has started an engine with, no chat is computed with another
// prompt than that engine makes of it, though the gateway has a template that gives as many tokens. What an engine was
// seen to make counts for that kind of chat and for that process alone.
func TestChatsAreRenderedAsTheEngineDoes(t *testing.T) {
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
		{"default kwargs", thinks, false, 40, plain},
		{"default kwargs, which nine of ten clients replace", thinks, false, 60, func(i int) (c chatting) {
			if i%10 != 9 {
				c.thinking = "false"
			}
			return c
		}},
		{"the folder's template", operator{}, false, 40, plain},
		{"started again with default kwargs", thinks, false, 40, plain},
		{"another sentence for tools, of as many tokens", operator{replace: otherTools}, false, 40, withTools("auto")},
		{"excluded tools", operator{excludes: true}, false, 40, withTools("none")},
		{"another word everywhere", operator{replace: otherWord}, false, 40, plain},
		{"the folder's template again", operator{}, false, 30, plain},
		{"a change that has come to one of two", thinks, true, 60, plain},
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
			o.Worker = func(w *devfleet.WorkerConfig) {
				template := ownTemplate
				if at, ok := inTemplate[next.replace]; ok {
					template = strings.ReplaceAll(template, at[0], at[1])
				}
				language, err := models.Load(fleet.ModelFolder(t, template), 1<<20)
				if err != nil {
					t.Fatal(err)
				}
				e := &w.Engine
				e.Engine, e.Language, e.ExcludeTools = c.engine, language, next.excludes
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
					if all := string(a.Body) + strings.Join(a.Events, ""); strings.Contains(all, "token_ids") {
						t.Errorf("the client gets ids that it did not ask for: %.300s", all)
					}
				}
				// Where engines report ids, the same template is soon proven, and most prompts are pinned then.
				if n := f.Value("tandem_tokenizer_checks_total", "agree") - agreed; step.by == (operator{}) && c.legs == 2 &&
					(n < 3 || n > float64(step.n)*3/4) {
					t.Errorf("%s: %v of %d chats were compared", step.name, n, step.n)
				}
				if wrong > 0 {
					t.Errorf("%s: %d of %d chats are computed with another prompt than the engine's", step.name, wrong, step.n)
				}
			}
			f.Idle()
		})
	}
}
