package engine

import (
	"github.com/tandem-pd/tandem/internal/openai"
)

// sglangError is an error as SGLang writes it: flat, and without a param but for the model.
type sglangError struct {
	Object  string  `json:"object"`
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    int     `json:"code"`
}

// failure has the types of SGLang 0.5.23, and no places: of a field of a wrong type FastAPI's text with the place in
// the source, and the same once more (validation_exception_handler of srt/entrypoints/http_server.py).
func (d *sglang) failure(e *apiError) any {
	body := sglangError{Object: "error", Message: e.Message, Type: e.Type, Code: e.Code}
	if e.place != "" {
		check := validation(e)
		body.Type, body.Message = "Bad Request", "1 validation error:\n  "+check+
			"\n\n  File \"/site-packages/sglang/srt/entrypoints/http_server.py\", line 1870, in openai_v1_chat_completions\n    POST /v1/chat/completions ["+check+"]"
	}
	return body
}

// sglangAnswer is an answer, or a chunk of one, in either form.
type sglangAnswer struct {
	ID       string         `json:"id"`
	Object   string         `json:"object"`
	Created  int64          `json:"created"`
	Model    string         `json:"model"`
	Choices  []sglangChoice `json:"choices"`
	Usage    any            `json:"usage,omitempty"`    // absent in chats' events, and null in completions'
	Metadata map[string]any `json:"metadata,omitempty"` // of whole answers
}

// sglangUsage reports cached tokens only with --enable-cache-report.
type sglangUsage struct {
	PromptTokens        int                         `json:"prompt_tokens"`
	TotalTokens         int                         `json:"total_tokens"`
	CompletionTokens    int                         `json:"completion_tokens"`
	PromptTokensDetails *openai.PromptTokensDetails `json:"prompt_tokens_details"`
	ReasoningTokens     int                         `json:"reasoning_tokens"`
	Details             any                         `json:"completion_tokens_details,omitempty"`
}

type sglangChoice struct {
	Index        int            `json:"index"`
	Text         *string        `json:"text,omitempty"`
	Message      *sglangMessage `json:"message,omitempty"`
	Delta        *sglangMessage `json:"delta,omitempty"`
	Logprobs     any            `json:"logprobs"`
	FinishReason *string        `json:"finish_reason"`
	MatchedStop  any            `json:"matched_stop"`
	TokenIDs     []uint32       `json:"token_ids,omitempty"`          // of completions
	PromptIDs    []uint32       `json:"prompt_token_ids,omitempty"`   // of whole answers
	ResponseIDs  []uint32       `json:"response_token_ids,omitempty"` // of chats
}

// sglangMessage is a message or a delta. One from a parser of calls is full: it has members without a value.
type sglangMessage struct {
	full      bool
	Role      any              `json:"role,omitempty"`
	Content   any              `json:"content,omitempty"`
	Reasoning *string          `json:"reasoning_content"`
	ToolCalls []map[string]any `json:"tool_calls,omitempty"`
}

func (d *sglang) object(c *call, kind string) sglangAnswer {
	return sglangAnswer{ID: c.id, Object: kind, Created: c.created, Model: d.s.cfg.Model, Choices: []sglangChoice{}}
}

func (d *sglang) usage(c *call) *sglangUsage {
	u := c.total()
	out := &sglangUsage{PromptTokens: u.PromptTokens, TotalTokens: u.TotalTokens, CompletionTokens: u.CompletionTokens,
		ReasoningTokens: c.reasoned()}
	if out.ReasoningTokens > 0 {
		out.Details = openai.CompletionTokensDetails{ReasoningTokens: out.ReasoningTokens}
	} else if !c.stream || c.endpoint == openai.Chat {
		out.Details = null
	}
	if !d.s.cfg.NoCacheReport {
		out.PromptTokensDetails = u.PromptTokensDetails
	}
	return out
}

// ended sets the finish_reason and matched_stop of a choice.
func (one *sglangChoice) ended(c *call, ch *choice) {
	reason := ch.finish
	if c.parsed.calls != nil && reason == Stopped.String() {
		reason = "tool_calls"
	}
	one.FinishReason, one.MatchedStop = &reason, ch.reason
}

// whole is every choice with its text, its thought and its call apart.
func (d *sglang) whole(c *call) any {
	a := d.object(c, c.object)
	a.Usage = d.usage(c)
	a.Metadata = map[string]any{"weight_version": "default",
		"weight_versions": []map[string]any{{"version": "default", "start": 0, "end": c.choices[0].generated}}} // completion_two, as below
	for i := range c.choices {
		ch := &c.choices[i]
		text := string(ch.text)
		one := sglangChoice{Index: i, Logprobs: d.s.probabilities(c, ch.ids, 0)}
		one.ended(c, ch)
		if c.tokenIDs || c.promptIDs { // ../shared/vectors/sglang-0.5.23/answers_unified.json, chat_return_token_ids
			one.PromptIDs = ch.request.Prompt
		}
		switch {
		case !c.tokenIDs:
		case c.endpoint == openai.Chat:
			one.ResponseIDs = ch.ids
		default:
			one.TokenIDs = ch.ids
		}
		if c.endpoint != openai.Chat {
			one.Text = &text
			a.Choices = append(a.Choices, one)
			continue
		}
		one.Message = &sglangMessage{Role: "assistant"}
		if c.parsed.thinks {
			thought := string(d.s.tokenizer.Tokenizer().Decode(nil, ch.ids[:c.parsed.thought(len(ch.ids))]))
			thought = thought[:min(len(thought), len(text))]
			text, one.Message.Reasoning = text[len(thought):], &thought
		}
		if one.Message.Content = text; c.parsed.calls != nil {
			one.Message.Content = ""
			for _, p := range c.parsed.whole(text) {
				one.Message.ToolCalls = append(one.Message.ToolCalls, p.delta())
			}
		}
		a.Choices = append(a.Choices, one)
	}
	return a
}

// appendChunk appends the events of one output: of a chat its role first, and its end in an event of its own.
func (d *sglang) appendChunk(out []byte, c *call, i int, text string, ids []uint32) []byte {
	ch := &c.choices[i]
	event := func(fill func(one *sglangChoice)) {
		a, one := d.object(c, c.chunk), sglangChoice{Index: i}
		if fill(&one); c.endpoint != openai.Chat || one.Delta.full {
			a.Usage = null
		}
		if c.counts && (c.endpoint != openai.Chat || one.FinishReason == nil && one.Delta.Role != "assistant") {
			// 0.5.23's serving_chat.py and serving_completions.py, with include_usage or without
			u := d.usage(c)
			if a.Usage = u; c.endpoint != openai.Chat {
				u.PromptTokensDetails, u.Details = nil, null
			}
		}
		a.Choices = append(a.Choices, one)
		out = appendJSON(out, a)
	}
	if c.endpoint != openai.Chat {
		event(func(one *sglangChoice) {
			one.Text, one.Logprobs = &text, d.s.probabilities(c, ids, ch.offset)
			ch.offset += len(text)
			if c.tokenIDs {
				one.TokenIDs = ids
				if !ch.begun { // completion_stream_return_token_ids of the same recording
					one.PromptIDs = ch.request.Prompt
				}
			}
			ch.begun = true
			if ch.finish != "" {
				one.ended(c, ch)
			}
		})
		return out
	}
	shown := d.s.probabilities(c, ids, 0)
	delta := func(m sglangMessage) {
		event(func(one *sglangChoice) { one.Delta, one.Logprobs, shown = &m, shown, nil })
	}
	parsed := func(content any, calls []map[string]any) { // its probabilities come in an event of their own
		event(func(one *sglangChoice) {
			one.Delta = &sglangMessage{full: true, Role: null, Content: content, ToolCalls: calls}
		})
	}
	if !ch.begun {
		ch.begun = true
		event(func(one *sglangChoice) { one.Delta = &sglangMessage{Role: "assistant", Content: ""} })
	}
	switch {
	case c.parsed.thinking(ch.generated):
		if text != "" {
			delta(sglangMessage{Reasoning: &text})
		}
	case c.parsed.calls != nil:
		for _, p := range c.parsed.pieces(&ch.said, text) {
			if p.name != "" {
				parsed(null, []map[string]any{piece{index: p.index, name: p.name}.delta()})
			}
			if p.name = ""; p.arguments != "" {
				parsed(null, []map[string]any{p.delta()})
			}
		}
	case text == "":
	case c.parsed.offers:
		parsed(text, nil)
	default:
		delta(sglangMessage{Content: text})
	}
	if shown != nil {
		delta(sglangMessage{})
	}
	if ch.finish == "" {
		return out
	}
	event(func(one *sglangChoice) {
		one.Delta = &sglangMessage{}
		one.ended(c, ch)
	})
	return out
}

// appendEnd appends the usage, if requested.
func (d *sglang) appendEnd(out []byte, c *call) []byte {
	if !c.usage {
		return out
	}
	a := d.object(c, c.chunk)
	a.Usage = d.usage(c)
	return appendJSON(out, a)
}
