package models

import (
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

	tokenizer *tokens.Cache
	templates map[string]*template // by name; the one used is "default", or "tool_use" with tools
	specials  []special            // the special tokens that templates may write
	now       func() time.Time
	trust     trust
}

// template is a chat template, and how each engine hands it the contents of messages.
type template struct {
	*jinja.Template
	// parts: contents are lists of parts, not strings, by vLLM's and by SGLang's detection.
	parts, sglangParts bool
}

// special is a named special token, bos_token say.
type special struct {
	name  string
	value jinja.Value
}

// Sim is the language of the simulated model: its tokenizer, and ChatML without tools. cacheBytes bounds the memory
// for prompts already tokenized.
func Sim(cacheBytes int64) *Language {
	return &Language{tokenizer: tokens.NewCache(tokens.Sim(), cacheBytes)}
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
	if req.HasMedia() {
		return dst, unrendered("media")
	}
	if req.Prompt.Kind == openai.PromptText {
		return l.encodeText(dst, req)
	}
	if l.simulated() {
		if req.HasTools || req.HasToolMessages {
			return dst, unrendered("tools")
		}
		messages := req.Prompt.Messages()
		chat := make([]tokens.Message, len(messages))
		for i, m := range messages {
			chat[i] = tokens.Message{Role: m.Role, Content: m.Content}
		}
		return l.tokenizer.EncodeChat(dst, chat), nil
	}
	text := texts.Get().(*[]byte)
	defer texts.Put(text)
	var err error
	if *text, err = l.Render((*text)[:0], req, engine); err != nil {
		return dst, err
	}
	if wants, given := boolField(req, "add_special_tokens"); given && wants {
		return l.tokenizer.EncodePrompt(dst, view(*text)), nil
	}
	return l.tokenizer.Encode(dst, view(*text)), nil
}

// encodeText encodes a completion's prompt.
func (l *Language) encodeText(dst []uint32, req *openai.Request) ([]uint32, error) {
	if wants, given := boolField(req, "add_special_tokens"); given && !wants || l.simulated() {
		return l.tokenizer.Encode(dst, req.Prompt.Text()), nil
	}
	return l.tokenizer.EncodePrompt(dst, req.Prompt.Text()), nil
}

// simulated reports whether this is the simulated model's language.
func (l *Language) simulated() bool { return l.Path == "" }

// texts are buffers to render into. An encoder keeps no part of them.
var texts = sync.Pool{New: func() any {
	text := make([]byte, 0, 16<<10)
	return &text
}}

// Render appends the text that the model's chat template makes of a chat request, as the engine prepares it. The error
// wraps [ErrUnrendered].
func (l *Language) Render(dst []byte, req *openai.Request, engine string) ([]byte, error) {
	if given(req, "chat_template") {
		return dst, unrendered("the request brings its own chat_template")
	}
	c := chat{req: req, sglang: engine == "sglang", now: l.now}
	t, err := c.choose(l)
	if err != nil {
		return dst, err
	}
	from := len(dst)
	vars, err := c.variables(l, t)
	if err != nil {
		return dst, err
	}
	if dst, err = t.Render(dst, vars); err != nil {
		return dst[:from], unrendered("%v", err)
	}
	if c.continues {
		return c.cutFinal(dst, from)
	}
	return dst, nil
}
