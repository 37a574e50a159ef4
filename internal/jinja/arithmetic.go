package jinja

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

// sumExpr is a row of additions.
type sumExpr struct {
	parts []expr
	line  int
}

func add(left, right expr, line int) expr {
	if sum, ok := left.(*sumExpr); ok {
		return &sumExpr{append(sum.parts[:len(sum.parts):len(sum.parts)], right), line}
	}
	return &sumExpr{[]expr{left, right}, line}
}

func (e *sumExpr) eval(s *state) Value {
	var few [8]Value
	values := few[:0]
	for _, p := range e.parts {
		values = append(values, p.eval(s))
	}
	s.line = e.line
	return s.sum(values)
}

// sum adds values from the left.
func (s *state) sum(values []Value) Value {
	n := 0
	for i := range values {
		if values[i].kind == hole {
			return joinedHoles(values)
		}
		if values[i].kind != text {
			total := values[0]
			for _, v := range values[1:] {
				total = s.plus(total, v)
			}
			return total
		}
		n += len(values[i].str)
	}
	s.pay(n)
	b := make([]byte, 0, n)
	for i := range values {
		b = append(b, values[i].str...)
	}
	return String(own(b))
}

func (s *state) plus(a, b Value) Value {
	switch {
	case a.kind == hole || b.kind == hole:
		return joinedHoles([]Value{a, b})
	case a.kind == text && b.kind == text:
		s.pay(len(a.str) + len(b.str))
		return String(a.str + b.str)
	case a.kind == sequence && b.kind == sequence && a.num == b.num:
		x, y := a.items(), b.items()
		s.pay(48 * (len(x) + len(y)))
		both := append(append(make([]Value, 0, len(x)+len(y)), x...), y...)
		return Value{kind: sequence, num: a.num, ref: &both}
	}
	return s.arithmetic("+", a, b)
}

// concatExpr joins values' texts (~).
type concatExpr struct{ parts []expr }

func (e *concatExpr) eval(s *state) Value {
	var b []byte
	for i, p := range e.parts {
		v := p.eval(s)
		if v.kind == hole {
			return e.joinHoles(s, own(b), v, i+1)
		}
		part := s.str(v)
		s.pay(len(part))
		b = append(b, part...)
	}
	return String(own(b))
}

// joinHoles continues after a text and a hole, at a part.
func (e *concatExpr) joinHoles(s *state, before string, v Value, at int) Value {
	all := []Value{String(before), v}
	for _, p := range e.parts[at:] {
		v := p.eval(s)
		if v.kind != hole {
			v = String(s.str(v))
		}
		all = append(all, v)
	}
	return joinedHoles(all)
}

type binaryExpr struct {
	op          string
	left, right expr
	line        int
}

func (e *binaryExpr) eval(s *state) Value {
	left, right := e.left.eval(s), e.right.eval(s)
	s.line = e.line
	if e.op == "*" {
		if right.kind == text || right.kind == sequence {
			left, right = right, left
		}
		if n := right.int(); (left.kind == text || left.kind == sequence) && (right.kind == whole || right.kind == boolean) && !right.isBig() {
			return s.repeat(left, n)
		}
	}
	if e.op == "%" && left.kind == text {
		return s.format(left.str, right)
	}
	return s.arithmetic(e.op, left, right)
}

func (s *state) repeat(v Value, n int64) Value {
	n = max(0, min(n, maxBytes))
	if v.kind == text {
		s.pay(min(maxBytes+1, len(v.str)*int(n)))
		return String(strings.Repeat(v.str, int(n)))
	}
	items := v.items()
	s.pay(min(maxBytes+1, 48*len(items)*int(n)))
	all := slices.Repeat(items, int(n))
	return Value{kind: sequence, num: v.num, ref: &all}
}

// arithmetic computes with numbers. Results beyond 64 bits fail.
func (s *state) arithmetic(op string, a, b Value) Value {
	if !a.isNumber() || !b.isNumber() || a.isBig() || b.isBig() {
		s.fail("%s %s %s is not possible here", a.kindName(), op, b.kindName())
	}
	if a.kind == float || b.kind == float || op == "/" {
		return s.floats(op, a.number(), b.number())
	}
	x, y := a.int(), b.int()
	if (op == "//" || op == "%") && y == 0 {
		s.fail("division by zero")
	}
	const most = 1 << 62
	fits := func(f float64) { // for results that may be too large
		if math.Abs(f) > most {
			s.fail("a number is too large")
		}
	}
	switch op {
	case "+":
		fits(float64(x) + float64(y))
		return Int(x + y)
	case "-":
		fits(float64(x) - float64(y))
		return Int(x - y)
	case "*":
		fits(float64(x) * float64(y))
		return Int(x * y)
	case "//":
		q := x / y
		if x%y != 0 && (x < 0) != (y < 0) {
			q--
		}
		return Int(q)
	case "%":
		r := x % y
		if r != 0 && (r < 0) != (y < 0) {
			r += y
		}
		return Int(r)
	}
	power := math.Pow(float64(x), float64(y))
	if y < 0 {
		return Float(power)
	}
	if math.Abs(power) > 1<<53 {
		s.fail("a number is too large")
	}
	return Int(int64(power))
}

func (s *state) floats(op string, x, y float64) Value {
	if y == 0 && (op == "/" || op == "//" || op == "%") {
		s.fail("division by zero")
	}
	switch op {
	case "+":
		x += y
	case "-":
		x -= y
	case "*":
		x *= y
	case "/":
		x /= y
	case "//":
		x = math.Floor(x / y)
	case "%":
		r := math.Mod(x, y)
		if r != 0 && (r < 0) != (y < 0) {
			r += y
		}
		x = r
	default:
		x = math.Pow(x, y)
	}
	return Float(x)
}

type signExpr struct {
	of    expr
	minus bool
	line  int
}

func (e *signExpr) eval(s *state) Value {
	v := e.of.eval(s)
	s.line = e.line
	if !e.minus {
		return s.arithmetic("+", Int(0), v)
	}
	if v.kind == float {
		return Float(-v.float())
	}
	return s.arithmetic("-", Int(0), v)
}

func toInt(s *state, v Value, a *args) Value {
	otherwise := Int(int64(s.intArg(a, 0, "default", 0)))
	switch v.kind {
	case missing, undefined:
		s.fail("%q is undefined", v.str)
	case whole:
		return v
	case boolean:
		return Int(v.int())
	case float:
		if f := v.float(); math.Abs(f) < 1<<53 {
			return Int(int64(f))
		}
	case text:
		s.pay(16 * len(v.str))
		t := strings.ReplaceAll(strings.TrimFunc(v.str, isSpace), "_", "")
		if i, err := strconv.ParseInt(t, 10, 64); err == nil {
			return Int(i)
		}
		if f, err := strconv.ParseFloat(t, 64); err == nil && math.Abs(f) < 1<<53 {
			return Int(int64(f))
		}
	}
	return otherwise
}

func toFloat(s *state, v Value, a *args) Value {
	if v.isUndefined() {
		s.fail("%q is undefined", v.str)
	}
	s.pay(16 * len(v.str))
	if v.isNumber() {
		return Float(v.number())
	}
	if v.kind == text {
		if f, err := strconv.ParseFloat(strings.TrimFunc(v.str, isSpace), 64); err == nil {
			return Float(f)
		}
	}
	if d, ok := a.get(0, "default"); ok {
		return d
	}
	return Float(0)
}

func absolute(s *state, v Value, _ *args) Value {
	if v.isNumber() && !v.isBig() && v.number() < 0 {
		return s.arithmetic("*", Int(-1), v)
	}
	return s.arithmetic("+", Int(0), v)
}
