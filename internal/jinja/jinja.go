// Package jinja renders the chat templates of language models: Jinja as Hugging Face's transformers configures it
// (trim_blocks, lstrip_blocks, an immutable sandbox, loop controls, raise_exception, tojson that keeps the order and
// escapes only what JSON demands), with Python's values and their text. Unsupported syntax is an error, of the parser
// where possible.
//
// A template is the operator's, its values are clients'. So a render has a budget of evaluated expressions and copied
// bytes, and fails with [ErrBudget] beyond it. It reads no clock.
package jinja

import (
	"errors"
	"fmt"
)

// ErrBudget ends a render that evaluates or copies more than its budget allows.
var ErrBudget = errors.New("jinja: the render takes too much work")

// Error is a failure to parse or render a template, with the line of its source.
type Error struct {
	Line    int
	Problem string
	// Raised: the template itself refused by raise_exception.
	Raised bool
}

func (e *Error) Error() string { return fmt.Sprintf("jinja: line %d: %s", e.Line, e.Problem) }

// Template is a parsed template. It is immutable and safe for concurrent use.
type Template struct {
	body  []node
	root  *scope
	names []*nameExpr
	loops []*forNode
	sets  []*setNode
	text  string
}

// Parse reads a template.
func Parse(source string) (t *Template, err error) {
	defer func() {
		if failed := recovered(recover()); failed != nil {
			t, err = nil, failed
		}
	}()
	t = &Template{text: source}
	p := &parser{tokens: lex(source), template: t}
	p.scope = newScope(nil, nil)
	t.root = p.scope
	t.body = p.statements()
	if p.at.kind != tokenEOF {
		p.fail("unexpected %s", p.at)
	}
	for _, n := range t.names {
		n.resolve()
	}
	return t, nil
}

// Bounds of a render: about 0.2 s of evaluation, and of copying; and the bytes of its text, more than the default
// largest body. Text is copied again as it grows.
const (
	maxSteps = 4 << 20
	maxBytes = 256 << 20
	maxText  = 96 << 20
)

// Render appends the text that the template makes of the variables to dst. The error is an [*Error], [ErrBudget], or
// [ErrMemory]: m, unless it is nil, counts the memory of the text. The variables are not changed; they may hold strings
// that share memory with a body, which the result does not.
func (t *Template) Render(dst []byte, vars map[string]Value, m Memory) (out []byte, err error) {
	s := t.begin(dst, vars)
	s.memory = m
	defer func() {
		if failed := recovered(recover()); failed != nil {
			out, err = dst, failed
		}
	}()
	s.run(t.body)
	return s.out, nil
}

func (t *Template) begin(dst []byte, vars map[string]Value) *state {
	return &state{vars: vars, out: dst, steps: maxSteps, bytes: maxBytes, text: maxText, frame: &frame{slots: make([]Value, t.root.slots)}}
}

// state is one render.
type state struct {
	outline *Outline // where holes are written; nil without holes
	vars    map[string]Value
	out     []byte
	frame   *frame
	steps   int // left
	bytes   int // left
	text    int // left
	memory  Memory
	depth   int // of macro calls
	line    int
}

// frame holds the variables of the template or of one call of a macro.
type frame struct {
	slots  []Value
	parent *frame
}

// maxDepth bounds macros that call themselves, and the nesting of a source.
const maxDepth = 128

// step pays for the evaluation of one node.
func (s *state) step() {
	if s.steps--; s.steps < 0 {
		panic(ErrBudget)
	}
}

// pay pays for n bytes that are copied or looked at.
func (s *state) pay(n int) {
	if s.bytes -= n; s.bytes < 0 {
		panic(ErrBudget)
	}
}

func (s *state) write(text string) {
	s.pay(len(text))
	if s.text -= len(text); s.text < 0 {
		panic(ErrBudget)
	}
	if need := len(s.out) + len(text); need > cap(s.out) {
		if s.memory != nil && !s.memory.Take(2*need) {
			panic(ErrMemory)
		}
		s.out = append(make([]byte, 0, 2*need), s.out...)
	}
	s.out = append(s.out, text...)
}

// fail ends the render.
func (s *state) fail(format string, args ...any) {
	panic(&Error{Line: s.line, Problem: fmt.Sprintf(format, args...)})
}

// recovered returns the error of a panic of this package. Other panics continue.
func recovered(p any) error {
	switch p := p.(type) {
	case nil:
		return nil
	case *Error:
		return p
	case error:
		if errors.Is(p, ErrBudget) || errors.Is(p, ErrMemory) || errors.Is(p, errHole) {
			return p
		}
	}
	panic(p)
}
