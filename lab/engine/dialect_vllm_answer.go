package engine

import (
	"encoding/json"

	"github.com/tandem-pd/tandem/internal/openai"
)

// answerObject is an answer, or a chunk of one, in either form, with the fields
// that vLLM adds to OpenAI's.
type answerObject struct {
	ID               string          `json:"id"`
	Object           string          `json:"object"`
	Created          int64           `json:"created"`
	Model            string          `json:"model"`
	Choices          []answerChoice  `json:"choices"`
	Usage            *openai.Usage   `json:"usage,omitempty"`
	PromptTokenIDs   []uint32        `json:"prompt_token_ids,omitempty"` // of chats
	KVTransferParams json.RawMessage `json:"kv_transfer_params,omitempty"`
}

// answerChoice has Text in completions, Message in whole chats and Delta in
// chunks of chats.
type answerChoice struct {
	Index          int          `json:"index"`
	Text           *string      `json:"text,omitempty"`
	Message        *vllmMessage `json:"message,omitempty"`
	Delta          *vllmMessage `json:"delta,omitempty"`
	Logprobs       *struct{}    `json:"logprobs"`
	FinishReason   *string      `json:"finish_reason"`
	StopReason     any          `json:"stop_reason"`
	PromptTokenIDs []uint32     `json:"prompt_token_ids,omitempty"` // of completions
	TokenIDs       []uint32     `json:"token_ids,omitempty"`
}

// vllmMessage is a message, or what a chunk adds to one. A thought is its reasoning, which SGLang calls
// reasoning_content.
type vllmMessage struct {
	Role      string           `json:"role,omitempty"`
	Content   *string          `json:"content,omitempty"`
	Reasoning *string          `json:"reasoning,omitempty"`
	ToolCalls []map[string]any `json:"tool_calls,omitempty"`
}

// ended sets why a choice has ended. A required call ends as one; a named function's
// ends as any other answer.
func (d *vllm) ended(c *call, one *answerChoice, ch *choice) {
	reason := ch.finish
	if c.parsed.tool != "" && !c.parsed.named && reason == Stopped.String() {
		reason = "tool_calls"
	}
	one.FinishReason, one.StopReason = &reason, ch.reason
}

// message is a whole answer's, with its thought and its call apart.
func (d *vllm) message(c *call, ch *choice) *vllmMessage {
	m, text := &vllmMessage{Role: "assistant"}, string(ch.text)
	if c.parsed.thinks {
		thought := string(d.s.tokenizer.Tokenizer().Decode(nil, ch.ids[:c.parsed.thought(len(ch.ids))]))
		thought = thought[:min(len(thought), len(text))]
		text, m.Reasoning = text[len(thought):], &thought
	}
	if c.parsed.tool != "" {
		m.ToolCalls = []map[string]any{toolDelta(c.parsed.tool, argumentsOf(text))}
	} else {
		m.Content = &text
	}
	return m
}

// whole is every choice with its text.
func (d *vllm) whole(c *call) any {
	a := d.object(c, c.object)
	a.Usage = d.usage(c)
	for i := range c.choices {
		ch := &c.choices[i]
		if ch.pinned != nil {
			a.KVTransferParams = d.handedOver(ch.pinned) // there is but one choice when it is set
		}
		text := string(ch.text)
		one := answerChoice{Index: i}
		d.ended(c, &one, ch)
		if c.endpoint == openai.Chat {
			one.Message = d.message(c, ch)
		} else {
			one.Text = &text
		}
		c.showIDs(&a, &one, ch, ch.ids, true)
		a.Choices = append(a.Choices, one)
	}
	return a
}

// appendChunk appends the events of one output: for a chat, its role first, with a call's name.
func (d *vllm) appendChunk(out []byte, c *call, i int, text string, ids []uint32) []byte {
	ch := &c.choices[i]
	first := !ch.begun
	ch.begun = true
	a := d.object(c, c.chunk)
	one := answerChoice{Index: i}
	if c.endpoint == openai.Chat {
		if first {
			role := a
			one.Delta = &vllmMessage{Role: "assistant", Content: new(string)}
			c.showIDs(&role, &one, ch, nil, true)
			role.Choices = []answerChoice{one}
			out = appendJSON(out, role)
			first = false
			if c.parsed.tool != "" {
				call := a
				call.Choices = []answerChoice{{Index: i, Delta: &vllmMessage{ToolCalls: []map[string]any{toolDelta(c.parsed.tool, `{"text":"`)}}}}
				out = appendJSON(out, call)
			}
		}
		one.Delta = d.delta(c, ch, text)
	} else {
		one.Text = &text
	}
	if ch.finish != "" {
		d.ended(c, &one, ch)
	}
	c.showIDs(&a, &one, ch, ids, first)
	a.Choices = []answerChoice{one}
	return appendJSON(out, a)
}

// delta is what one output adds to a chat: to its thought, its call or its text.
func (d *vllm) delta(c *call, ch *choice, text string) *vllmMessage {
	m := &vllmMessage{}
	thinking := c.parsed.thinking(ch.generated)
	switch {
	case thinking:
		m.Reasoning = &text
	case c.parsed.tool == "":
		m.Content = &text
	}
	if c.parsed.tool == "" || thinking && ch.finish == "" {
		return m
	}
	more := ""
	if !thinking {
		quoted, _ := json.Marshal(text) // cannot fail: a string
		more = string(quoted[1 : len(quoted)-1])
	}
	if ch.finish != "" {
		more += `"}`
	}
	m.ToolCalls = []map[string]any{toolDelta("", more)}
	return m
}

// appendEnd appends the usage, if it was asked for.
func (d *vllm) appendEnd(out []byte, c *call) []byte {
	if !c.usage {
		return out
	}
	a := d.object(c, c.chunk)
	a.Usage = d.usage(c)
	return appendJSON(out, a)
}

// usage has no details without --enable-prompt-tokens-details, and says of its own tokens alone how many are a thought
// (chat_completion/serving.py, _make_completion_tokens_details).
func (d *vllm) usage(c *call) *openai.Usage {
	u := c.total()
	if c.parsed.thinks {
		u.CompletionTokensDetails = &openai.CompletionTokensDetails{}
		for i := range c.choices {
			u.CompletionTokensDetails.ReasoningTokens += c.parsed.thought(c.choices[i].generated)
		}
	}
	if d.s.cfg.NoCacheReport {
		u.PromptTokensDetails = nil
	}
	return u
}

// object is an answer without choices.
func (d *vllm) object(c *call, kind string) answerObject {
	return answerObject{ID: c.id, Object: kind, Created: c.created, Model: d.s.cfg.Model, Choices: []answerChoice{}}
}

// showIDs adds token ids where they were asked for: the answer's, and the
// prompt's once.
func (c *call) showIDs(a *answerObject, one *answerChoice, ch *choice, ids []uint32, prompt bool) {
	if !c.tokenIDs {
		return
	}
	one.TokenIDs = ids
	switch {
	case !prompt:
	case c.endpoint == openai.Chat:
		a.PromptTokenIDs = ch.request.Prompt
	default:
		one.PromptTokenIDs = ch.request.Prompt
	}
}
