package jinja

import (
	"errors"
	"strings"
	"unsafe"
)

// Outline is what a template writes for all values that differ in nothing but some texts: its own text, with holes where
// those are written. It holds for texts that are not empty, contain, begin and end with nothing that the template asked
// for, and have no white space around them if it trims them. It is immutable and safe for concurrent use.
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

// Hole returns the value of a text that is not known when a template's [Outline] is made.
func Hole(i int) Value { return Value{kind: hole, ref: []piece{{hole: i}}} }

// IsHole reports whether the value is a text that is not known.
func (v Value) IsHole() bool { return v.kind == hole }

// errHole ends the making of an outline for which a text would have to be known.
var errHole = errors.New("jinja: the template looks into a text")

// Outline renders the template for variables that hold so many holes, numbered from 0. The error is that of a render, or
// says that the template looks into one of the texts or leaves one out.
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
		if !is { // nothing would be known of its text
			return nil, errHole
		}
	}
	return s.outline, nil
}

// Append appends what the template writes for the texts that fill appends for holes. ok is false, and dst as it was,
// where the outline does not hold for one of them.
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

// known ends the making of an outline if one of the values is a hole.
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

// holeMethod calls a method of a hole: what a text without white space around it keeps or lacks.
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

// joinedHoles is the sum of texts of which some are holes.
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
