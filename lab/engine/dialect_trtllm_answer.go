package engine

import (
	"strings"

	"github.com/tandem-pd/tandem/internal/openai"
)

// tensorRTAnswer is a whole answer or a chunk: unset fields are null, not absent.
type tensorRTAnswer struct {
	ID             string           `json:"id"`
	Object         string           `json:"object"`
	Created        int64            `json:"created"`
	Model          string           `json:"model"`
	Choices        []tensorRTChoice `json:"choices"`
	Usage          *openai.Usage    `json:"usage"`
	PromptTokenIDs []uint32         `json:"prompt_token_ids,omitempty"`
}

type tensorRTChoice struct {
	Index        int              `json:"index"`
	Text         *string          `json:"text,omitempty"`
	Message      *tensorRTMessage `json:"message,omitempty"`
	Delta        *tensorRTMessage `json:"delta,omitempty"`
	Logprobs     any              `json:"logprobs"`
	FinishReason *string          `json:"finish_reason"`
	StopReason   any              `json:"stop_reason"`
	Params       any              `json:"disaggregated_params,omitempty"`
}

// tensorRTMessage has its reasoning under both names.
type tensorRTMessage struct {
	Role             string  `json:"role,omitempty"`
	Content          *string `json:"content"`
	ReasoningContent *string `json:"reasoning_content"`
	Reasoning        *string `json:"reasoning"`
	ToolCalls        []any   `json:"tool_calls"`
}

func (d *tensorRT) answer(c *call, kind string) tensorRTAnswer {
	return tensorRTAnswer{ID: c.id, Object: kind, Created: c.created, Model: d.s.cfg.Model, Choices: []tensorRTChoice{}}
}

// whole is the answer; a context worker's has the hand-off, and a generation worker's shows the one it was given.
func (d *tensorRT) whole(c *call) any {
	a := d.answer(c, c.object)
	a.Usage = c.total()
	for i := range c.choices {
		ch := &c.choices[i]
		one := tensorRTChoice{Index: i, Logprobs: d.s.probabilities(c, ch.ids, 0), FinishReason: &ch.finish, StopReason: ch.reason}
		text := string(ch.text)
		if c.endpoint == openai.Chat {
			one.Message = &tensorRTMessage{Role: "assistant", Content: &text, ToolCalls: []any{}}
			if word, rest := cutWord(text); c.tensorRT.thinking {
				one.Message.Content, one.Message.Reasoning, one.Message.ReasoningContent = &rest, &word, &word
			}
		} else {
			one.Text = &text
		}
		if p := c.tensorRT.params; p != nil {
			one.Params = d.shown(p)
			if p.RequestType == "context_only" {
				one.Params = d.handedOver(c, ch)
				a.PromptTokenIDs = ch.request.Prompt
			}
		}
		a.Choices = append(a.Choices, one)
	}
	return a
}

// cutWord splits a text before its second word: the model's words begin with a blank.
func cutWord(text string) (first, rest string) {
	if at := strings.IndexByte(text[min(1, len(text)):], ' '); at >= 0 {
		return text[:at+1], text[at+1:]
	}
	return text, ""
}

// appendChunk appends an output's event: of a chat, its role first.
func (d *tensorRT) appendChunk(out []byte, c *call, i int, text string, ids []uint32) []byte {
	ch := &c.choices[i]
	a := d.answer(c, c.chunk)
	one := tensorRTChoice{Index: i}
	if c.endpoint == openai.Chat {
		if !ch.begun {
			one.Delta = &tensorRTMessage{Role: "assistant", Content: new(string)}
			a.Choices = []tensorRTChoice{one}
			out = appendJSON(out, a)
		}
		one.Delta = &tensorRTMessage{Content: &text}
		if c.tensorRT.thinking && !ch.begun {
			one.Delta.Content, one.Delta.Reasoning, one.Delta.ReasoningContent = nil, &text, &text
		}
	} else {
		one.Text = &text
	}
	one.Logprobs = d.s.probabilities(c, ids, ch.offset)
	ch.offset += len(text)
	ch.begun = true
	if ch.finish != "" {
		one.FinishReason, one.StopReason = &ch.finish, ch.reason
	}
	a.Choices = []tensorRTChoice{one}
	return appendJSON(out, a)
}

func (d *tensorRT) appendEnd(out []byte, c *call) []byte {
	if !c.usage {
		return out
	}
	a := d.answer(c, c.chunk)
	a.Usage = c.total()
	return appendJSON(out, a)
}
