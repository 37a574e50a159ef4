package openai

import (
	"encoding/json"
	"slices"
	"strconv"
	"strings"
)

const (
	// mostParts bounds the prompts of a completion, as vLLM does (VLLM_MAX_COMPLETION_PROMPTS of 0.32's envs.py), and the
	// calls that a request may become.
	mostParts = 1024

	// mostRepeated bounds the bytes of the fields that every part repeats.
	mostRepeated = defaultMaxBytes
)

// Prompts returns the number of prompts: 1, or more of a completion.
func (r *Request) Prompts() int { return max(1, len(r.Prompt.several)) }

// CheckParts returns why the request cannot be split into a call for each of its prompts and, where apart is set, for
// each answer; nil if it can.
func (r *Request) CheckParts(apart bool) *Error {
	calls, field := r.Prompts(), "prompt"
	if apart {
		calls, field = calls*r.N, "n"
	}
	prompts, _ := r.Field("prompt")
	const alone = "is not for a request whose parts may be served by different workers: send one request for each prompt and answer"
	switch {
	case r.Nvext.QueryOnly():
		return BadRequest("nvext.annotations", "nvext.annotations: query_instance_id "+alone)
	case r.Nvext.Wants("worker_id"), r.Nvext.Wants("timing"), r.Nvext.Wants("routing"):
		return BadRequest("nvext.extra_fields", "nvext.extra_fields "+alone)
	case calls > mostParts:
		return BadRequest(field, "the request becomes %d calls, one for each prompt and answer; the limit is %d", calls, mostParts)
	case calls*(len(r.Raw)-len(prompts)) > mostRepeated:
		return BadRequest(field, "the request becomes %d calls, which repeat its other fields; the limit is %d bytes together",
			calls, mostRepeated)
	}
	return nil
}

// Part returns the request of one prompt, from 0, with n of its answers.
func (r *Request) Part(prompt, n int) (*Request, error) {
	e := r.Edit()
	defer e.Release()
	size := len(r.Raw)
	if all, _ := r.Field("prompt"); r.Prompt.several != nil {
		one := r.Prompt.several[prompt].of(r.Raw)
		e.Set("prompt", one)
		size += len(one) - len(all)
	}
	if n != r.N {
		e.SetInt("n", int64(n))
		if r.BestOf <= r.N {
			e.Delete("best_of")
		}
	}
	part, err := r.derived(e.Append(make([]byte, 0, size+len(`,"n":128`))))
	if err == nil {
		part.Nvext.SpeculativePrefill = false // none of several answers is the next turn's
	}
	return part, err
}

// Merge puts the answers of a request's parts together. A part is one prompt with some of its answers. As in vLLM and
// SGLang, choices are numbered by prompt and answer, the events of all parts come in one stream as they arrive, and the
// usage is that of all. A prompt that several parts have counts once.
type Merge struct {
	// Answers is the number of choices of each part, and Calls that of parts of each prompt.
	Answers, Calls int
	// Failed reports that a part's stream has ended with an error.
	Failed bool

	id, created []byte // of the first event
	end         []byte // the first part's event with its usage
	data        []byte // of the event at hand
	usage       map[string]any
}

// AppendEvent appends an event of a part, from 0, as the client gets it: nothing for the part's usage and its end marker.
func (m *Merge) AppendEvent(dst []byte, part int, ev Event) []byte {
	if ev.Done() {
		return dst
	}
	info := Inspect(ev.Data)
	m.Failed = m.Failed || info.Error
	if !info.Valid || info.Error {
		return append(dst, ev.Raw...) // a comment, or what ends the stream
	}
	m.data = m.appendChunk(m.data[:0], part, ev.Data)
	if info.Usage && info.Choices == 0 {
		m.add(part, info.usageValue.of(ev.Data))
		if m.end == nil {
			m.end = slices.Clone(m.data)
		}
		return dst
	}
	return AppendEvent(dst, m.data)
}

// appendChunk appends an event's data with the id and time of the stream's first, and its choices with their places
// among all.
func (m *Merge) appendChunk(dst []byte, part int, data []byte) []byte {
	c, copied := newCursor(data, deepest), 0
	for all := c.members(); all.next(); {
		var first *[]byte
		switch string(all.key.of(data)) {
		case "id":
			first = &m.id
		case "created":
			first = &m.created
		case "choices":
			if part > 0 {
				dst = m.appendChoices(append(append(dst, data[copied:c.pos]...), '['), part, &c)
				dst, copied = append(dst, ']'), c.pos
				continue
			}
		}
		switch v, _ := c.value(); {
		case first == nil:
		case *first == nil:
			*first = slices.Clone(v.of(data))
		default:
			dst, copied = append(append(dst, data[copied:v.start]...), *first...), v.end
		}
	}
	return append(dst, data[copied:]...)
}

// AppendEnd appends the last events: the usage, if the parts had it, and the end marker.
func (m *Merge) AppendEnd(dst []byte) []byte {
	if e, ok := NewEdit(m.end); ok {
		m.setUsage(e)
		dst = AppendEvent(dst, e.Bytes())
	}
	return AppendEvent(dst, []byte(Done))
}

// AppendWhole appends the answer made of the parts' whole ones, which are JSON objects: the choices of all in the first.
func (m *Merge) AppendWhole(dst []byte, parts [][]byte) []byte {
	first, choices := (*Edit)(nil), []byte{'['}
	for i, raw := range parts {
		e, ok := NewEdit(raw)
		if !ok {
			continue
		}
		if first == nil {
			first = e
		}
		if list, ok := e.value("choices"); ok {
			c := newCursor(list, deepest)
			choices = m.appendChoices(choices, i, &c)
		}
		if usage, ok := e.value("usage"); ok {
			m.add(i, usage)
		}
	}
	first.Set("choices", append(choices, ']'))
	m.setUsage(first)
	return first.Append(dst)
}

// appendChoices appends the elements of a part's choices, the array at hand, with their places among all.
func (m *Merge) appendChoices(dst []byte, part int, c *cursor) []byte {
	if !c.in('[') {
		return dst
	}
	for first := true; c.element(first); first = false {
		if dst[len(dst)-1] != '[' {
			dst = append(dst, ',')
		}
		start, index := c.pos, span{}
		for all := c.members(); all.next(); {
			if v, _ := c.value(); string(all.key.of(c.data)) == "index" {
				index = v
			}
		}
		n, _ := strconv.Atoi(string(index.of(c.data)))
		n += part * m.Answers
		if index.end > 0 {
			dst = strconv.AppendInt(append(dst, c.data[start:index.start]...), int64(n), 10)
			dst = append(dst, c.data[index.end:c.pos]...)
		} else if e, ok := NewEdit(c.data[start:c.pos]); ok {
			e.SetInt("index", int64(n))
			dst = e.Append(dst)
			e.Release()
		} else {
			dst = append(dst, c.data[start:c.pos]...)
		}
	}
	return dst
}

// add adds a part's usage.
func (m *Merge) add(part int, raw []byte) {
	var more map[string]any
	if json.Unmarshal(raw, &more) != nil || more == nil {
		return
	}
	if part%m.Calls > 0 { // its prompt has been counted
		total, _ := more["total_tokens"].(float64)
		prompt, _ := more["prompt_tokens"].(float64)
		more["total_tokens"] = total - prompt
		for name := range more {
			if strings.HasPrefix(name, "prompt_tokens") {
				delete(more, name)
			}
		}
	}
	if m.usage == nil {
		m.usage = map[string]any{}
	}
	sum(m.usage, more)
}

// sum adds numbers, and those of the objects within.
func sum(into, more map[string]any) {
	for name, v := range more {
		switch v := v.(type) {
		case float64:
			n, _ := into[name].(float64)
			into[name] = n + v
		case map[string]any:
			within, ok := into[name].(map[string]any)
			if !ok {
				within = map[string]any{}
				into[name] = within
			}
			sum(within, v)
		default:
			if _, ok := into[name]; !ok {
				into[name] = v
			}
		}
	}
}

// setUsage sets the usage of all, if the parts had one.
func (m *Merge) setUsage(e *Edit) {
	if m.usage != nil {
		raw, _ := json.Marshal(m.usage) // numbers, and what JSON had
		e.Set("usage", raw)
	}
}
