package jinja

import "strings"

type constExpr struct{ value Value }

func (e *constExpr) eval(*state) Value { return e.value }

type nameExpr struct {
	name   string
	scope  *scope
	places []place
	global Value
	known  bool
	line   int
}

func (e *nameExpr) eval(s *state) Value {
	s.step()
	return e.get(s)
}

type listExpr struct {
	items []expr
	tuple bool
}

func (e *listExpr) eval(s *state) Value {
	items := make([]Value, len(e.items))
	for i, item := range e.items {
		items[i] = item.eval(s)
	}
	if e.tuple {
		return tuple(items...)
	}
	return List(items)
}

type dictExpr struct {
	keys, values []expr
	line         int
}

func (e *dictExpr) eval(s *state) Value {
	d := NewDict(len(e.keys))
	for i, key := range e.keys {
		k := key.eval(s)
		if k.kind == sequence || k.kind == mapping {
			s.line = e.line
			s.fail("a list or dict cannot be a key")
		}
		s.put(d, k, e.values[i].eval(s))
	}
	return Map(d)
}

type condExpr struct{ test, then, otherwise expr }

func (e *condExpr) eval(s *state) Value {
	switch {
	case e.test.eval(s).truth():
		return e.then.eval(s)
	case e.otherwise != nil:
		return e.otherwise.eval(s)
	}
	return Value{kind: undefined}
}

type logicExpr struct {
	left, right expr
	or          bool
}

func (e *logicExpr) eval(s *state) Value {
	left := e.left.eval(s)
	if left.truth() == e.or {
		return left
	}
	return e.right.eval(s)
}

type notExpr struct{ of expr }

func (e *notExpr) eval(s *state) Value { return Bool(!e.of.eval(s).truth()) }

type compareExpr struct {
	first  expr
	ops    []string
	others []expr
	line   int
}

func (e *compareExpr) eval(s *state) Value {
	left := e.first.eval(s)
	for i, op := range e.ops {
		right := e.others[i].eval(s)
		s.line = e.line
		if !s.compare(op, left, right) {
			return Bool(false)
		}
		left = right
	}
	return Bool(true)
}

func (s *state) compare(op string, a, b Value) bool {
	switch op {
	case "==":
		return s.equal(a, b)
	case "!=":
		return !s.equal(a, b)
	case "in":
		return s.contains(b, a)
	case "not in":
		return !s.contains(b, a)
	}
	c := s.order(a, b)
	switch op {
	case "<":
		return c < 0
	case "<=":
		return c <= 0
	case ">":
		return c > 0
	}
	return c >= 0
}

// order is below 0 where a is less than b.
func (s *state) order(a, b Value) int {
	switch {
	case a.kind == text && b.kind == text:
		s.pay(min(len(a.str), len(b.str)) / 16)
		return strings.Compare(a.str, b.str)
	case a.isNumber() && b.isNumber() && !a.isBig() && !b.isBig():
		if a.kind != float && b.kind != float {
			switch x, y := a.int(), b.int(); {
			case x < y:
				return -1
			case x > y:
				return 1
			}
			return 0
		}
		switch x, y := a.number(), b.number(); {
		case x < y:
			return -1
		case x > y:
			return 1
		}
		return 0
	case a.kind == sequence && b.kind == sequence:
		x, y := a.items(), b.items()
		for i := range min(len(x), len(y)) {
			if !s.equal(x[i], y[i]) {
				return s.order(x[i], y[i])
			}
		}
		return len(x) - len(y)
	}
	s.fail("%s and %s have no order", a.kindName(), b.kindName())
	return 0
}

func (s *state) contains(in, v Value) bool {
	switch in.kind {
	case hole:
		return s.lacks(in, strings.Contains, v).truth()
	case text:
		if v.kind != text {
			s.fail("%s cannot be in a str", v.kindName())
		}
		s.pay((len(in.str) + len(v.str)) / 4)
		return strings.Contains(in.str, v.str)
	case sequence:
		for _, item := range in.items() {
			if s.equal(item, v) {
				return true
			}
		}
		return false
	case mapping:
		if v.kind == sequence && v.num == 0 || v.kind == mapping {
			s.fail("%s is no key", v.kindName())
		}
		_, ok := s.lookup(in.dict(), v)
		return ok
	case missing, undefined:
		return false
	}
	s.fail("%s holds nothing", in.kindName())
	return false
}
