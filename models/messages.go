package models

import (
	"bytes"
	"encoding/json"
	"strings"
	"unicode"

	"github.com/tandem-pd/tandem/internal/jinja"
)

// messages are the request's, as the engine hands them to the template.
func (c *chat) messages(t *template) (jinja.Value, error) {
	items := c.instead
	if items == nil {
		v, err := c.field("messages")
		if err != nil {
			return v, err
		}
		items, _ = v.Items()
	}
	out := make([]jinja.Value, len(items))
	for i, item := range items {
		m, ok := item.Dict()
		if !ok {
			return jinja.None, unrendered("a message is no object")
		}
		prepared, err := c.message(m, t)
		if err != nil {
			return jinja.None, err
		}
		out[i] = jinja.Map(prepared)
	}
	if len(out) > 0 {
		last := mapOf(out[len(out)-1])
		switch role := roleOf(last); {
		case c.sglang && role == "assistant":
			last.Set("role", jinja.String("user")) // SGLang continues as if a user had sent it
		case c.continues:
			if !mark(last) {
				return jinja.None, unrendered("the last message has no text to continue")
			}
		}
	}
	return jinja.List(out), nil
}

func roleOf(m *jinja.Dict) string {
	role, _ := m.Get("role")
	text, _ := role.Str()
	return text
}

func (c *chat) message(m *jinja.Dict, t *template) (*jinja.Dict, error) {
	if err := c.copies(m.Len() + 2); err != nil {
		return nil, err
	}
	role := roleOf(m)
	content, err := c.content(m, role, t)
	if err != nil {
		return nil, err
	}
	if c.sglang {
		return c.sglangMessage(m, role, content)
	}
	out := jinja.NewDict(2)
	out.Set("role", jinja.String(role))
	out.Set("content", content)
	switch role {
	case "assistant":
		if calls, ok := m.Get("tool_calls"); ok && !calls.IsNone() {
			read, err := c.vllmCalls(calls)
			if err != nil {
				return nil, err
			}
			if items, _ := read.Items(); len(items) > 0 {
				out.Set("tool_calls", read)
			}
		}
		reasoning, ok := m.Get("reasoning")
		if !ok || reasoning.IsNone() {
			reasoning, ok = m.Get("reasoning_content")
		}
		if ok && !reasoning.IsNone() {
			out.Set("reasoning", reasoning)
			out.Set("reasoning_content", reasoning)
		}
	case "tool":
		if id, ok := m.Get("tool_call_id"); ok {
			out.Set("tool_call_id", id)
		}
	case "developer":
		if tools, ok := m.Get("tools"); ok && !tools.IsNone() {
			return nil, unrendered("a developer's tools")
		}
		out.Set("tools", jinja.None)
	}
	if name, ok := m.Get("name"); ok {
		if _, isText := name.Str(); isText {
			out.Set("name", name)
		}
	}
	return out, nil
}

// sglangMessage keeps a message's fields, without those that are null.
func (c *chat) sglangMessage(m *jinja.Dict, role string, content jinja.Value) (*jinja.Dict, error) {
	out := jinja.NewDict(2)
	out.Set("role", jinja.String(role))
	out.Set("content", content)
	for _, name := range []string{"tool_call_id", "name", "reasoning_content", "tool_calls"} {
		v, ok := m.Get(name)
		if !ok || v.IsNone() {
			continue
		}
		if name == "tool_calls" {
			var err error
			if v, err = c.sglangCalls(v, role == "assistant"); err != nil {
				return nil, err
			}
		}
		out.Set(name, v)
	}
	return out, nil
}

// content is a message's content in the form that the template takes: a string, to which vLLM joins text parts by line
// feeds and SGLang by blanks, or a list of text parts.
func (c *chat) content(m *jinja.Dict, role string, t *template) (jinja.Value, error) {
	v, _ := m.Get("content")
	parts, isList := v.Items()
	text, isText := v.Str()
	isText = isText || v.IsHole()
	if !isList && !isText { // null or absent
		v, isText = jinja.String(""), true
	}
	wantsParts := t.parts
	if c.sglang {
		wantsParts = t.sglangParts
	}
	switch {
	case isText && wantsParts && !c.sglang:
		part := jinja.NewDict(2)
		part.Set("type", jinja.String("text"))
		part.Set("text", v)
		if text == "" && !stated(m, "content") {
			return jinja.List(nil), nil
		}
		return jinja.List([]jinja.Value{jinja.Map(part)}), nil
	case isText:
		return v, nil
	case wantsParts && role == "tool":
		return v, unrendered("a tool's content in parts") // engines' releases differ in what they make of it
	case wantsParts:
		return c.textParts(parts)
	}
	between := "\n"
	if c.sglang {
		between = " "
	}
	var b strings.Builder
	for i, p := range parts {
		text, ok := mapOf(p).Get("text")
		str, isText := text.Str()
		if !ok || !isText {
			return v, unrendered("a part without text")
		}
		if str == "" && !c.sglang {
			continue // vLLM leaves it out of a string
		}
		if b.Len() > 0 || c.sglang && i > 0 {
			b.WriteString(between)
		}
		if !c.memory.Take(2 * len(str)) {
			return v, errTooMuch
		}
		b.WriteString(str)
	}
	return jinja.String(b.String()), nil
}

// stated reports whether a key is there and not null.
func stated(m *jinja.Dict, key string) bool {
	v, ok := m.Get(key)
	return ok && !v.IsNone()
}

// textParts are parts with their type and text alone.
func (c *chat) textParts(parts []jinja.Value) (jinja.Value, error) {
	if err := c.copies(4 * len(parts)); err != nil {
		return jinja.None, err
	}
	out := make([]jinja.Value, len(parts))
	for i, p := range parts {
		text, ok := mapOf(p).Get("text")
		if _, isText := text.Str(); !ok || !isText {
			return jinja.Value{}, unrendered("a part without text")
		}
		part := jinja.NewDict(2)
		part.Set("type", jinja.String("text"))
		part.Set("text", text)
		out[i] = jinja.Map(part)
	}
	return jinja.List(out), nil
}

// vllmCalls are an assistant's tool calls with their arguments as objects: vLLM reads the JSON in them, and takes an
// empty object where it finds none.
func (c *chat) vllmCalls(calls jinja.Value) (jinja.Value, error) {
	return c.eachCall(calls, func(function *jinja.Dict) error {
		arguments, _ := function.Get("arguments")
		if text, ok := arguments.Str(); ok && text != "" {
			var err error
			if arguments, err = c.parsed(text); err != nil {
				return err
			}
		}
		if _, ok := arguments.Dict(); !ok {
			arguments = jinja.Map(jinja.NewDict(0))
		}
		function.Set("arguments", arguments)
		return nil
	})
}

// parsed reads a tool call's arguments as Python's json.loads does; None for what is no JSON. What Python alone takes
// for JSON (NaN, half a character) is an error.
func (c *chat) parsed(text string) (jinja.Value, error) {
	if !c.memory.Take(len(text)) {
		return jinja.None, errTooMuch
	}
	raw := []byte(text)
	if !json.Valid(raw) {
		if strings.Contains(text, "NaN") || strings.Contains(text, "Infinity") {
			return jinja.None, unrendered("a tool call's arguments have a number that is none")
		}
		return jinja.None, nil
	}
	v, err := c.value(raw)
	if err != nil {
		return jinja.None, unrendered("a tool call's arguments: %v", err)
	}
	return v, nil
}

// sglangCalls are tool calls as SGLang's types print them, with an assistant's arguments read as JSON.
func (c *chat) sglangCalls(calls jinja.Value, parse bool) (jinja.Value, error) {
	return c.eachCall(calls, func(function *jinja.Dict) error {
		arguments, _ := function.Get("arguments")
		if text, ok := arguments.Str(); ok && parse {
			read, err := c.parsed(text)
			if err != nil || read.IsNone() {
				return unrendered("a tool call's arguments are no JSON")
			}
			function.Set("arguments", read)
		}
		return nil
	})
}

// eachCall copies tool calls, and has f change the function of each.
func (c *chat) eachCall(calls jinja.Value, f func(function *jinja.Dict) error) (jinja.Value, error) {
	items, ok := calls.Items()
	if !ok {
		return calls, unrendered("tool_calls is no array")
	}
	out := make([]jinja.Value, len(items))
	for i, item := range items {
		call, ok := item.Dict()
		if !ok {
			return calls, unrendered("a tool call is no object")
		}
		function, _ := call.Get("function")
		d, ok := function.Dict()
		if !ok {
			return calls, unrendered("a tool call has no function")
		}
		if err := c.copies(call.Len() + d.Len() + 4); err != nil {
			return calls, err
		}
		call, d = call.Clone(), d.Clone()
		if err := f(d); err != nil {
			return calls, err
		}
		call.Set("function", jinja.Map(d))
		out[i] = jinja.Map(call)
	}
	return jinja.List(out), nil
}

// finalMark stands behind the text that is to be continued while the template is rendered, as transformers has it. The
// blank at its end shows whether the template trims.
const finalMark = "CONTINUE_FINAL_MESSAGE_TAG "

// mark appends the mark to a message's text: its content, or the last part of it that has a text.
func mark(m *jinja.Dict) bool {
	content, _ := m.Get("content")
	if text, ok := content.Str(); ok {
		m.Set("content", jinja.String(text+finalMark))
		return true
	}
	parts, _ := content.Items()
	for i := len(parts) - 1; i >= 0; i-- {
		text, ok := mapOf(parts[i]).Get("text")
		if str, isText := text.Str(); ok && isText {
			mapOf(parts[i]).Set("text", jinja.String(str+finalMark))
			return true
		}
	}
	return false
}

// cutFinal ends the rendered text where the marked text ends.
func (c *chat) cutFinal(text []byte, from int) ([]byte, error) {
	at := bytes.LastIndex(text[from:], []byte(strings.TrimSpace(finalMark)))
	if at < 0 {
		return text[:from], unrendered("the template drops the message that is to be continued")
	}
	cut := text[:from+at]
	if !bytes.HasPrefix(text[from+at:], []byte(finalMark)) {
		cut = append(text[:from], bytes.TrimRightFunc(cut[from:], unicode.IsSpace)...)
	}
	return cut, nil
}
