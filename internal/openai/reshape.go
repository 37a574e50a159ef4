package openai

import "bytes"

// CompletionFromChat begins the edit that turns a chat request into a completion request for a worker that takes
// tokens: ids is the rendered and tokenized prompt, contextTokens the worker's context, 0 unknown. Chat's own fields
// go, all other bytes stay. max_completion_tokens becomes max_tokens; a chat without either may fill the context,
// where a completion ends after 16 tokens. What such a worker cannot give, because only the engine's chat endpoint
// has it, is refused with 400, and so is a prompt whose ids are not known (nil).
func CompletionFromChat(r *Request, ids []uint32, contextTokens int) (*Edit, error) {
	if err := r.tokensSuffice(); err != nil {
		return nil, err
	}
	if len(ids) == 0 {
		return nil, BadRequest("messages", "this model's workers take token ids, and the gateway cannot make them of these messages: "+
			"send the prompt as token ids to %s", Completions.Path())
	}
	e := r.Edit()
	for i := range r.members {
		if name := string(r.members[i].name); chatOnlyNames[name] {
			e.Delete(name)
		}
	}
	if raw, ok := r.Field("max_completion_tokens"); ok {
		if string(raw) != "null" {
			e.Set("max_tokens", raw)
		}
		e.Delete("max_completion_tokens")
	}
	switch rest := contextTokens - len(ids); {
	case r.MaxTokens > 0:
	case rest > 0:
		e.SetInt("max_tokens", int64(rest))
	default:
		e.Set("max_tokens", []byte("null")) // vLLM's word for the rest of the context
	}
	e.SetIDs("prompt", ids)
	return e, nil
}

// chatOnlyNames are fields of chat requests that completions lack or, logprobs and echo, understand otherwise.
var chatOnlyNames = map[string]bool{
	"messages": true, "tools": true, "tool_choice": true, "functions": true, "function_call": true,
	"parallel_tool_calls": true, "logprobs": true, "top_logprobs": true, "echo": true,
	"add_generation_prompt": true, "continue_final_message": true, "add_special_tokens": true,
	"chat_template": true, "chat_template_kwargs": true, "documents": true,
	"reasoning_effort": true, "include_reasoning": true, "verbosity": true,
	"modalities": true, "audio": true, "prediction": true, "web_search_options": true,
	"mm_processor_kwargs": true, "media_io_kwargs": true,
	"store": true, "metadata": true, "service_tier": true,
}

// tokensSuffice refuses what needs a worker's own chat endpoint.
func (r *Request) tokensSuffice() error {
	const only = "this model's workers take tokens; "
	switch {
	case r.HasTools:
		param := "tools"
		if _, ok := r.Field(param); !ok {
			param = "functions"
		}
		return BadRequest(param, only+"tools need a worker with model_input text")
	case r.HasToolMessages:
		return BadRequest("messages", only+"messages with tool calls need a worker with model_input text")
	case r.HasMedia():
		return BadRequest("messages", only+"parts other than text need a worker with model_input text")
	case r.Logprobs:
		return BadRequest("logprobs", only+"logprobs of a chat need a worker with model_input text")
	}
	for _, name := range []string{"chat_template", "chat_template_kwargs"} {
		if raw, ok := r.Field(name); ok && string(raw) != "null" {
			return BadRequest(name, only+"%s needs a worker with model_input text", name)
		}
	}
	return nil
}

// ChatChunk appends to dst the data of a completion's stream event, in the form of a chat's: id and object renamed,
// each choice's text as delta.content, its logprobs null. opens reports, by a choice's index, whether this is its
// first chunk, which has the role; it is asked once for each choice. All other bytes stay; data of another shape, an
// error say, stays whole.
func ChatChunk(dst, data []byte, opens func(choice int) bool) []byte {
	return reshape(dst, data, `"chat.completion.chunk"`, func(choice int) string {
		if opens(choice) {
			return `"delta":{"role":"assistant","content":`
		}
		return `"delta":{"content":`
	})
}

// ChatResponse appends to dst a completion's whole answer in the form of a chat's, as ChatChunk does for a stream's
// events.
func ChatResponse(dst, data []byte) []byte {
	return reshape(dst, data, `"chat.completion"`, func(int) string { return `"message":{"role":"assistant","content":` })
}

// reshaper copies data to dst but for the places it splices.
type reshaper struct {
	cursor
	dst    []byte
	copied int                     // data up to here is in dst or gone
	begin  func(choice int) string // what comes before a choice's text
}

// splice puts with in the place of data[start:end].
func (r *reshaper) splice(start, end int, with ...string) {
	r.dst = append(r.dst, r.data[r.copied:start]...)
	for _, w := range with {
		r.dst = append(r.dst, w...)
	}
	r.copied = end
}

func reshape(dst, data []byte, object string, begin func(choice int) string) []byte {
	r := reshaper{cursor: newCursor(data, deepest), dst: dst, begin: begin}
	m := r.members()
	for m.next() {
		switch string(m.name()) {
		case "id":
			if v, _ := r.value(); bytes.HasPrefix(v.of(data), []byte(`"cmpl-`)) {
				r.splice(v.start+1, v.start+1, "chat")
			}
		case "object":
			if v, _ := r.value(); string(v.of(data)) == `"text_completion"` {
				r.splice(v.start, v.end, object)
			}
		case "choices":
			if r.in('[') {
				for first := true; r.element(first); first = false {
					r.choice()
				}
			}
		default:
			r.value()
		}
	}
	if !r.finish() {
		return append(dst, data...)
	}
	return append(r.dst, data[r.copied:]...)
}

func (r *reshaper) choice() {
	index := r.index()
	m := r.members()
	for m.next() {
		switch string(m.name()) {
		case "text":
			if v, ok := r.value(); ok {
				r.splice(m.key.start-1, v.start, r.begin(index))
				r.splice(v.end, v.end, "}")
			}
		case "logprobs":
			if v, ok := r.value(); ok {
				r.splice(v.start, v.end, "null")
			}
		default:
			r.value()
		}
	}
}

// index looks ahead for the index of the choice at pos, 0 where it has none. Engines write it first.
func (r *reshaper) index() (index int) {
	ahead := r.cursor
	m := ahead.members()
	for m.next() {
		if string(m.name()) == "index" {
			ahead.tokens(&index)
			break
		}
		ahead.value()
	}
	return index
}
