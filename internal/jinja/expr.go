package jinja

import "strconv"

// expression reads a conditional expression, the loosest of all.
func (p *parser) expression() expr {
	p.enter()
	defer p.leave()
	e := p.or()
	for p.skip("if") {
		test := p.or()
		c := &condExpr{test: test, then: e}
		if p.skip("else") {
			c.otherwise = p.expression()
		}
		e = c
	}
	return e
}

// tuple reads an expression, or several between commas.
func (p *parser) tuple() expr { return p.several(p.expression) }

func (p *parser) several(one func() expr) expr {
	e := one()
	if !p.is(",") {
		return e
	}
	list := &listExpr{items: []expr{e}, tuple: true}
	for p.skip(",") {
		if t := p.peek(); t.kind == tokenEndBlock || t.kind == tokenEndVariable || p.is(")") || p.is("=") {
			break
		}
		list.items = append(list.items, one())
	}
	return list
}

func (p *parser) or() expr {
	e := p.and()
	for p.skip("or") {
		e = &logicExpr{e, p.and(), true}
	}
	return e
}

func (p *parser) and() expr {
	e := p.not()
	for p.skip("and") {
		e = &logicExpr{e, p.not(), false}
	}
	return e
}

func (p *parser) not() expr {
	if p.is("not") {
		p.enter()
		defer p.leave()
		p.next()
		return &notExpr{p.not()}
	}
	return p.compare()
}

func (p *parser) compare() expr {
	line := p.peek().line
	e := p.sum()
	var c *compareExpr
	for {
		op := ""
		switch t := p.peek(); {
		case t.kind == tokenOperator && (t.text == "==" || t.text == "!=" || t.text == "<" || t.text == "<=" || t.text == ">" || t.text == ">="):
			op = p.next().text
		case p.is("in"):
			op = p.next().text
		case p.is("not") && p.tokens[p.pos+1].kind == tokenName && p.tokens[p.pos+1].text == "in":
			p.next()
			p.next()
			op = "not in"
		}
		if op == "" {
			break
		}
		if c == nil {
			c = &compareExpr{first: e, line: line}
		}
		c.ops, c.others = append(c.ops, op), append(c.others, p.sum())
	}
	if c != nil {
		return c
	}
	return e
}

func (p *parser) sum() expr {
	e := p.concat()
	for p.is("+") || p.is("-") {
		op := p.next()
		right := p.concat()
		if op.text == "-" {
			e = &binaryExpr{"-", e, right, op.line}
		} else {
			e = add(e, right, op.line)
		}
	}
	return e
}

func (p *parser) concat() expr {
	e := p.product()
	if !p.is("~") {
		return e
	}
	c := &concatExpr{parts: []expr{e}}
	for p.skip("~") {
		c.parts = append(c.parts, p.product())
	}
	return c
}

func (p *parser) product() expr {
	e := p.power()
	for p.is("*") || p.is("/") || p.is("//") || p.is("%") {
		op := p.next()
		e = &binaryExpr{op.text, e, p.power(), op.line}
	}
	return e
}

func (p *parser) power() expr {
	e := p.unary(true)
	for p.is("**") {
		op := p.next()
		e = &binaryExpr{op.text, e, p.unary(true), op.line}
	}
	return e
}

func (p *parser) unary(filters bool) expr {
	p.enter()
	defer p.leave()
	var e expr
	switch t := p.peek(); {
	case p.is("-") || p.is("+"):
		p.next()
		e = &signExpr{p.unary(false), t.text == "-", t.line}
	default:
		e = p.postfix(p.primary())
	}
	if filters {
		e = p.filters(e)
	}
	return e
}

func (p *parser) primary() expr {
	t := p.peek()
	switch t.kind {
	case tokenName:
		p.next()
		switch t.text {
		case "true", "True":
			return &constExpr{Bool(true)}
		case "false", "False":
			return &constExpr{Bool(false)}
		case "none", "None":
			return &constExpr{None}
		}
		return p.nameNode(t)
	case tokenString:
		p.next()
		text := t.text
		for p.peek().kind == tokenString {
			text += p.next().text
		}
		return &constExpr{String(text)}
	case tokenInt:
		p.next()
		return &constExpr{integer(t.text)}
	case tokenFloat:
		p.next()
		f, _ := strconv.ParseFloat(t.text, 64)
		return &constExpr{Float(f)}
	}
	switch {
	case p.skip("("):
		if p.skip(")") {
			return &listExpr{tuple: true}
		}
		e := p.tuple()
		p.want(")")
		return e
	case p.skip("["):
		list := &listExpr{}
		for first := true; !p.skip("]"); first = false {
			if !first {
				p.want(",")
				if p.skip("]") {
					break
				}
			}
			list.items = append(list.items, p.expression())
		}
		return list
	case p.skip("{"):
		d := &dictExpr{line: t.line}
		for first := true; !p.skip("}"); first = false {
			if !first {
				p.want(",")
				if p.skip("}") {
					break
				}
			}
			key := p.expression()
			p.want(":")
			d.keys, d.values = append(d.keys, key), append(d.values, p.expression())
		}
		return d
	}
	p.fail("unexpected %s", t)
	return nil
}

func (p *parser) nameNode(t token) *nameExpr {
	n := &nameExpr{name: t.text, scope: p.scope, line: t.line}
	p.template.names = append(p.template.names, n)
	return n
}

// postfix reads attributes, subscripts and calls.
func (p *parser) postfix(e expr) expr {
	for {
		t := p.peek()
		switch {
		case p.skip("."):
			switch a := p.next(); a.kind {
			case tokenName:
				e = &attrExpr{of: e, name: a.text, line: t.line}
			case tokenInt:
				e = &indexExpr{of: e, index: &constExpr{integer(a.text)}, line: t.line}
			default:
				p.fail("a name is wanted after a dot")
			}
		case p.skip("["):
			e = p.subscript(e, t.line)
		case p.is("("):
			e = p.call(e, t.line)
		default:
			return e
		}
	}
}

func (p *parser) subscript(of expr, line int) expr {
	var parts [3]expr
	n := 0
	for {
		if !p.is(":") && !p.is("]") {
			parts[n] = p.expression()
		}
		if p.skip("]") {
			break
		}
		p.want(":")
		if n++; n > 2 {
			p.fail("a slice has three parts at most")
		}
	}
	if n > 0 {
		return &sliceExpr{of, parts, line}
	}
	if parts[0] == nil {
		p.fail("a subscript is empty")
	}
	return &indexExpr{of, parts[0], line}
}

func (p *parser) call(of expr, line int) *callNode {
	c := &callNode{of: of, line: line}
	p.want("(")
	for first := true; !p.skip(")"); first = false {
		if !first {
			p.want(",")
			if p.skip(")") {
				break
			}
		}
		if p.is("*") || p.is("**") {
			p.fail("unpacked arguments are not supported")
		}
		if p.peek().kind == tokenName && p.tokens[p.pos+1].kind == tokenOperator && p.tokens[p.pos+1].text == "=" {
			name := p.name()
			p.next()
			c.names, c.named = append(c.names, name), append(c.named, p.expression())
			continue
		}
		if len(c.names) > 0 {
			p.fail("positional argument after keyword argument")
		}
		c.args = append(c.args, p.expression())
	}
	return c
}

// filters reads filters, tests and calls of their results.
func (p *parser) filters(e expr) expr {
	for {
		t := p.peek()
		switch {
		case p.skip("|"):
			f := &filterNode{of: e, line: t.line}
			p.filter(f)
			e = f
		case p.skip("is"):
			e = p.test(e, t.line)
		case p.is("("):
			e = p.call(e, t.line)
		default:
			return e
		}
	}
}

func (p *parser) filter(f *filterNode) {
	name := p.name()
	for p.skip(".") {
		name += "." + p.name()
	}
	var ok bool
	if f.apply, ok = filters[name]; !ok {
		p.fail("the filter %q is not supported", name)
	}
	f.trims = name == "trim"
	if p.is("(") {
		c := p.call(nil, f.line)
		f.args = *c
	}
}

func (p *parser) test(e expr, line int) expr {
	negated := p.skip("not")
	name := p.name()
	n := &testExpr{of: e, line: line}
	var ok bool
	if n.apply, ok = tests[name]; !ok {
		p.fail("the test %q is not supported", name)
	}
	t := p.peek()
	switch {
	case p.is("("):
		n.args = p.call(nil, line).args
	case t.kind == tokenName && t.text != "else" && t.text != "or" && t.text != "and" && t.text != "if" && t.text != "is" &&
		t.text != "in" && t.text != "not",
		t.kind == tokenString, t.kind == tokenInt, t.kind == tokenFloat, p.is("["), p.is("{"):
		n.args = []expr{p.postfix(p.primary())}
	}
	if negated {
		return &notExpr{n}
	}
	return n
}
