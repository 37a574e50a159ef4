package models

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/tandem-pd/tandem/internal/jinja"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/tokens"
)

// Language is a model's tokenizer and chat templates: what turns a request into the tokens that an engine computes.
// It is safe for concurrent use.
type Language struct {
	// Path is the folder that it was read from; empty for the simulated model's.
	Path string

	vocab     int // rows of the model's embedding, 0 unknown
	tokenizer *tokens.Cache
	templates map[string]*template // by name; the one used is "default", or "tool_use" with tools
	prompts   *prompts
	outlines  outlines
	specials  []special // the special tokens that templates may write
	now       func() time.Time
	trust     trust
	oneSystem func() bool
}

// template is a chat template, and how each engine hands it the contents of messages.
type template struct {
	*jinja.Template
	// parts: contents are lists of parts, not strings, by vLLM's and by SGLang's detection.
	parts, sglangParts bool
}

// special is a named special token, such as bos_token.
type special struct {
	name  string
	value jinja.Value
}

// Sim is the language of the simulated model: its tokenizer, and ChatML without tools. cacheBytes bounds the memory
// for prompts already tokenized.
func Sim(cacheBytes int64) *Language {
	return newLanguage("", tokens.Sim(), cacheBytes)
}

// newLanguage returns one without templates.
func newLanguage(path string, t *tokens.Tokenizer, cacheBytes int64) *Language {
	whole := cacheBytes / wholeShare
	l := &Language{
		Path: path, tokenizer: tokens.NewCache(t, cacheBytes-whole), prompts: newPrompts(whole),
		templates: map[string]*template{}, now: time.Now,
	}
	l.oneSystem = sync.OnceValue(l.losesSystem)
	return l
}

// OneSystem reports whether the chat template takes system messages at the beginning only: later ones it refuses or
// leaves out.
func (l *Language) OneSystem() bool { return len(l.templates) > 0 && l.oneSystem() }

// losesSystem renders a chat with a system message between two of the user, as vLLM and SGLang do. See
// entrypoints/anthropic/serving.py of vLLM 0.32 and SGLang 0.5.23.
func (l *Language) losesSystem() bool {
	const mark = "b7f1"
	req, err := (openai.Limits{}).Scan(openai.Chat, []byte(`{"messages":[{"role":"user","content":"a"},{"role":"system","content":"`+
		mark+`"},{"role":"user","content":"b"}]}`))
	if err != nil {
		return false
	}
	text, err := l.Render(nil, req, "")
	return err != nil || !bytes.Contains(text, []byte(mark))
}

// Tokenizer is the language's tokenizer, with its cache.
func (l *Language) Tokenizer() *tokens.Cache { return l.tokenizer }

// Templates are the names of the chat templates, sorted.
func (l *Language) Templates() []string {
	names := make([]string, 0, len(l.templates))
	for name := range l.templates {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// ErrUnrendered is why a request's tokens cannot be made here: it holds what this package does not render as the
// engine does, or the template refuses it. The engine may know better.
var ErrUnrendered = errors.New("models: the prompt is not rendered here")

func unrendered(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrUnrendered, fmt.Sprintf(format, args...))
}

// Encode appends to dst the tokens that an engine ("vllm", "sglang", "trtllm" or "sim") makes of the request's text
// or messages, before it truncates them. The error wraps [ErrUnrendered].
func (l *Language) Encode(dst []uint32, req *openai.Request, engine string) ([]uint32, error) {
	dst, _, err := l.encode(dst, req, engine)
	return dst, err
}

// encode is Encode, and returns what the template made of the clock.
func (l *Language) encode(dst []uint32, req *openai.Request, engine string) ([]uint32, []date, error) {
	if req.HasMedia() {
		return dst, nil, unrendered("media")
	}
	d := newDraft(req)
	defer d.release()
	if req.Prompt.Kind == openai.PromptText {
		if !d.Take(tokenBytes * req.Prompt.TokensAtLeast(1)) {
			return dst, nil, errTooMuch
		}
		return l.encodeText(dst, req), nil, nil
	}
	if l.simulated() {
		switch {
		case req.HasTools || req.HasToolMessages:
			return dst, nil, unrendered("tools")
		case !d.Take(tokenBytes * len(req.Raw)):
			return dst, nil, errTooMuch
		}
		return l.encodeSimulated(dst, req, d), nil, nil
	}
	var dates []date
	var err error
	if d.text, dates, err = l.render(d.text[:0], req, engine, &d.memory); err != nil {
		return dst, nil, err
	}
	if !d.Take(tokenBytes * len(d.text)) {
		return dst, nil, errTooMuch
	}
	if wants, given := req.Bool("add_special_tokens"); given && wants {
		return l.tokenizer.For(req.CacheSalt).EncodePrompt(dst, view(d.text)), dates, nil
	}
	return l.tokenizer.For(req.CacheSalt).Encode(dst, view(d.text)), dates, nil
}

// encodeSimulated encodes a chat as the simulated model's engine does.
func (l *Language) encodeSimulated(dst []uint32, req *openai.Request, d *draft) []uint32 {
	var few [maxOutlined]tokens.Message
	chat := few[:0]
	n := req.Prompt.Plain()
	if n == 0 {
		for _, m := range req.Prompt.Messages() {
			chat = append(chat, tokens.Message{Role: m.Role, Content: m.Content})
		}
		return l.tokenizer.For(req.CacheSalt).EncodeChat(dst, chat)
	}
	all := d.text[:0]
	for i := range n {
		role := len(all)
		all = req.Prompt.AppendRole(all, i)
		content := len(all)
		all = req.Prompt.AppendContent(all, i) // what it grows out of stays as it is
		chat = append(chat, tokens.Message{Role: view(all[role:content]), Content: view(all[content:])})
	}
	d.text = all
	return l.tokenizer.For(req.CacheSalt).EncodeChat(dst, chat)
}

// encodeText encodes a completion's prompt.
func (l *Language) encodeText(dst []uint32, req *openai.Request) []uint32 {
	if wants, given := req.Bool("add_special_tokens"); given && !wants || l.simulated() {
		return l.tokenizer.For(req.CacheSalt).Encode(dst, req.Prompt.Text())
	}
	return l.tokenizer.For(req.CacheSalt).EncodePrompt(dst, req.Prompt.Text())
}

func (l *Language) simulated() bool { return l.Path == "" }

// Render appends the text that the model's chat template makes of a chat request, as the engine prepares it. The error
// wraps [ErrUnrendered].
func (l *Language) Render(dst []byte, req *openai.Request, engine string) ([]byte, error) {
	d := newDraft(req)
	defer d.release()
	dst, _, err := l.render(dst, req, engine, &d.memory)
	return dst, err
}

// render is Render, and returns what the template made of the clock.
func (l *Language) render(dst []byte, req *openai.Request, engine string, m *memory) ([]byte, []date, error) {
	if given(req, "chat_template") {
		return dst, nil, unrendered("the request brings its own chat_template")
	}
	from := len(dst)
	shape, plain := shapeOf(req, engine)
	if plain {
		if out, ok := l.outlines.append(dst, shape, req); ok {
			return out, nil, nil
		}
	}
	c := chat{req: req, sglang: engine == "sglang", now: l.now, memory: m}
	t, err := c.choose(l)
	if err != nil {
		return dst, nil, err
	}
	vars, err := c.variables(l, t)
	if err != nil {
		return dst, nil, err
	}
	if dst, err = t.Render(dst, vars, m); err != nil {
		return dst[:from], nil, unrendered("%v", err)
	}
	if c.continues {
		dst, err = c.cutFinal(dst, from)
	}
	if plain && err == nil {
		l.outlines.learn(l, t, shape, req, dst[from:])
	}
	return dst, c.dates, err
}
