package jinja

import (
	"math"
	"strconv"
	"unsafe"
)

type kind uint8

const (
	missing   kind = iota // no value was given
	undefined             // Jinja's Undefined
	none
	boolean
	whole
	float
	text
	sequence
	mapping
	object // a namespace, a loop
	callable
	hole // a text to be filled in
)

// Value is one of Python's values as a template sees it. The zero Value is undefined.
type Value struct {
	kind kind
	num  uint64 // of a bool, an int, a float's bits; 1 for a tuple
	str  string // text; an int's digits where it has more than 64 bits; an undefined value's name
	ref  any    // *[]Value, *Dict, getter, function
}

// None is Python's.
var None = Value{kind: none}

// Bool is a truth value.
func Bool(b bool) Value {
	v := Value{kind: boolean}
	if b {
		v.num = 1
	}
	return v
}

// Int returns an integer.
func Int(i int64) Value { return Value{kind: whole, num: uint64(i)} }

// Float returns a floating-point number.
func Float(f float64) Value { return Value{kind: float, num: math.Float64bits(f)} }

// String is a text, which must be UTF-8.
func String(s string) Value { return Value{kind: text, str: s} }

// List returns a list. It keeps items, which must not change.
func List(items []Value) Value { return Value{kind: sequence, ref: &items} }

func tuple(items ...Value) Value { return Value{kind: sequence, num: 1, ref: &items} }

// Map is a dict as a value.
func Map(d *Dict) Value { return Value{kind: mapping, ref: d} }

// Func is a function that templates may call with values by position.
func Func(f func(args []Value) (Value, error)) Value {
	return Value{kind: callable, ref: function(func(s *state, a *args) Value {
		v, err := f(a.pos)
		if err != nil {
			s.fail("%v", err)
		}
		return v
	})}
}

type function func(s *state, a *args) Value

// args are a call's arguments.
type args struct {
	pos   []Value
	names []string
	named []Value
}

// get is the argument at a position or of a name.
func (a *args) get(i int, name string) (Value, bool) {
	if i < len(a.pos) {
		return a.pos[i], true
	}
	for j, n := range a.names {
		if n == name {
			return a.named[j], true
		}
	}
	return Value{}, false
}

// getter is an object with attributes.
type getter interface {
	attr(name string) (Value, bool)
}

func (v Value) int() int64          { return int64(v.num) }
func (v Value) float() float64      { return math.Float64frombits(v.num) }
func (v Value) items() []Value      { return *v.ref.(*[]Value) }
func (v Value) dict() *Dict         { return v.ref.(*Dict) }
func (v Value) isUndefined() bool   { return v.kind <= undefined }
func (v Value) isBig() bool         { return v.kind == whole && v.str != "" }
func (v Value) isNumber() bool      { return v.kind == boolean || v.kind == whole || v.kind == float }
func (v Value) Str() (string, bool) { return v.str, v.kind == text }

// IsNone reports whether the value is Python's None.
func (v Value) IsNone() bool { return v.kind == none }

// Items are the elements of a list; ok is false for other values.
func (v Value) Items() (items []Value, ok bool) {
	if v.kind != sequence {
		return nil, false
	}
	return v.items(), true
}

// Dict is the dict that the value is; ok is false for other values.
func (v Value) Dict() (d *Dict, ok bool) {
	if v.kind != mapping {
		return nil, false
	}
	return v.dict(), true
}

func (v Value) number() float64 {
	switch {
	case v.kind == float:
		return v.float()
	case v.isBig():
		f, _ := strconv.ParseFloat(v.str, 64)
		return f
	}
	return float64(v.int())
}

// integer reads decimal digits.
func integer(digits string) Value {
	i, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return Value{kind: whole, str: digits}
	}
	return Int(i)
}

func (v Value) truth() bool {
	switch v.kind {
	case missing, undefined, none:
		return false
	case boolean, whole:
		return v.num != 0 || v.str != ""
	case float:
		return v.float() != 0
	case text:
		return v.str != ""
	case sequence:
		return len(v.items()) > 0
	case mapping:
		return v.dict().Len() > 0
	}
	return true
}

// Dict is Python's dict: it keeps the order of insertion.
type Dict struct {
	entries []entry
	index   map[string]int // of the text keys, once there are many
}

type entry struct{ key, value Value }

// manyKeys is how many keys are looked for one by one.
const manyKeys = 12

// NewDict is a dict with room for n keys.
func NewDict(n int) *Dict { return &Dict{entries: make([]entry, 0, n)} }

// Len is the number of keys.
func (d *Dict) Len() int { return len(d.entries) }

// Get is the value of a text key.
func (d *Dict) Get(key string) (Value, bool) {
	if i := d.find(key); i >= 0 {
		return d.entries[i].value, true
	}
	return Value{}, false
}

// At is the i-th key and value.
func (d *Dict) At(i int) (key string, value Value) { return d.entries[i].key.str, d.entries[i].value }

// Set sets a text key's value. An existing key keeps its position.
func (d *Dict) Set(key string, v Value) {
	if i := d.find(key); i >= 0 {
		d.entries[i].value = v
		return
	}
	d.add(String(key), v)
}

// Delete takes a text key out.
func (d *Dict) Delete(key string) {
	if i := d.find(key); i >= 0 {
		d.entries = append(d.entries[:i:i], d.entries[i+1:]...)
		d.index = nil
	}
}

// Clone is a dict with the same keys and values.
func (d *Dict) Clone() *Dict {
	return &Dict{entries: append(make([]entry, 0, len(d.entries)+1), d.entries...)}
}

func (d *Dict) add(key, v Value) {
	d.entries = append(d.entries, entry{key, v})
	if d.index != nil && key.kind == text {
		d.index[key.str] = len(d.entries) - 1
	}
}

func (d *Dict) find(key string) int {
	if len(d.entries) <= manyKeys {
		for i := range d.entries {
			if k := &d.entries[i].key; k.kind == text && k.str == key {
				return i
			}
		}
		return -1
	}
	if d.index == nil {
		d.reindex()
	}
	if i, ok := d.index[key]; ok {
		return i
	}
	return -1
}

func (d *Dict) reindex() {
	d.index = make(map[string]int, len(d.entries))
	for i := range d.entries {
		if k := &d.entries[i].key; k.kind == text {
			d.index[k.str] = i
		}
	}
}

// at is the place of any key, below 0 where it is absent.
func (s *state) at(d *Dict, key Value) int {
	known(key)
	if key.kind == text {
		s.pay(len(key.str))
		return d.find(key.str)
	}
	for i := range d.entries {
		if s.equal(d.entries[i].key, key) {
			return i
		}
	}
	return -1
}

func (s *state) lookup(d *Dict, key Value) (Value, bool) {
	if i := s.at(d, key); i >= 0 {
		return d.entries[i].value, true
	}
	return Value{}, false
}

func (s *state) put(d *Dict, key, v Value) {
	if i := s.at(d, key); i >= 0 {
		d.entries[i].value = v
		return
	}
	d.add(key, v)
}

// differs reports whether no text in a hole equals the value: one that is undefined, None, a number or empty.
func (v Value) differs() bool { return v.kind < text || v.kind == text && v.str == "" }

func (s *state) equal(a, b Value) bool {
	s.step()
	switch {
	case a.kind == hole && b.differs() || b.kind == hole && a.differs():
		return false
	case a.kind == hole || b.kind == hole:
		panic(errHole)
	case a.isUndefined() || b.isUndefined():
		return a.isUndefined() && b.isUndefined()
	case a.isNumber() && b.isNumber():
		s.pay(len(a.str) + len(b.str))
		if a.kind != float && b.kind != float {
			return a.num == b.num && a.str == b.str
		}
		return a.number() == b.number()
	case a.kind != b.kind:
		return false
	}
	switch a.kind {
	case none:
		return true
	case text:
		if len(a.str) != len(b.str) {
			return false
		}
		s.pay(len(a.str) / 16)
		return a.str == b.str
	case sequence:
		x, y := a.items(), b.items()
		if len(x) != len(y) || a.num != b.num {
			return false
		}
		for i := range x {
			if !s.equal(x[i], y[i]) {
				return false
			}
		}
		return true
	case mapping:
		x, y := a.dict(), b.dict()
		if x.Len() != y.Len() {
			return false
		}
		for _, e := range x.entries {
			if v, ok := s.lookup(y, e.key); !ok || !s.equal(e.value, v) {
				return false
			}
		}
		return true
	case object:
		return a.ref == b.ref
	}
	return false // functions
}

// own returns b as a string without a copy. No other reference to b may exist.
func own(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
