package engine

import (
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
	Role             string           `json:"role,omitempty"`
	Content          *string          `json:"content"`
	ReasoningContent *string          `json:"reasoning_content"`
	Reasoning        *string          `json:"reasoning"`
	ToolCalls        []map[string]any `json:"tool_calls"`
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
		one := tensorRTChoice{Index: i, Logprobs: d.s.probabilities(c, ch.ids, 0)}
		one.ended(c, ch)
		text := string(ch.text)
		if c.endpoint == openai.Chat {
			one.Message = &tensorRTMessage{Role: "assistant", Content: &text, ToolCalls: []map[string]any{}}
			if c.tensorRT.thinking {
				word := string(d.s.tokenizer.Tokenizer().Decode(nil, ch.ids[:min(1, len(ch.ids))]))
				word = word[:min(len(word), len(text))]
				text = text[len(word):]
				one.Message.Reasoning, one.Message.ReasoningContent = &word, &word
			}
			if c.parsed.calls != nil {
				one.Message.Content, one.Message.ToolCalls = new(string), callsOf(c, text)
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

// ended sets why a choice has ended. As in chat_stream_post_processor of serve/postprocess_handlers.py a named function's
// call ends as any other answer.
func (one *tensorRTChoice) ended(c *call, ch *choice) {
	one.FinishReason, one.StopReason = &ch.finish, ch.reason
	if c.parsed.calls != nil && !c.parsed.named && ch.finish == Stopped.String() {
		called := "tool_calls"
		one.FinishReason = &called
	}
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
		switch {
		case c.tensorRT.thinking && !ch.begun:
			one.Delta.Content, one.Delta.Reasoning, one.Delta.ReasoningContent = nil, &text, &text
		case c.parsed.calls != nil: // of a named function the real one repeats the name, which no client expects
			one.Delta.Content = nil
			for _, p := range c.parsed.pieces(&ch.said, text) {
				one.Delta.ToolCalls = append(one.Delta.ToolCalls, p.delta())
			}
		}
	} else {
		one.Text = &text
	}
	one.Logprobs = d.s.probabilities(c, ids, ch.offset)
	ch.offset += len(text)
	ch.begun = true
	if ch.finish != "" {
		one.ended(c, ch)
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
