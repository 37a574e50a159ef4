package jinja

import (
	"errors"
	"strings"
	"unsafe"
)

// Outline is a template's output with holes for some texts, valid for every value of those texts that is not empty,
// contains and begins and ends with nothing that the template tested, and has no surrounding white space if the
// template trims it. It is immutable and safe for concurrent use.
type Outline struct {
	pieces []piece
	absent []absence
}

// piece is text, or a hole.
type piece struct {
	text string
	hole int // below 0: none
}

// absence is that the text in a hole does not contain, begin with or end with another.
type absence struct {
	hole int
	has  func(text, part string) bool
	part string
}

// Hole returns a hole for a text that is unknown when a template's [Outline] is made.
func Hole(i int) Value { return Value{kind: hole, ref: []piece{{hole: i}}} }

// IsHole reports whether the value is a hole.
func (v Value) IsHole() bool { return v.kind == hole }

// errHole reports a template whose output depends on a text in another way than writing it.
var errHole = errors.New("jinja: the template looks into a text")

// Outline renders the template for variables with so many holes, numbered from 0. It fails as a render does, or if the
// template examines one of the texts or omits one.
func (t *Template) Outline(vars map[string]Value, holes int) (o *Outline, err error) {
	s := t.begin(nil, vars)
	s.outline = new(Outline)
	defer func() {
		if failed := recovered(recover()); failed != nil {
			o, err = nil, failed
		}
	}()
	s.run(t.body)
	s.outline.pieces = append(s.outline.pieces, piece{string(s.out), -1})
	written := make([]bool, holes)
	for _, p := range s.outline.pieces {
		if p.hole >= 0 {
			written[p.hole] = true
		}
	}
	for _, is := range written {
		if !is { // its text would be unknown
			return nil, errHole
		}
	}
	return s.outline, nil
}

// Append appends the template's output with the texts that fill appends for holes. ok is false, and dst unchanged, if
// the outline is invalid for one of them.
func (o *Outline) Append(dst []byte, fill func(dst []byte, hole int) []byte) (out []byte, ok bool) {
	out = dst
	for i := range o.pieces {
		p := &o.pieces[i]
		if p.hole < 0 {
			out = append(out, p.text...)
			continue
		}
		from := len(out)
		if out = fill(out, p.hole); !o.holds(p.hole, out[from:]) {
			return dst, false
		}
	}
	return out, true
}

func (o *Outline) holds(hole int, text []byte) bool {
	if len(text) == 0 {
		return false
	}
	for i := range o.absent {
		if a := &o.absent[i]; a.hole == hole && a.has(unsafe.String(unsafe.SliceData(text), len(text)), a.part) {
			return false
		}
	}
	return true
}

// trims reports whether trimming may change a text: unless it begins and ends with ASCII other than white space.
func trims(text, _ string) bool { return !dark(text[0]) || !dark(text[len(text)-1]) }

func dark(b byte) bool { return b > ' ' && b < 0x7f }

// known fails the outline if one of the values is a hole.
func known(values ...Value) {
	for i := range values {
		if values[i].kind == hole {
			panic(errHole)
		}
	}
}

// single is the number of a hole with nothing around it.
func (v Value) single() (i int, ok bool) {
	if v.kind != hole {
		return 0, false
	}
	pieces := v.ref.([]piece)
	return pieces[0].hole, len(pieces) == 1
}

// lacks assumes that the text in a hole has no such part.
func (s *state) lacks(v Value, has func(text, part string) bool, part Value) Value {
	i, ok := v.single()
	if !ok || part.kind != text || part.str == "" {
		panic(errHole)
	}
	s.outline.absent = append(s.outline.absent, absence{i, has, part.str})
	return Bool(false)
}

// trimmed assumes that the text in a hole has no white space around it.
func (s *state) trimmed(v Value) Value {
	i, ok := v.single()
	if !ok {
		panic(errHole)
	}
	s.outline.absent = append(s.outline.absent, absence{i, trims, ""})
	return v
}

// holeMethod calls a method of a hole that does not change a text without surrounding white space.
func (s *state) holeMethod(v Value, name string, a *args) Value {
	switch {
	case name == "strip" && len(a.pos)+len(a.named) == 0:
		return s.trimmed(v)
	case name == "startswith" && len(a.pos) == 1 && len(a.named) == 0:
		return s.lacks(v, strings.HasPrefix, a.pos[0])
	case name == "endswith" && len(a.pos) == 1 && len(a.named) == 0:
		return s.lacks(v, strings.HasSuffix, a.pos[0])
	}
	panic(errHole)
}

// joinedHoles concatenates texts, some of them holes.
func joinedHoles(values []Value) Value {
	var all []piece
	for _, v := range values {
		switch v.kind {
		case text:
			all = append(all, piece{v.str, -1})
		case hole:
			all = append(all, v.ref.([]piece)...)
		default:
			panic(errHole)
		}
	}
	return Value{kind: hole, ref: all}
}

// writeHole writes a text that holds holes.
func (s *state) writeHole(v Value) {
	for _, p := range v.ref.([]piece) {
		if p.hole < 0 {
			s.write(p.text)
			continue
		}
		s.outline.pieces = append(s.outline.pieces, piece{string(s.out), -1}, p)
		s.out = s.out[:0]
	}
}
