package jinja

// callNode is a call of a macro, a function or a method.
type callNode struct {
	of    expr
	args  []expr
	names []string
	named []expr
	line  int
}

func (e *callNode) eval(s *state) Value { return e.with(s, "", Value{}) }

// with calls with one more named argument, unless name is empty.
func (e *callNode) with(s *state, name string, v Value) Value {
	s.step()
	if a, ok := e.of.(*attrExpr); ok && name == "" {
		on := a.of.eval(s)
		if on.kind == hole {
			given := e.given(s)
			return s.holeMethod(on, a.name, &given)
		}
		if m := methodOf(on, a.name); m != nil {
			given := e.given(s)
			s.line = e.line
			return m(s, on, &given)
		}
		s.line = a.line
		return e.apply(s, s.attr(on, a.name), a.name)
	}
	f := e.of.eval(s)
	if f.kind != callable {
		s.line = e.line
		s.fail("%s cannot be called", f.kindName())
	}
	given := e.given(s)
	if name != "" {
		given.names, given.named = append(given.names[:len(given.names):len(given.names)], name), append(given.named, v)
	}
	s.line = e.line
	return f.ref.(function)(s, &given)
}

func (e *callNode) apply(s *state, f Value, name string) Value {
	if f.kind != callable {
		s.fail("%q cannot be called", name)
	}
	given := e.given(s)
	s.line = e.line
	return f.ref.(function)(s, &given)
}

func (e *callNode) given(s *state) args {
	a := args{names: e.names}
	if len(e.args) > 0 {
		a.pos = make([]Value, len(e.args))
		for i, arg := range e.args {
			a.pos[i] = arg.eval(s)
		}
	}
	for _, arg := range e.named {
		a.named = append(a.named, arg.eval(s))
	}
	return a
}

type filterNode struct {
	of    expr
	args  callNode
	apply method
	trims bool // it is trim
	line  int
}

func (e *filterNode) eval(s *state) Value { return e.of1(s, e.of.eval(s)) }

func (e *filterNode) of1(s *state, v Value) Value {
	s.step()
	given := e.args.given(s)
	s.line = e.line
	if s.outline != nil {
		if v.kind == hole && e.trims && len(given.pos)+len(given.named) == 0 {
			return s.trimmed(v)
		}
		known(v)
		known(given.pos...)
		known(given.named...)
	}
	return e.apply(s, v, &given)
}

type testExpr struct {
	of    expr
	args  []expr
	apply func(s *state, v Value, args []Value) bool
	line  int
}

func (e *testExpr) eval(s *state) Value {
	s.step()
	v := e.of.eval(s)
	var given []Value
	for _, a := range e.args {
		given = append(given, a.eval(s))
	}
	s.line = e.line
	return Bool(e.apply(s, v, given))
}
