package engine

import (
	"encoding/json"

	"github.com/tandem-pd/tandem/internal/openai"
)

// answerObject is an answer, or a chunk of one, in either form, with the fields that vLLM adds to OpenAI's. What is
// null in every answer of a kind is absent; an engine that is not strict leaves it out.
type answerObject struct {
	ID             string          `json:"id"`
	Object         string          `json:"object"`
	Created        int64           `json:"created"`
	Model          string          `json:"model"`
	Choices        []answerChoice  `json:"choices"`
	ServiceTier    absent          `json:"service_tier,omitempty"`
	Fingerprint    string          `json:"system_fingerprint,omitempty"`
	Usage          any             `json:"usage,omitempty"` // openai.Usage or vllmUsage
	PromptLogprobs absent          `json:"prompt_logprobs,omitempty"`
	PromptTokenIDs any             `json:"prompt_token_ids,omitempty"` // of chats
	PromptText     any             `json:"prompt_text,omitempty"`
	KVTransfer     json.RawMessage `json:"kv_transfer_params,omitempty"`
	ECTransfer     absent          `json:"ec_transfer_params,omitempty"`
	Metrics        absent          `json:"metrics,omitempty"`
}

// answerChoice has Text in completions, Message in whole chats and Delta in chunks of chats.
type answerChoice struct {
	Index          int          `json:"index"`
	Text           *string      `json:"text,omitempty"`
	Message        *vllmMessage `json:"message,omitempty"`
	Delta          *vllmMessage `json:"delta,omitempty"`
	Logprobs       any          `json:"logprobs"`
	FinishReason   *string      `json:"finish_reason"`
	StopReason     any          `json:"stop_reason,omitempty"`
	PromptLogprobs absent       `json:"prompt_logprobs,omitempty"`  // of completions
	PromptTokenIDs any          `json:"prompt_token_ids,omitempty"` // of completions
	TokenIDs       any          `json:"token_ids,omitempty"`
	RoutedExperts  absent       `json:"routed_experts,omitempty"`
}

// vllmMessage is a message, or what a chunk adds to one. A thought is its reasoning, which SGLang calls
// reasoning_content.
type vllmMessage struct {
	Role         string           `json:"role,omitempty"`
	Content      any              `json:"content,omitempty"`
	Refusal      absent           `json:"refusal,omitempty"`
	Annotations  absent           `json:"annotations,omitempty"`
	Audio        absent           `json:"audio,omitempty"`
	FunctionCall absent           `json:"function_call,omitempty"`
	Reasoning    any              `json:"reasoning,omitempty"`
	ToolCalls    []map[string]any `json:"tool_calls,omitempty"`
}

// vllmUsage is a strict engine's usage.
type vllmUsage struct {
	PromptTokens     int `json:"prompt_tokens"`
	TotalTokens      int `json:"total_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	Prompt           any `json:"prompt_tokens_details,omitempty"`
	Completion       any `json:"completion_tokens_details,omitempty"`
}

// null is a member that is there without a value.
var null = json.RawMessage("null")

// ended sets why a choice has ended. A required call ends as one; a named function's ends as any other answer.
func (d *vllm) ended(c *call, one *answerChoice, ch *choice) {
	reason := ch.finish
	if c.parsed.calls != nil && !c.parsed.named && reason == Stopped.String() {
		reason = "tool_calls"
	}
	one.FinishReason, one.StopReason = &reason, ch.reason
	if one.StopReason == nil {
		one.StopReason = null
	}
}

// message is a whole answer's, with its thought and its call apart.
func (d *vllm) message(c *call, ch *choice) *vllmMessage {
	m, text := &vllmMessage{Role: "assistant"}, string(ch.text)
	if d.strict {
		m.Content, m.Reasoning = null, null
		m.Refusal, m.Annotations, m.Audio, m.FunctionCall = true, true, true, true
	}
	if c.parsed.thinks {
		thought := string(d.s.tokenizer.Tokenizer().Decode(nil, ch.ids[:c.parsed.thought(len(ch.ids))]))
		thought = thought[:min(len(thought), len(text))]
		if text = text[len(thought):]; !c.parsed.hidden {
			m.Reasoning = thought
		}
	}
	if m.Content = text; c.parsed.calls != nil {
		m.Content, m.ToolCalls = "", callsOf(c, text)
	}
	return m
}

// whole is every choice with its text.
func (d *vllm) whole(c *call) any {
	a, strict := d.object(c, c.object), absent(d.strict)
	a.Usage = d.usage(c, true)
	a.ServiceTier, a.ECTransfer, a.Metrics = strict, strict, strict
	if d.strict {
		a.Fingerprint, a.KVTransfer = d.fingerprint(), null
	}
	if c.endpoint == openai.Chat {
		a.PromptLogprobs, a.PromptText = strict, d.promptText(c)
		a.PromptTokenIDs = d.null()
	}
	for i := range c.choices {
		ch := &c.choices[i]
		if ch.pinned != nil {
			a.KVTransfer = d.handedOver(ch.pinned) // there is but one choice when it is set
		}
		text := string(ch.text)
		one := answerChoice{Index: i, Logprobs: d.s.probabilities(c, ch.ids, 0), RoutedExperts: strict}
		d.ended(c, &one, ch)
		if c.endpoint == openai.Chat {
			one.Message = d.message(c, ch)
		} else {
			one.Text, one.PromptLogprobs = &text, strict
			one.PromptTokenIDs = d.null()
		}
		one.TokenIDs = d.null()
		if c.showIDs(&a, &one, ch, ch.ids, true); c.parsed.hidden {
			one.TokenIDs, one.Logprobs = d.null(), nil
		}
		a.Choices = append(a.Choices, one)
	}
	return a
}

// appendChunk appends the events of one output: for a chat, its role first.
func (d *vllm) appendChunk(out []byte, c *call, i int, text string, ids []uint32) []byte {
	ch := &c.choices[i]
	first := !ch.begun
	ch.begun = true
	a := d.object(c, c.chunk)
	one := answerChoice{Index: i}
	if c.endpoint == openai.Chat {
		if first {
			role := a
			one.Delta = &vllmMessage{Role: "assistant", Content: ""}
			role.PromptTokenIDs, role.PromptText = d.null(), d.promptText(c)
			c.showIDs(&role, &one, ch, nil, true)
			one.TokenIDs = nil
			role.Choices = []answerChoice{one}
			if c.counts && d.strict {
				role.Usage = d.usageSoFar(c)
			}
			out = appendJSON(out, role)
			first = false
		}
		one.Delta = d.delta(c, ch, text)
	} else {
		one.Text, one.StopReason = &text, null
		one.PromptTokenIDs = d.null()
	}
	one.Logprobs = d.s.probabilities(c, ids, ch.offset)
	ch.offset += len(text)
	one.TokenIDs = d.null()
	event := func() {
		if c.showIDs(&a, &one, ch, ids, first); c.parsed.hidden {
			one.TokenIDs, one.Logprobs = d.null(), nil
		}
		if c.counts && d.strict {
			a.Usage = d.usageSoFar(c)
		}
		a.Choices = []answerChoice{one}
		out = appendJSON(out, a)
	}
	if ch.finish != "" {
		if one.Delta != nil && one.Delta.ToolCalls != nil { // the end comes by itself
			event()
			one.Delta, one.Logprobs, ids = &vllmMessage{}, nil, nil
		}
		if d.ended(c, &one, ch); d.strict && !c.usage && c.done() {
			a.Fingerprint = d.fingerprint()
		}
	} else if one.Delta != nil && one.Delta.empty() && one.Logprobs == nil && (!c.tokenIDs || c.parsed.hidden) {
		return out
	}
	event()
	return out
}

// delta returns what one output adds to a chat: to its reasoning, its call or its text. Of a call the name comes first
// (extract_tool_calls_streaming in 0.32.0's tool_parsers/hermes_tool_parser.py).
func (d *vllm) delta(c *call, ch *choice, text string) *vllmMessage {
	m := &vllmMessage{}
	switch {
	case c.parsed.thinking(ch.generated):
		if !c.parsed.hidden {
			m.Reasoning = text
		}
		return m
	case c.parsed.calls == nil:
		if m.Content = text; text == "" {
			m.Content = nil
		} else if c.parsed.hidden {
			m.Reasoning = d.null()
		}
		return m
	}
	add := func(index int) {
		if ch.unsent != "" {
			m.ToolCalls = append(m.ToolCalls, map[string]any{"index": index, "function": map[string]any{"arguments": ch.unsent}})
		}
		ch.unsent = ""
	}
	for _, p := range c.parsed.pieces(&ch.said, text) {
		if p.name == "" {
			ch.unsent += p.arguments
			add(p.index)
			continue
		}
		add(p.index - 1)
		m.ToolCalls = append(m.ToolCalls, map[string]any{"index": p.index, "id": callID(), "type": "function",
			"function": map[string]any{"name": p.name}})
		ch.unsent = p.arguments
	}
	if ch.finish != "" {
		add(ch.said.call)
	}
	if m.ToolCalls != nil {
		m.Content = d.null()
	}
	return m
}

// empty reports a message that adds nothing.
func (m *vllmMessage) empty() bool {
	return m.Content == nil && m.Reasoning == nil && m.ToolCalls == nil
}

// appendEnd appends the usage, if it was asked for.
func (d *vllm) appendEnd(out []byte, c *call) []byte {
	if !c.usage {
		return out
	}
	a := d.object(c, c.chunk)
	if a.Usage = d.usage(c, false); d.strict {
		a.Fingerprint = d.fingerprint()
	}
	return appendJSON(out, a)
}

// promptText returns the rendered messages, if requested.
func (d *vllm) promptText(c *call) any {
	if c.promptText {
		return string(d.s.tokenizer.Tokenizer().Decode(nil, c.choices[0].request.Prompt))
	}
	return d.null()
}

// null is a member that a strict engine writes without a value, and others leave out.
func (d *vllm) null() any {
	if d.strict {
		return null
	}
	return nil
}

// fingerprint names a strict engine's release and settings.
func (d *vllm) fingerprint() string { return "vllm-" + d.s.cfg.EngineVersion + "-00000000" }

// usage has no details without --enable-prompt-tokens-details, and has how many of its tokens are a thought
// (chat_completion/serving.py, _make_completion_tokens_details). In streams what is null is left out.
func (d *vllm) usage(c *call, whole bool) any {
	u := c.total()
	u.CompletionTokensDetails = d.reasoned(c)
	if d.s.cfg.NoCacheReport {
		u.PromptTokensDetails = nil
	}
	if !d.strict {
		return u
	}
	v := vllmUsage{PromptTokens: u.PromptTokens, TotalTokens: u.TotalTokens, CompletionTokens: u.CompletionTokens}
	if u.CompletionTokensDetails != nil {
		v.Completion = u.CompletionTokensDetails
	} else if whole {
		v.Completion = null
	}
	switch {
	case u.PromptTokensDetails != nil:
		details := map[string]any{"cached_tokens": u.PromptTokensDetails.CachedTokens}
		if c.endpoint == openai.Chat {
			details["created_cache_tokens"] = 0
		} else if whole {
			details["created_cache_tokens"] = nil
		}
		if whole {
			details["multimodal_tokens"] = nil
		}
		v.Prompt = details
	case whole:
		v.Prompt = null
	}
	return v
}

// reasoned counts a chat's tokens of thoughts, nil where the server has no parser for them.
func (d *vllm) reasoned(c *call) *openai.CompletionTokensDetails {
	if c.endpoint != openai.Chat || !d.strict && !c.parsed.thinks {
		return nil
	}
	return &openai.CompletionTokensDetails{ReasoningTokens: c.reasoned()}
}

// usageSoFar is the usage in each event of a stream, without details.
func (d *vllm) usageSoFar(c *call) any {
	u := c.total()
	v := vllmUsage{PromptTokens: u.PromptTokens, TotalTokens: u.TotalTokens, CompletionTokens: u.CompletionTokens}
	if details := d.reasoned(c); details != nil {
		v.Completion = details
	}
	return v
}

// object is an answer without choices.
func (d *vllm) object(c *call, kind string) answerObject {
	return answerObject{ID: c.id, Object: kind, Created: c.created, Model: d.s.cfg.Model, Choices: []answerChoice{}}
}

// showIDs adds token ids if requested: the answer's, and the prompt's once.
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
