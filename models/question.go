package models

import (
	"bytes"
	"container/list"
	"encoding/json"

	"github.com/zeebo/xxh3"

	"github.com/tandem-pd/tandem/internal/openai"
)

// question is a request to tokenize.
type question struct {
	req  *openai.Request
	id   string // of the call
	seed uint64 // of the keys
	own  string // the engine whose dialect the gateway's language renders; empty for a query to an engine
}

// askKey identifies a question by what its answer depends on, and by the cache salt: a cached answer reveals the
// question.
type askKey struct{ hi, lo uint64 }

// promptFields are the fields of a body that determine its prompt.
var promptFields = []string{
	"prompt", "messages", "tools", "functions", "tool_choice", "add_generation_prompt", "continue_final_message",
	"add_special_tokens", "chat_template", "chat_template_kwargs", "reasoning_effort", "documents", "mm_processor_kwargs",
}

func (q *question) key() askKey {
	h := xxh3.NewSeed(q.seed)
	_, _ = h.WriteString(q.req.Model)
	_, _ = h.WriteString(q.own)
	var size [8]byte
	write := func(i int, raw []byte) {
		size = [8]byte{byte(i + 1), byte(len(raw)), byte(len(raw) >> 8), byte(len(raw) >> 16), byte(len(raw) >> 24)}
		_, _ = h.Write(size[:])
		_, _ = h.Write(raw)
	}
	for i, name := range promptFields {
		if raw, ok := q.req.Field(name); ok {
			write(i, raw)
		}
	}
	if q.req.CacheSalt != "" {
		write(len(promptFields), []byte(q.req.CacheSalt))
	}
	sum := h.Sum128()
	return askKey{sum.Hi, sum.Lo}
}

// body encodes the question for the engine. vLLM's has no reasoning_effort and documents: they go into the template's
// kwargs, as chat does. Its own enable_thinking follows an effort there.
func (q *question) body(engine string) []byte {
	model, _ := json.Marshal(q.req.Model) // a string cannot fail
	b := append([]byte(`{"model":`), model...)
	add := func(name string, raw []byte) {
		b = append(append(append(append(b, `,"`...), name...), `":`...), raw...)
	}
	for _, name := range []string{"prompt", "messages", "tools", "add_generation_prompt", "continue_final_message",
		"add_special_tokens", "mm_processor_kwargs"} {
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

// vllmKwargs adds to the template's kwargs what vLLM's chat adds. The last of duplicate names wins.
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

// remembered is an LRU cache of answers, up to a limit in bytes. Its owner locks it.
type remembered struct {
	limit, bytes int64
	entries      map[askKey]*list.Element
	order        list.List          // of *answer, the most recently used first
	ends         map[uint64]*answer // by the hash of their last stable block; see answer.end
}

// answer is a prompt's ids, and what was derived from them since.
type answer struct {
	key    askKey
	ids    []uint32
	life   incarnation // the process that returned them; zero for the gateway's own
	dates  []date
	json   []byte
	chains []chain
	bytes  int64 // of memory, 0 once evicted
}

func (r *remembered) get(key askKey) (*answer, bool) {
	e, ok := r.entries[key]
	if !ok {
		return nil, false
	}
	r.order.MoveToFront(e)
	return e.Value.(*answer), true
}

// put caches ids, and returns nil if they exceed the limit.
func (r *remembered) put(key askKey, ids []uint32, dates []date) *answer {
	a := &answer{key: key, ids: ids, dates: dates}
	size := 256 + 4*cap(ids)
	if int64(size) > r.limit || r.entries[key] != nil {
		return nil
	}
	if r.entries == nil {
		r.entries = map[askKey]*list.Element{}
	}
	r.entries[key] = r.order.PushFront(a)
	a.bytes = int64(size)
	r.bytes += a.bytes
	r.fit()
	return a
}

// grow counts n more bytes of an answer that is still cached.
func (r *remembered) grow(a *answer, n int) {
	if a.bytes > 0 {
		a.bytes += int64(n)
		r.bytes += int64(n)
		r.fit()
	}
}

// fit evicts the least recently used answers until the limit holds.
func (r *remembered) fit() {
	for r.bytes > r.limit {
		r.drop(r.order.Back().Value.(*answer))
	}
}

func (r *remembered) drop(a *answer) {
	r.order.Remove(r.entries[a.key])
	delete(r.entries, a.key)
	r.unchained(a)
	r.bytes -= a.bytes
	a.bytes = 0
}
