package jinja

// scope is the names that a part of the template gives values to: the template itself, a loop's body, a macro. Each
// has its slots in the frame of the function that it is in.
type scope struct {
	parent   *scope
	function *scope // the template or macro around it, itself for those
	vars     map[string]int
	all      []int // its slots
	slots    int   // of a function: how many its frame has
}

// newScope opens a scope inside parent; a nil function makes it a function's scope.
func newScope(parent, function *scope) *scope {
	s := &scope{parent: parent, function: function, vars: map[string]int{}}
	if function == nil {
		s.function = s
	}
	return s
}

func (s *scope) assign(name string) int {
	slot, ok := s.vars[name]
	if !ok {
		slot = s.function.slots
		s.function.slots++
		s.vars[name] = slot
		s.all = append(s.all, slot)
	}
	return slot
}

// place is where a name's value may be: so many frames up, in that slot.
type place struct{ up, slot int }

// resolve finds the places where a name may have a value, the innermost first. A name that an inner scope has not
// given a value yet has the outer one's.
func (n *nameExpr) resolve() {
	up := 0
	for s := n.scope; s != nil; s = s.parent {
		if slot, ok := s.vars[n.name]; ok {
			n.places = append(n.places, place{up, slot})
		}
		if s == s.function {
			up++
		}
	}
	n.global, n.known = globals[n.name]
}

// get reads a name: a variable of the template, of the render, or a function that every template has.
func (n *nameExpr) get(s *state) Value {
	for _, at := range n.places {
		f := s.frame
		for range at.up {
			f = f.parent
		}
		if v := f.slots[at.slot]; v.kind != missing {
			return v
		}
	}
	if v, ok := s.vars[n.name]; ok {
		return v
	}
	if n.known {
		return n.global
	}
	return Value{kind: undefined, str: n.name}
}
