package models

import (
	"bytes"
	"container/list"
	"encoding/json"

	"github.com/zeebo/xxh3"

	"github.com/tandem-pd/tandem/internal/openai"
)

// question is what an engine is asked to tokenize.
type question struct {
	req  *openai.Request
	id   string // of the call
	seed uint64 // of the keys
}

// askKey names a question by what its answer depends on.
type askKey struct{ hi, lo uint64 }

// promptFields are the fields of a body that make its prompt.
var promptFields = []string{
	"prompt", "messages", "tools", "tool_choice", "add_generation_prompt", "continue_final_message", "add_special_tokens",
	"chat_template_kwargs", "reasoning_effort", "documents", "mm_processor_kwargs",
}

func (q *question) key() askKey {
	h := xxh3.NewSeed(q.seed)
	_, _ = h.WriteString(q.req.Model)
	var size [8]byte
	for i, name := range promptFields {
		if raw, ok := q.req.Field(name); ok {
			size = [8]byte{byte(i + 1), byte(len(raw)), byte(len(raw) >> 8), byte(len(raw) >> 16), byte(len(raw) >> 24)}
			_, _ = h.Write(size[:])
			_, _ = h.Write(raw)
		}
	}
	sum := h.Sum128()
	return askKey{sum.Hi, sum.Lo}
}

// body is the question as the engine takes it. vLLM's has no reasoning_effort and documents: chat hands them to the
// template as kwargs, and so does the question. Its own enable_thinking follows an effort there.
func (q *question) body(engine string) []byte {
	model, _ := json.Marshal(q.req.Model) // a string cannot fail
	b := append([]byte(`{"model":`), model...)
	add := func(name string, raw []byte) {
		b = append(append(append(append(b, `,"`...), name...), `":`...), raw...)
	}
	for _, name := range []string{"prompt", "messages", "tools", "add_generation_prompt", "continue_final_message", "add_special_tokens", "mm_processor_kwargs"} {
		raw, ok := q.req.Field(name)
		if !ok || string(raw) == "null" || name == "tools" && len(bytes.Trim(raw, "[] \n\r\t")) == 0 {
			continue
		}
		if name == "prompt" && raw[0] == '[' { // one text in a list
			raw, _ = json.Marshal(q.req.Prompt.Text())
		}
		add(name, raw)
	}
	if q.req.Endpoint != openai.Chat {
		return append(b, '}')
	}
	kwargs, _ := q.req.Field("chat_template_kwargs")
	if engine == "sglang" {
		for _, name := range []string{"tool_choice", "reasoning_effort"} {
			if raw, ok := q.req.Field(name); ok && string(raw) != "null" {
				add(name, raw)
			}
		}
	} else {
		kwargs = q.vllmKwargs(kwargs)
	}
	if len(kwargs) > 0 && kwargs[0] == '{' {
		add("chat_template_kwargs", kwargs)
	}
	return append(b, '}')
}

// vllmKwargs adds to the template's kwargs what vLLM's chat adds. Of a name that comes twice the last one counts.
func (q *question) vllmKwargs(kwargs []byte) []byte {
	var more []byte
	add := func(name string, raw []byte) {
		if len(more) > 0 {
			more = append(more, ',')
		}
		more = append(append(append(append(more, '"'), name...), `":`...), raw...)
	}
	for _, name := range []string{"reasoning_effort", "documents"} {
		if raw, ok := q.req.Field(name); ok && string(raw) != "null" {
			add(name, raw)
			if name == "reasoning_effort" && !bytes.Contains(kwargs, []byte(`"enable_thinking"`)) {
				thinks := "true"
				if string(raw) == `"none"` {
					thinks = "false"
				}
				add("enable_thinking", []byte(thinks))
			}
		}
	}
	if len(more) == 0 {
		return kwargs
	}
	if len(kwargs) == 0 || kwargs[0] != '{' {
		kwargs = []byte("{}")
	}
	out := bytes.Clone(bytes.TrimRight(kwargs[:len(kwargs)-1], " \n\r\t"))
	if len(out) > 1 {
		out = append(out, ',')
	}
	return append(append(out, more...), '}')
}

// remembered is the latest answers, up to a limit in bytes. Its owner locks it.
type remembered struct {
	limit, bytes int64
	entries      map[askKey]*list.Element
	order        list.List // of *answer, the most recently used first
}

type answer struct {
	key askKey
	ids []uint32
}

func (a *answer) cost() int64 { return 256 + 4*int64(len(a.ids)) }

func (r *remembered) get(key askKey) ([]uint32, bool) {
	e, ok := r.entries[key]
	if !ok {
		return nil, false
	}
	r.order.MoveToFront(e)
	return e.Value.(*answer).ids, true
}

func (r *remembered) put(key askKey, ids []uint32) {
	a := &answer{key, ids}
	if a.cost() > r.limit || r.entries[key] != nil {
		return
	}
	if r.entries == nil {
		r.entries = map[askKey]*list.Element{}
	}
	for r.bytes+a.cost() > r.limit {
		oldest := r.order.Remove(r.order.Back()).(*answer)
		delete(r.entries, oldest.key)
		r.bytes -= oldest.cost()
	}
	r.entries[key] = r.order.PushFront(a)
	r.bytes += a.cost()
}
