package jinja

import (
	"math"
	"strings"
	"unicode/utf8"
)

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
		d.put(k, e.values[i].eval(s))
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
		s.payEqual(a)
		return equal(a, b)
	case "!=":
		s.payEqual(a)
		return !equal(a, b)
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

// payEqual pays for a comparison with a.
func (s *state) payEqual(a Value) {
	switch a.kind {
	case text:
		s.pay(len(a.str) / 16)
	case sequence, mapping:
		s.pay(64) // and for what is inside, which a template makes or a client sends once
	}
}

// order is below 0 where a is less than b.
func (s *state) order(a, b Value) int {
	switch {
	case a.kind == text && b.kind == text:
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
			if !equal(x[i], y[i]) {
				return s.order(x[i], y[i])
			}
		}
		return len(x) - len(y)
	}
	s.fail("%s and %s have no order", a.kindName(), b.kindName())
	return 0
}

// contains is Python's in.
func (s *state) contains(in, v Value) bool {
	switch in.kind {
	case text:
		if v.kind != text {
			s.fail("%s cannot be in a str", v.kindName())
		}
		s.pay(len(in.str) / 16)
		return strings.Contains(in.str, v.str)
	case sequence:
		for _, item := range in.items() {
			s.step()
			if equal(item, v) {
				return true
			}
		}
		return false
	case mapping:
		_, ok := in.dict().lookup(v)
		return ok
	case missing, undefined:
		return false
	}
	s.fail("%s holds nothing", in.kindName())
	return false
}

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
	for _, p := range e.parts {
		part := s.str(p.eval(s))
		s.pay(len(part))
		b = append(b, part...)
	}
	return String(own(b))
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
		if n := right.int(); (left.kind == text || left.kind == sequence) && right.kind == whole && !right.isBig() {
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
	var all []Value
	for range n {
		all = append(all, items...)
	}
	return Value{kind: sequence, num: v.num, ref: &all}
}

// arithmetic is that of numbers. What needs more than 64 bits fails.
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
	fits := func(f float64) { // of what may be too large
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
	switch v.kind {
	case mapping:
		if item, ok := v.dict().lookup(i); ok {
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
	s.pay(len(t) / 16)
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
		s.fail("a slice's bounds must be whole numbers")
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
		s.pay(4*len(v.str) + 1)
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
	line  int
}

func (e *filterNode) eval(s *state) Value { return e.of1(s, e.of.eval(s)) }

// of1 filters one value.
func (e *filterNode) of1(s *state, v Value) Value {
	s.step()
	given := e.args.given(s)
	s.line = e.line
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
