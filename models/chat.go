package models

import (
	"fmt"
	"strings"
	"time"
	"unsafe"

	"github.com/tandem-pd/tandem/internal/jinja"
	"github.com/tandem-pd/tandem/internal/openai"
)

// chat is a chat request on its way into a template: its messages, tools and other variables as the engine hands them
// over. The sources are vLLM's chat_utils and ChatCompletionRequest.build_chat_params, and SGLang's serving_chat.
type chat struct {
	req       *openai.Request
	sglang    bool
	continues bool // the last message is continued
	tools     jinja.Value
	instead   []jinja.Value // in place of the request's messages; nil for those
	now       func() time.Time
	dates     []date // what the template made of the clock
	memory    *memory
}

// view is b as a string, for as long as b does not change.
func view(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// given reports whether a top-level field is there and not null.
func given(req *openai.Request, name string) bool {
	raw, ok := req.Field(name)
	return ok && string(raw) != "null"
}

// field reads a top-level field as a value; None where it is absent.
func (c *chat) field(name string) (jinja.Value, error) {
	raw, ok := c.req.Field(name)
	if !ok {
		return jinja.None, nil
	}
	v, err := c.value(raw)
	if err != nil {
		return v, unrendered("%s: %v", name, err)
	}
	return v, nil
}

// value reads JSON.
func (c *chat) value(raw []byte) (jinja.Value, error) {
	if c.memory != nil {
		c.memory.values = true
		defer func() { c.memory.values = false }()
	}
	return jinja.FromJSON(raw, c.memory)
}

// copies counts the memory of what a message, a tool or a call is copied to.
func (c *chat) copies(entries int) error {
	if !c.memory.Take(copiedBytes + entries*copiedEntry) {
		return errTooMuch
	}
	return nil
}

// The memory of a copied dict, and of each key and value in it.
const copiedBytes, copiedEntry = 256, 96

// choose finds the template: "tool_use" for a request with tools where there is one, else "default".
func (c *chat) choose(l *Language) (*template, error) {
	if err := c.readTools(); err != nil {
		return nil, err
	}
	if t := l.templates["tool_use"]; t != nil && !c.tools.IsNone() {
		return t, nil
	}
	if t := l.templates["default"]; t != nil {
		return t, nil
	}
	return nil, unrendered("the model has no chat template")
}

// variables are what the template sees. Those of the request's own fields win over chat_template_kwargs on vLLM, and
// the other way round on SGLang.
func (c *chat) variables(l *Language, t *template) (map[string]jinja.Value, error) {
	vars := make(map[string]jinja.Value, 12)
	for _, s := range l.specials {
		vars[s.name] = s.value
	}
	kwargs, err := c.field("chat_template_kwargs")
	if err != nil {
		return nil, err
	}
	generate, asked := c.req.Bool("add_generation_prompt")
	generate = generate || !asked || c.sglang
	c.continues, _ = c.req.Bool("continue_final_message")
	if c.continues && (c.sglang || generate && asked) {
		return nil, unrendered("continue_final_message") // SGLang encodes the last message on its own; vLLM refuses both
	}
	own := func() error {
		effort, err := c.field("reasoning_effort")
		if err != nil {
			return err
		}
		if !effort.IsNone() {
			vars["reasoning_effort"] = effort
		}
		if c.sglang {
			return nil
		}
		if text, ok := effort.Str(); ok {
			// vLLM: asking for an effort switches thinking on, unless the client set that itself.
			if d, _ := kwargs.Dict(); d == nil || !has(d, "enable_thinking") {
				vars["enable_thinking"] = jinja.Bool(text != "none")
			}
		}
		documents, err := c.field("documents")
		vars["documents"] = documents
		return err
	}
	with := func() error {
		d, ok := kwargs.Dict()
		if !ok {
			return nil
		}
		for i := range d.Len() {
			name, value := d.At(i)
			switch name {
			case "messages", "tools", "chat_template", "tokenize", "return_dict", "conversation":
				return unrendered("chat_template_kwargs.%s", name)
			}
			vars[name] = value
		}
		return nil
	}
	order := []func() error{with, own}
	if c.sglang {
		order = []func() error{own, with}
	}
	for _, f := range order {
		if err := f(); err != nil {
			return nil, err
		}
	}
	if !c.sglang || !has(mapOf(kwargs), "add_generation_prompt") {
		vars["add_generation_prompt"] = jinja.Bool(generate && !c.continues)
	}
	vars["tools"] = c.tools
	if vars["messages"], err = c.messages(t); err != nil {
		return nil, err
	}
	now := c.now
	vars["strftime_now"] = jinja.Func(func(args []jinja.Value) (jinja.Value, error) {
		if len(args) == 1 {
			if format, ok := args[0].Str(); ok {
				text := strftime(now(), format)
				c.dates = append(c.dates, date{strings.Clone(format), text}) // it may be a part of the body, and outlives it
				return jinja.String(text), nil
			}
		}
		return jinja.Value{}, fmt.Errorf("strftime_now wants a format")
	})
	return vars, nil
}

// mapOf is the value's dict; empty for other values.
func mapOf(v jinja.Value) *jinja.Dict {
	if d, ok := v.Dict(); ok {
		return d
	}
	return jinja.NewDict(0)
}

func has(d *jinja.Dict, key string) bool {
	_, ok := d.Get(key)
	return ok
}

// readTools reads the tools as the engine's own types print them again: with all their fields, in the types' order.
func (c *chat) readTools() error {
	c.tools = jinja.None
	v, err := c.field("tools")
	if err != nil {
		return err
	}
	items, _ := v.Items()
	if len(items) == 0 {
		return nil
	}
	if c.sglang {
		choice, ok := c.req.Field("tool_choice")
		if ok && string(choice) == `"none"` {
			return nil
		}
		if ok && choice[0] == '{' {
			return unrendered("a named tool_choice")
		}
	}
	out := make([]jinja.Value, len(items))
	for i, item := range items {
		tool, ok := item.Dict()
		if !ok {
			return unrendered("a tool is no object")
		}
		f, _ := tool.Get("function")
		function, ok := f.Dict()
		if !ok {
			return unrendered("a tool has no function")
		}
		if err := c.copies(tool.Len() + function.Len() + 4); err != nil {
			return err
		}
		out[i] = jinja.Map(c.tool(tool, function))
	}
	c.tools = jinja.List(out)
	return nil
}

// tool is one tool: vLLM's FunctionDefinition has name, description and parameters and keeps what else was sent;
// SGLang's has description, name, parameters and strict and drops the rest.
func (c *chat) tool(tool, function *jinja.Dict) *jinja.Dict {
	f, t := jinja.NewDict(function.Len()+2), jinja.NewDict(tool.Len()+1)
	names := []string{"name", "description", "parameters"}
	if c.sglang {
		names = []string{"description", "name", "parameters"}
	}
	for _, name := range names {
		v, ok := function.Get(name)
		if !ok {
			v = jinja.None
		}
		f.Set(name, v)
	}
	kind, ok := tool.Get("type")
	if !ok {
		kind = jinja.String("function")
	}
	t.Set("type", kind)
	t.Set("function", jinja.Map(f))
	if c.sglang {
		strict, ok := function.Get("strict")
		if !ok {
			strict = jinja.Bool(false)
		}
		f.Set("strict", strict)
		return t
	}
	rest(f, function)
	rest(t, tool)
	return t
}

// rest adds the keys that dst has not.
func rest(dst, src *jinja.Dict) {
	for i := range src.Len() {
		if name, v := src.At(i); !has(dst, name) {
			dst.Set(name, v)
		}
	}
}
