package jinja

import (
	"fmt"
	"slices"
	"strings"
)

// parser reads statements and expressions from tokens.
type parser struct {
	tokens   []token
	pos      int
	at       token
	started  bool
	template *Template
	scope    *scope
	depth    int
	loops    int // open around the statement, within one macro
}

func (p *parser) fail(format string, args ...any) {
	panic(&Error{Line: p.peek().line, Problem: fmt.Sprintf(format, args...)})
}

func (p *parser) peek() token {
	if !p.started {
		p.started, p.at = true, p.tokens[0]
	}
	return p.at
}

// next takes the token at hand.
func (p *parser) next() token {
	t := p.peek()
	if p.pos+1 < len(p.tokens) {
		p.pos++
	}
	p.at = p.tokens[p.pos]
	return t
}

// is reports whether an operator or a name is at hand.
func (p *parser) is(text string) bool {
	t := p.peek()
	return (t.kind == tokenOperator || t.kind == tokenName) && t.text == text
}

// skip takes an operator or a name if it is at hand.
func (p *parser) skip(text string) bool {
	if p.is(text) {
		p.next()
		return true
	}
	return false
}

func (p *parser) want(text string) {
	if !p.skip(text) {
		p.fail("%q is wanted before %s", text, p.peek())
	}
}

func (p *parser) name() string {
	if p.peek().kind != tokenName {
		p.fail("a name is wanted before %s", p.peek())
	}
	return p.next().text
}

func (p *parser) endBlock() {
	if p.next().kind != tokenEndBlock {
		p.fail("%%} is wanted before %s", p.peek())
	}
}

// enter bounds the depth of recursion.
func (p *parser) enter() {
	if p.depth++; p.depth > maxDepth {
		p.fail("nested too deeply")
	}
}

func (p *parser) leave() { p.depth-- }

// statements reads up to the template's end, or a block whose tag begins with one of the names; that tag's opening is
// taken and its name is at hand.
func (p *parser) statements(until ...string) []node {
	p.enter()
	defer p.leave()
	var list []node
	for {
		switch t := p.peek(); t.kind {
		case tokenData:
			p.next()
			list = append(list, &dataNode{t.text})
		case tokenVariable:
			p.next()
			e := p.tuple()
			list = append(list, &outputNode{parts: flatten(nil, e), line: t.line})
			if p.next().kind != tokenEndVariable {
				p.fail("}} is wanted before %s", p.peek())
			}
		case tokenBlock:
			p.next()
			if p.peek().kind == tokenName && slices.Contains(until, p.peek().text) {
				return list
			}
			list = append(list, p.statement())
		case tokenEOF:
			if len(until) > 0 {
				p.fail("a block does not end: %s is wanted", strings.Join(until, " or "))
			}
			return list
		default:
			p.fail("unexpected %s", t)
		}
	}
}

func (p *parser) statement() node {
	line := p.peek().line
	switch word := p.name(); word {
	case "if":
		return p.ifStatement()
	case "for":
		return p.forStatement(line)
	case "set":
		return p.setStatement(line)
	case "macro":
		return p.macro(line)
	case "break", "continue":
		if p.loops == 0 {
			p.fail("%s outside a loop", word)
		}
		p.endBlock()
		return &jumpNode{word == "break"}
	case "generation": // marks the assistant's text for training
		p.endBlock()
		body := p.statements("endgeneration")
		p.next()
		p.endBlock()
		return &groupNode{body}
	case "filter":
		f := p.filterChain(nil)
		p.endBlock()
		body := p.statements("endfilter")
		p.next()
		p.endBlock()
		return &captureNode{body: body, chain: f, line: line}
	case "call":
		return p.callBlock(line)
	default:
		p.fail("the tag %q is not supported", word)
		return nil
	}
}

func (p *parser) ifStatement() node {
	n := &ifNode{}
	for {
		test := p.expression()
		p.endBlock()
		n.tests = append(n.tests, test)
		n.bodies = append(n.bodies, p.statements("elif", "else", "endif"))
		switch p.next().text {
		case "elif":
			continue
		case "else":
			p.endBlock()
			n.otherwise = p.statements("endif")
			p.next()
		}
		p.endBlock()
		return n
	}
}

// targets reads the names that a loop or an assignment gives values to.
func (p *parser) targets() []string {
	parens := p.skip("(")
	names := []string{p.name()}
	for p.skip(",") {
		names = append(names, p.name())
	}
	if parens {
		p.want(")")
	}
	return names
}

func (p *parser) forStatement(line int) node {
	n := &forNode{line: line}
	names := p.targets()
	p.want("in")
	n.over = p.several(p.or) // an if is the loop's filter
	n.outer = p.scope
	n.scope = newScope(p.scope, p.scope.function)
	p.scope = n.scope
	p.loops++
	for _, name := range names {
		n.names = append(n.names, name)
		n.targets = append(n.targets, n.scope.assign(name))
	}
	n.loop = n.scope.assign("loop")
	if p.skip("if") {
		n.filter = p.expression()
	}
	if p.is("recursive") {
		p.fail("recursive loops are not supported")
	}
	p.endBlock()
	n.body = p.statements("endfor", "else")
	p.scope = n.outer
	p.loops--
	if p.next().text == "else" {
		p.endBlock()
		n.otherwise = p.statements("endfor")
		p.next()
	}
	p.endBlock()
	p.template.loops = append(p.template.loops, n)
	return n
}

func (p *parser) setStatement(line int) node {
	if p.peek().kind == tokenName && p.pos+1 < len(p.tokens) && p.tokens[p.pos+1].text == "." && p.tokens[p.pos+1].kind == tokenOperator {
		object := p.nameNode(p.next())
		p.next()
		n := &setAttrNode{object: object, attr: p.name(), line: line}
		if p.skip("=") {
			n.value = p.tuple()
			p.endBlock()
			return n
		}
		chain := p.filterChain(nil)
		p.endBlock()
		n.value = &captureNode{body: p.statements("endset"), chain: chain, line: line}
		p.next()
		p.endBlock()
		return n
	}
	n := &setNode{names: p.targets(), line: line}
	if p.skip("=") {
		n.value = p.tuple()
		p.endBlock()
	} else {
		chain := p.filterChain(nil)
		p.endBlock()
		n.value = &captureNode{body: p.statements("endset"), chain: chain, line: line}
		p.next()
		p.endBlock()
	}
	for _, name := range n.names {
		n.targets = append(n.targets, p.scope.assign(name))
	}
	p.template.sets = append(p.template.sets, n)
	return n
}

// filterChain parses filters up to the tag's end; the first may have no bar if there is no value.
func (p *parser) filterChain(chain []*filterNode) []*filterNode {
	for p.peek().kind == tokenName || p.skip("|") {
		f := &filterNode{line: p.peek().line}
		p.filter(f)
		chain = append(chain, f)
	}
	return chain
}

func (p *parser) macro(line int) node {
	m := &macroNode{name: p.name(), line: line}
	m.slot = p.scope.assign(m.name)
	p.function(m)
	m.body = p.statements("endmacro")
	p.endFunction(m)
	p.next()
	p.endBlock()
	return m
}

// function reads a macro's parameters and opens its scope.
func (p *parser) function(m *macroNode) {
	m.outer, m.loops = p.scope, p.loops
	m.scope = newScope(p.scope, nil)
	p.loops = 0
	if p.skip("(") {
		for first := true; !p.skip(")"); first = false {
			if !first {
				p.want(",")
			}
			name := p.name()
			var otherwise expr
			if p.skip("=") {
				otherwise = p.expression()
			}
			m.params = append(m.params, param{name, m.scope.assign(name), otherwise})
		}
	}
	p.scope = m.scope
	m.caller, m.kwargs, m.varargs = m.scope.assign("caller"), m.scope.assign("kwargs"), m.scope.assign("varargs")
	p.endBlock()
}

func (p *parser) endFunction(m *macroNode) {
	p.scope, p.loops = m.outer, m.loops
}

func (p *parser) callBlock(line int) node {
	m := &macroNode{name: "caller", line: line}
	c := &callBlockNode{macro: m, line: line}
	// The parameters precede the call, in their own parentheses.
	outer, loops := p.scope, p.loops
	m.outer, m.loops = outer, loops
	m.scope = newScope(outer, nil)
	if p.skip("(") {
		for first := true; !p.skip(")"); first = false {
			if !first {
				p.want(",")
			}
			name := p.name()
			m.params = append(m.params, param{name: name, slot: m.scope.assign(name)})
		}
	}
	e, ok := p.expression().(*callNode)
	if !ok {
		p.fail("a call is wanted")
	}
	c.call = e
	p.scope, p.loops = m.scope, 0
	m.caller, m.kwargs, m.varargs = m.scope.assign("caller"), m.scope.assign("kwargs"), m.scope.assign("varargs")
	p.endBlock()
	m.body = p.statements("endcall")
	p.endFunction(m)
	p.next()
	p.endBlock()
	return c
}
