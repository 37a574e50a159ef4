package jinja

// node is a statement, expr an expression.
type (
	node interface{ run(s *state) jump }
	expr interface{ eval(s *state) Value }
)

// jump is how a statement ends: jumpNone continues.
type jump uint8

const (
	jumpNone jump = iota
	jumpBreak
	jumpContinue
)

func (s *state) run(list []node) jump {
	for _, n := range list {
		s.step()
		if j := n.run(s); j != jumpNone {
			return j
		}
	}
	return jumpNone
}

type dataNode struct{ text string }

func (n *dataNode) run(s *state) jump {
	s.write(n.text)
	return jumpNone
}

// outputNode writes a value: the parts of a concatenation, one by one, without joining them.
type outputNode struct {
	parts []expr
	line  int
}

// flatten lists the parts of a sum, from the left.
func flatten(parts []expr, e expr) []expr {
	if sum, ok := e.(*sumExpr); ok {
		return append(parts, sum.parts...)
	}
	return append(parts, e)
}

func (n *outputNode) run(s *state) jump {
	if len(n.parts) == 1 {
		s.line = n.line
		s.print(n.parts[0].eval(s))
		return jumpNone
	}
	var few [8]Value
	values := few[:0]
	texts := true
	for _, p := range n.parts {
		v := p.eval(s)
		texts = texts && v.kind == text
		values = append(values, v)
	}
	s.line = n.line
	if !texts {
		s.print(s.sum(values))
		return jumpNone
	}
	for i := range values {
		s.write(values[i].str)
	}
	return jumpNone
}

// print writes a value as Python's str has it.
func (s *state) print(v Value) {
	switch v.kind {
	case text:
		s.write(v.str)
	case hole:
		s.writeHole(v)
	case missing, undefined:
	default:
		s.write(s.str(v))
	}
}

type ifNode struct {
	tests     []expr
	bodies    [][]node
	otherwise []node
}

func (n *ifNode) run(s *state) jump {
	for i, test := range n.tests {
		if test.eval(s).truth() {
			return s.run(n.bodies[i])
		}
	}
	return s.run(n.otherwise)
}

type jumpNode struct{ out bool }

func (n *jumpNode) run(*state) jump {
	if n.out {
		return jumpBreak
	}
	return jumpContinue
}

type groupNode struct{ body []node }

func (n *groupNode) run(s *state) jump { return s.run(n.body) }

type forNode struct {
	names     []string
	targets   []int
	loop      int
	over      expr
	filter    expr
	body      []node
	otherwise []node
	scope     *scope
	outer     *scope
	line      int
}

func (n *forNode) run(s *state) jump {
	over := n.over.eval(s)
	s.line = n.line
	items := s.iterate(over)
	slots := s.frame.slots
	if n.filter != nil {
		kept := make([]Value, 0, len(items))
		for _, item := range items {
			n.bind(s, slots, item)
			if n.filter.eval(s).truth() {
				kept = append(kept, item)
			}
		}
		items = kept
	}
	if len(items) == 0 {
		return s.run(n.otherwise)
	}
	l := &loop{items: items}
	self := Value{kind: object, ref: l}
	for l.at = range items {
		s.step()
		n.bind(s, slots, items[l.at])
		slots[n.loop] = self
		if s.run(n.body) == jumpBreak {
			break
		}
	}
	return jumpNone
}

// bind begins an iteration of the loop: variables of the last one are cleared.
func (n *forNode) bind(s *state, slots []Value, item Value) {
	for _, slot := range n.scope.all {
		slots[slot] = Value{}
	}
	s.unpack(slots, n.targets, item, n.line)
}

// unpack gives one slot the value, or several its elements.
func (s *state) unpack(slots []Value, targets []int, v Value, line int) {
	if len(targets) == 1 {
		slots[targets[0]] = v
		return
	}
	s.line = line
	items := s.iterate(v)
	if len(items) != len(targets) {
		s.fail("%d values for %d names", len(items), len(targets))
	}
	for i, slot := range targets {
		slots[slot] = items[i]
	}
}

// loop is the variable of that name.
type loop struct {
	items   []Value
	at      int
	changed []Value
}

func (l *loop) attr(name string) (Value, bool) {
	n := len(l.items)
	switch name {
	case "index":
		return Int(int64(l.at + 1)), true
	case "index0":
		return Int(int64(l.at)), true
	case "revindex":
		return Int(int64(n - l.at)), true
	case "revindex0":
		return Int(int64(n - l.at - 1)), true
	case "first":
		return Bool(l.at == 0), true
	case "last":
		return Bool(l.at == n-1), true
	case "length":
		return Int(int64(n)), true
	case "depth":
		return Int(1), true
	case "depth0":
		return Int(0), true
	case "previtem":
		if l.at > 0 {
			return l.items[l.at-1], true
		}
	case "nextitem":
		if l.at+1 < n {
			return l.items[l.at+1], true
		}
	case "cycle":
		return Value{kind: callable, ref: function(func(s *state, a *args) Value {
			if len(a.pos) == 0 {
				s.fail("loop.cycle without values")
			}
			return a.pos[l.at%len(a.pos)]
		})}, true
	case "changed":
		return Value{kind: callable, ref: function(func(s *state, a *args) Value {
			same := l.changed != nil && s.equal(List(l.changed), List(a.pos))
			l.changed = append([]Value{}, a.pos...)
			return Bool(!same)
		})}, true
	}
	return Value{}, false
}

type setNode struct {
	names   []string
	targets []int
	value   expr
	line    int
}

func (n *setNode) run(s *state) jump {
	v := n.value.eval(s)
	if v.kind == missing {
		v.kind = undefined
	}
	s.unpack(s.frame.slots, n.targets, v, n.line)
	return jumpNone
}

type setAttrNode struct {
	object *nameExpr
	attr   string
	value  expr
	line   int
}

func (n *setAttrNode) run(s *state) jump {
	v := n.value.eval(s)
	s.line = n.line
	space, ok := n.object.get(s).ref.(*namespace)
	if !ok {
		s.fail("%s is no namespace", n.object.name)
	}
	space.dict.Set(n.attr, v)
	return jumpNone
}

// namespace is an object whose attributes templates may set.
type namespace struct{ dict *Dict }

func (n *namespace) attr(name string) (Value, bool) { return n.dict.Get(name) }

// captureNode is a block whose text is a value.
type captureNode struct {
	body  []node
	chain []*filterNode
	line  int
}

func (n *captureNode) eval(s *state) Value {
	v := String(s.capture(n.body))
	for _, f := range n.chain {
		s.line = f.line
		v = f.of1(s, v)
	}
	return v
}

func (n *captureNode) run(s *state) jump {
	s.print(n.eval(s))
	return jumpNone
}

// capture runs statements and returns their text.
func (s *state) capture(body []node) string {
	outer, written := s.out, 0
	if s.outline != nil {
		written = len(s.outline.pieces)
	}
	s.out = nil
	s.run(body)
	if s.outline != nil && len(s.outline.pieces) != written {
		panic(errHole)
	}
	made := s.out
	s.out = outer
	return own(made)
}

type param struct {
	name      string
	slot      int
	otherwise expr
}

type macroNode struct {
	name                    string
	slot                    int
	params                  []param
	caller, kwargs, varargs int
	body                    []node
	scope, outer            *scope
	loops                   int
	line                    int
}

func (n *macroNode) run(s *state) jump {
	s.frame.slots[n.slot] = n.value(s)
	return jumpNone
}

// value is the macro with the variables around it.
func (n *macroNode) value(s *state) Value {
	around := s.frame
	return Value{kind: callable, ref: function(func(s *state, a *args) Value {
		if s.depth++; s.depth > maxDepth {
			s.fail("macros call each other too deeply")
		}
		before := s.frame
		s.frame = &frame{slots: make([]Value, n.scope.slots), parent: around}
		n.bind(s, a)
		made := s.capture(n.body)
		s.frame = before
		s.depth--
		return String(made)
	})}
}

func (n *macroNode) bind(s *state, a *args) {
	slots := s.frame.slots
	kwargs := NewDict(0)
	for i, name := range a.names {
		known := name == "caller"
		if known {
			slots[n.caller] = a.named[i]
		}
		for _, p := range n.params {
			known = known || p.name == name
		}
		if !known {
			kwargs.Set(name, a.named[i])
		}
	}
	slots[n.kwargs] = Map(kwargs)
	rest := []Value{}
	if len(a.pos) > len(n.params) {
		rest = a.pos[len(n.params):]
	}
	slots[n.varargs] = tuple(rest...)
	for i, p := range n.params {
		v, given := a.get(i, p.name)
		switch {
		case given:
		case p.otherwise != nil:
			v = p.otherwise.eval(s)
		default:
			v = Value{kind: undefined, str: p.name}
		}
		if v.kind == missing {
			v.kind = undefined
		}
		slots[p.slot] = v
	}
}

// callBlockNode is a call that hands a block to a macro.
type callBlockNode struct {
	macro *macroNode
	call  *callNode
	line  int
}

func (n *callBlockNode) run(s *state) jump {
	s.print(n.call.with(s, "caller", n.macro.value(s)))
	return jumpNone
}
