package jinja

var tests map[string]func(s *state, v Value, args []Value) bool

func init() {
	type test = func(s *state, v Value, args []Value) bool
	kindTest := func(kinds ...kind) test {
		return func(_ *state, v Value, _ []Value) bool {
			for _, k := range kinds {
				if v.kind == k || v.kind == hole && k == text {
					return true
				}
			}
			return false
		}
	}
	compared := func(op string) test {
		return func(s *state, v Value, args []Value) bool {
			if len(args) != 1 {
				s.fail("a test needs one value to compare with")
			}
			return s.compare(op, v, args[0])
		}
	}
	modulo := func(s *state, v, by Value) float64 { return s.arithmetic("%", v, by).number() }
	eq, ne, lt, gt, le, ge := compared("=="), compared("!="), compared("<"), compared(">"), compared("<="), compared(">=")
	tests = map[string]test{
		"defined":   func(_ *state, v Value, _ []Value) bool { return !v.isUndefined() },
		"undefined": func(_ *state, v Value, _ []Value) bool { return v.isUndefined() },
		"none":      kindTest(none),
		"boolean":   kindTest(boolean),
		"true":      func(_ *state, v Value, _ []Value) bool { return v.kind == boolean && v.num == 1 },
		"false":     func(_ *state, v Value, _ []Value) bool { return v.kind == boolean && v.num == 0 },
		"integer":   kindTest(whole),
		"float":     kindTest(float),
		"number":    kindTest(boolean, whole, float),
		"string":    kindTest(text),
		"mapping":   kindTest(mapping),
		"sequence":  kindTest(text, sequence, mapping, missing, undefined),
		"iterable":  kindTest(text, sequence, mapping, missing, undefined),
		"callable":  kindTest(callable, missing, undefined),
		"sameas": func(s *state, v Value, args []Value) bool {
			known(v)
			known(args...)
			return len(args) == 1 && v.kind == args[0].kind && s.equal(v, args[0])
		},
		"eq": eq, "equalto": eq, "==": eq,
		"ne": ne, "!=": ne,
		"lt": lt, "lessthan": lt, "<": lt,
		"gt": gt, "greaterthan": gt, ">": gt,
		"le": le, "<=": le,
		"ge": ge, ">=": ge,
		"in":   compared("in"),
		"odd":  func(s *state, v Value, _ []Value) bool { return modulo(s, v, Int(2)) == 1 },
		"even": func(s *state, v Value, _ []Value) bool { return modulo(s, v, Int(2)) == 0 },
		"lower": func(s *state, v Value, _ []Value) bool {
			return textMethods["islower"](s, String(s.str(v)), nil).truth()
		},
		"upper": func(s *state, v Value, _ []Value) bool {
			return textMethods["isupper"](s, String(s.str(v)), nil).truth()
		},
		"divisibleby": func(s *state, v Value, args []Value) bool {
			if len(args) != 1 {
				s.fail("divisibleby needs a number")
			}
			return modulo(s, v, args[0]) == 0
		},
	}
}

// globals are the functions that every template has.
var globals map[string]Value

func init() {
	globals = map[string]Value{
		"range":     {kind: callable, ref: function(numbers)},
		"namespace": {kind: callable, ref: function(newNamespace)},
		"dict": {kind: callable, ref: function(func(s *state, a *args) Value {
			return Map(s.newDict(a))
		})},
		"raise_exception": {kind: callable, ref: function(func(s *state, a *args) Value {
			problem, _ := a.get(0, "message")
			panic(&Error{Line: s.line, Problem: s.str(problem), Raised: true})
		})},
	}
}

// numbers is range, as a list.
func numbers(s *state, a *args) Value {
	from, to, step := 0, s.intArg(a, 0, "stop", 0), 1
	if len(a.pos) > 1 {
		from, to, step = to, s.intArg(a, 1, "stop", 0), s.intArg(a, 2, "step", 1)
	}
	if step == 0 {
		s.fail("a range's step cannot be 0")
	}
	n := 0
	if step > 0 && to > from {
		n = (to-from-1)/step + 1
	} else if step < 0 && to < from {
		n = (from-to-1)/-step + 1
	}
	if n > 100_000 || n < 0 { // the sandbox's MAX_RANGE
		s.fail("a range is too long")
	}
	s.pay(48 * n)
	list := make([]Value, n)
	for i := range list {
		list[i] = Int(int64(from + i*step))
	}
	return List(list)
}

func newNamespace(s *state, a *args) Value {
	return Value{kind: object, ref: &namespace{s.newDict(a)}}
}

func (s *state) newDict(a *args) *Dict {
	d := NewDict(len(a.names))
	for _, from := range a.pos {
		if from.kind == mapping {
			for _, e := range from.dict().entries {
				s.step()
				s.put(d, e.key, e.value)
			}
			continue
		}
		for _, pair := range s.iterate(from) {
			s.step()
			kv := s.iterate(pair)
			if len(kv) != 2 {
				s.fail("a dict's element is no pair")
			}
			s.put(d, kv[0], kv[1])
		}
	}
	for i, name := range a.names {
		d.Set(name, a.named[i])
	}
	return d
}
