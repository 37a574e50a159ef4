package jinja

import "unicode/utf8"

type attrExpr struct {
	of   expr
	name string
	line int
}

func (e *attrExpr) eval(s *state) Value {
	s.step()
	v := e.of.eval(s)
	s.line = e.line
	return s.attr(v, e.name)
}

// attr is v.name: the attribute of that name, else the value of that key.
func (s *state) attr(v Value, name string) Value {
	s.pay(len(name))
	switch v.kind {
	case mapping:
		if _, method := dictMethods[name]; method {
			return bound(v, dictMethods[name])
		}
		if item, ok := v.dict().Get(name); ok {
			return item
		}
	case object:
		if a, ok := v.ref.(getter).attr(name); ok {
			return a
		}
	case text:
		if m, ok := textMethods[name]; ok {
			return bound(v, m)
		}
	case sequence:
		if m, ok := listMethods[name]; ok {
			return bound(v, m)
		}
	case hole:
		panic(errHole)
	case missing, undefined:
		s.fail("%q is undefined, and so has no %q", v.str, name)
	}
	return Value{kind: undefined, str: name}
}

func bound(v Value, m method) Value {
	return Value{kind: callable, ref: function(func(s *state, a *args) Value { return m(s, v, a) })}
}

type indexExpr struct {
	of, index expr
	line      int
}

func (e *indexExpr) eval(s *state) Value {
	s.step()
	v, i := e.of.eval(s), e.index.eval(s)
	s.line = e.line
	return s.item(v, i)
}

// item is v[i]: the element or the value of that key, else the attribute of that name.
func (s *state) item(v, i Value) Value {
	known(v, i)
	switch v.kind {
	case mapping:
		if item, ok := s.lookup(v.dict(), i); ok {
			return item
		}
	case sequence:
		if (i.kind == whole || i.kind == boolean) && !i.isBig() {
			items := v.items()
			at := i.int()
			if at < 0 {
				at += int64(len(items))
			}
			if at >= 0 && at < int64(len(items)) {
				return items[at]
			}
			return Value{kind: undefined}
		}
	case text:
		if i.kind == whole && !i.isBig() {
			at := i.int()
			n := s.length(v.str)
			if at < 0 {
				at += int64(n)
			}
			if at < 0 || at >= int64(n) {
				return Value{kind: undefined}
			}
			return String(cutRunes(v.str, n, int(at), int(at)+1))
		}
	case missing, undefined:
		s.fail("%q is undefined, and so has no elements", v.str)
	}
	if i.kind == text {
		return s.attr(v, i.str)
	}
	return Value{kind: undefined}
}

// length is that of a text in characters.
func (s *state) length(t string) int {
	s.pay(len(t))
	return utf8.RuneCountInString(t)
}

// cutRunes is the characters from to before to, of a text that has n.
func cutRunes(t string, n, from, to int) string {
	if n == len(t) {
		return t[from:to]
	}
	begin, end, at := len(t), len(t), 0
	for i := range t {
		if at == from {
			begin = i
		}
		if at == to {
			end = i
			break
		}
		at++
	}
	return t[min(begin, end):end]
}

type sliceExpr struct {
	of    expr
	parts [3]expr // from, to and step, nil where absent
	line  int
}

func (e *sliceExpr) eval(s *state) Value {
	v := e.of.eval(s)
	var parts [3]Value
	for i, p := range e.parts {
		if p != nil {
			parts[i] = p.eval(s)
		}
	}
	s.line = e.line
	return s.slice(v, parts)
}

func (s *state) slice(v Value, parts [3]Value) Value {
	known(v)
	n := 0
	switch v.kind {
	case text:
		n = s.length(v.str)
	case sequence:
		n = len(v.items())
	default:
		s.fail("%s has no slices", v.kindName())
	}
	bound := func(i int, otherwise int64) int64 {
		switch p := parts[i]; {
		case p.isUndefined() && p.str == "" || p.kind == none:
			return otherwise
		case (p.kind == whole || p.kind == boolean) && !p.isBig():
			return p.int()
		}
		s.fail("a slice's bounds must be integers")
		return 0
	}
	step := bound(2, 1)
	if step == 0 {
		s.fail("a slice's step cannot be 0")
	}
	low, high := int64(0), int64(n)
	first, last := low, high
	if step < 0 {
		low, high = -1, int64(n)-1
		first, last = high, low
	}
	clamp := func(i int, otherwise int64) int {
		if parts[i].kind == none || parts[i].isUndefined() {
			return int(otherwise)
		}
		at := bound(i, otherwise)
		if at < 0 {
			at += int64(n)
		}
		return int(max(low, min(high, at)))
	}
	from, to := clamp(0, first), clamp(1, last)
	if v.kind == text && step == 1 {
		return String(cutRunes(v.str, n, from, max(from, to)))
	}
	at := func(emit func(int)) {
		for i := int64(from); step > 0 && i < int64(to) || step < 0 && i > int64(to); i += step {
			emit(int(i))
		}
	}
	if v.kind == text {
		s.pay(8*len(v.str) + 1)
		runes, picked := []rune(v.str), []rune(nil)
		at(func(i int) { picked = append(picked, runes[i]) })
		return String(string(picked))
	}
	items := v.items()
	if step == 1 {
		picked := items[from:max(from, to)]
		return Value{kind: sequence, num: v.num, ref: &picked}
	}
	s.pay(48 * n)
	var picked []Value
	at(func(i int) { picked = append(picked, items[i]) })
	return Value{kind: sequence, num: v.num, ref: &picked}
}
