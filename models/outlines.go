package models

import (
	"sync"

	"github.com/tandem-pd/tandem/internal/jinja"
	"github.com/tandem-pd/tandem/internal/openai"
)

const (
	// maxOutlined is the most messages of a chat with an outline.
	maxOutlined = 8
	// maxOutlines bounds the outlines of a language: some kB each.
	maxOutlines = 256
	// maxOutlineBytes is the longest body rendered by an outline, far below a render's own bound.
	maxOutlineBytes = 1 << 20
)

// shape selects a chat's outline: whether it is SGLang's, and each message's role by its first letter.
type shape [1 + maxOutlined]byte

// plainFields are the fields besides messages that templates or engines read. A chat with one of them is rendered in
// full.
var plainFields = []string{
	"tools", "functions", "chat_template_kwargs", "add_generation_prompt", "continue_final_message", "reasoning_effort", "documents",
}

// shapeOf returns the request's shape; ok is false if it has no outline.
func shapeOf(req *openai.Request, engine string) (s shape, ok bool) {
	n := req.Prompt.Plain()
	if n == 0 || n > maxOutlined || len(req.Raw) > maxOutlineBytes {
		return s, false
	}
	for _, name := range plainFields {
		if req.Has(name) {
			return s, false
		}
	}
	s[0] = 'v'
	if engine == "sglang" {
		s[0] = 's'
	}
	var room [16]byte
	for i := range n {
		role := req.Prompt.AppendRole(room[:0], i)
		switch string(role) {
		case "system", "user", "assistant":
			s[1+i] = role[0]
		default:
			return s, false
		}
	}
	return s, true
}

// roles are the roles by their first letter.
var roles = map[byte]string{'s': "system", 'u': "user", 'a': "assistant"}

// outlines are what the language's template makes of chats of each shape that came. A chat whose texts the template only
// copies is written by its outline, byte for byte as the template would. It is safe for concurrent use.
type outlines struct {
	mu  sync.RWMutex             // guards all
	all map[shape]*jinja.Outline // nil where there can be none
}

// append writes a chat by the outline of its shape; ok is false where there is none that holds for it.
func (o *outlines) append(dst []byte, s shape, req *openai.Request) (out []byte, ok bool) {
	o.mu.RLock()
	outline := o.all[s]
	o.mu.RUnlock()
	if outline == nil {
		return dst, false
	}
	return outline.Append(dst, req.Prompt.AppendContent)
}

// learn stores the outline of a shape unless known; rendered is t's output for req, of that shape.
func (o *outlines) learn(l *Language, t *template, s shape, req *openai.Request, rendered []byte) {
	o.mu.RLock()
	_, known := o.all[s]
	full := len(o.all) >= maxOutlines
	o.mu.RUnlock()
	if known || full {
		return
	}
	outline := l.outline(t, s, req)
	if outline != nil {
		if again, ok := outline.Append(nil, req.Prompt.AppendContent); ok && string(again) != string(rendered) {
			outline = nil
		}
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all == nil {
		o.all = map[shape]*jinja.Outline{}
	}
	o.all[s] = outline
}

// outline returns t's outline of a shape; nil if t reads texts or the clock.
func (l *Language) outline(t *template, s shape, req *openai.Request) *jinja.Outline {
	c := chat{req: req, sglang: s[0] == 's', now: l.now, tools: jinja.None}
	for i := range req.Prompt.Plain() {
		m := jinja.NewDict(2)
		m.Set("role", jinja.String(roles[s[1+i]]))
		m.Set("content", jinja.Hole(i))
		c.instead = append(c.instead, jinja.Map(m))
	}
	vars, err := c.variables(l, t)
	if err != nil {
		return nil
	}
	outline, err := t.Outline(vars, len(c.instead))
	if err != nil || len(c.dates) > 0 {
		return nil
	}
	return outline
}
