package engine

import (
	"encoding/json"

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

// parsing is the parsed form of a chat's answer.
type parsing struct {
	tool   string // the function that is called, empty for none
	named  bool   // the request named it
	offers bool   // the answer may call a function
	thinks bool   // the answer begins with a thought
	hidden bool   // which is not shown
	before int    // tokens of the answer that the prompt's ids hold already
}

// thoughtTokens are the tokens of the simulated model's thought.
const thoughtTokens = 3

// thinking reports whether an answer of that many tokens is a thought so far.
func (sc *parsing) thinking(generated int) bool {
	return sc.thinks && generated+sc.before <= thoughtTokens
}

// thought is how many of an answer's tokens are its thought.
func (sc *parsing) thought(generated int) int { return min(max(0, thoughtTokens-sc.before), generated) }

// read determines the answer: the call of a function that the request demands, and reasoning before it if the template
// enables it.
func (sc *parsing) read(f *fields) {
	var tools []struct {
		Function struct {
			Name string `json:"name"`
		} `json:"function"`
	}
	f.decode("tools", &tools, "a list of tools")
	demanded := &tools
	if raw := f.get("tool_choice"); raw != nil && raw[0] == '{' {
		one := tools[:0:0]
		var chosen struct {
			Function struct {
				Name string `json:"name"`
			} `json:"function"`
		}
		f.decode("tool_choice", &chosen, "a mode or a tool")
		for _, t := range tools {
			if t.Function.Name == chosen.Function.Name {
				one = append(one, t)
			}
		}
		demanded, sc.named = &one, true
	} else if string(raw) != `"required"` {
		demanded = new(tools[:0:0])
	}
	if len(*demanded) > 0 {
		sc.tool = (*demanded)[0].Function.Name
	}
	var kwargs map[string]json.RawMessage
	f.decode("chat_template_kwargs", &kwargs, "an object")
	sc.thinks = string(kwargs["enable_thinking"]) == "true" || string(kwargs["thinking"]) == "true"
	f.flag("parallel_tool_calls")
	sc.offers = len(tools) > 0 && string(f.get("tool_choice")) != `"none"`
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
	if c.parsed.tool != "" && reason == Stopped.String() {
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
		if one.Message.Content = text; c.parsed.tool != "" {
			one.Message.ToolCalls, one.Message.Content = toolCall(c.parsed.tool, argumentsOf(text)), ""
		}
		a.Choices = append(a.Choices, one)
	}
	return a
}

// callID is a random id of a call.
func callID() string { return "call_" + newID()[:8] }

// toolCall is a call, or what an event adds to one that has begun, whose name is empty then.
func toolCall(name, arguments string) []map[string]any {
	call := map[string]any{"id": nil, "index": 0, "type": "function", "function": map[string]any{"name": nil, "arguments": arguments}}
	if name != "" {
		call["id"], call["function"] = callID(), map[string]any{"name": name, "arguments": arguments}
	}
	return []map[string]any{call}
}

// argumentsOf are the simulated model's arguments of every function.
func argumentsOf(text string) string {
	quoted, _ := json.Marshal(text) // cannot fail: a string
	return `{"text":` + string(quoted) + `}`
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
	case c.parsed.tool != "":
		quoted, _ := json.Marshal(text) // cannot fail: a string
		more := string(quoted[1 : len(quoted)-1])
		if !ch.called {
			ch.called = true
			parsed(null, toolCall(c.parsed.tool, ""))
			more = `{"text":"` + more
		}
		if ch.finish != "" {
			more += `"}`
		}
		if more != "" {
			parsed(null, toolCall("", more))
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
