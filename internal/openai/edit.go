package openai

import (
	"slices"
	"strconv"
)

// Edit changes members of a JSON object's top level by splicing bytes: everything else stays as it was. The last change
// of a key counts. Release recycles its memory.
type Edit struct {
	raw     []byte
	members []member
	changes []change
	inserts []insertion // by offset
	own     []member    // memory of members, where they are not a request's
}

// insertion is text that goes into a value at an offset of raw.
type insertion struct {
	at   int
	text []byte
}

// change is the new value of one key; nil deletes it.
type change struct {
	key   string
	value []byte
}

// NewEdit begins an edit of an object that is no scanned request, such as an engine's answer. It reports false where
// raw is not a JSON object.
func NewEdit(raw []byte) (*Edit, bool) {
	c := newCursor(raw, deepest)
	if c.peek() != '{' {
		return nil, false
	}
	e := takeEdit()
	e.raw = raw
	all := c.members()
	for all.next() {
		m := member{start: all.key.start - 1, name: all.key.of(raw)}
		m.value, _ = c.value()
		e.own = append(e.own, m)
	}
	e.members = e.own
	return e, c.finish()
}

// Edit begins an edit of the request's body. The request itself stays as it is.
func (r *Request) Edit() *Edit {
	e := takeEdit()
	e.raw, e.members = r.Raw, r.members
	for _, name := range r.unsent {
		e.Delete(name)
	}
	return e
}

// Has reports whether the object, before the edit, has the key.
func (e *Edit) Has(key string) bool { return has(e.members, key) }

// value returns a member's value, before the edit.
func (e *Edit) value(key string) (rawJSON []byte, ok bool) {
	for i := range e.members {
		if m := &e.members[i]; string(m.name) == key {
			return m.value.of(e.raw), true
		}
	}
	return nil, false
}

// Set gives key the value rawJSON, which must be valid JSON and is kept, not copied: in place if the object has the
// key, else at its end.
func (e *Edit) Set(key string, rawJSON []byte) { e.change(change{key, rawJSON}) }

// SetString gives key a string, quoted as JSON needs it.
func (e *Edit) SetString(key, value string) {
	e.Set(key, appendQuoted(make([]byte, 0, len(value)+2), value))
}

// SetInt sets key to an integer.
func (e *Edit) SetInt(key string, value int64) { e.Set(key, strconv.AppendInt(nil, value, 10)) }

// SetIDs gives key an array of token ids.
func (e *Edit) SetIDs(key string, ids []uint32) { e.Set(key, AppendIDs(nil, ids)) }

// Delete removes key with its value and one comma.
func (e *Edit) Delete(key string) { e.change(change{key: key}) }

// Take makes a Set of key a Delete and returns its value, nil where the edit has none.
func (e *Edit) Take(key string) (rawJSON []byte) {
	if c := e.find([]byte(key)); c != nil {
		rawJSON, c.value = c.value, nil
	}
	return rawJSON
}

// keep deletes the members with unknown names, and reports whether there were any.
func (e *Edit) keep(known map[string]bool) (deleted bool) {
	for i := range e.members {
		if name := string(e.members[i].name); !known[name] {
			e.Delete(name)
			deleted = true
		}
	}
	return deleted
}

// insert inserts text into a member's value, at an offset of the object. Offsets must grow from call to call, in values
// that are neither set nor deleted.
func (e *Edit) insert(at int, text []byte) {
	e.inserts = append(e.inserts, insertion{at, text})
}

// Bytes returns the edited object, in memory of its own. The edit may continue afterwards.
func (e *Edit) Bytes() []byte {
	return e.Append(make([]byte, 0, len(e.raw)+e.added()))
}

// Append appends the edited object to dst.
func (e *Edit) Append(dst []byte) []byte {
	out := splice{own: dst}
	e.write(&out)
	return out.own
}

const (
	// flatBytes is the longest object that AppendSegments copies into one segment.
	flatBytes = 4 << 10
	// sharedBytes is the shortest piece that AppendSegments refers to instead of copying it.
	sharedBytes = 512
)

// AppendSegments appends the edited object to dst as segments, in order. Long pieces of the object and long values
// given to Set are referenced, not copied: an edit of a large object costs only its changes. A short object is one
// segment, appended to memory, which is returned. Neither the segments nor what they refer to may be changed.
func (e *Edit) AppendSegments(dst [][]byte, memory []byte) (segments [][]byte, _ []byte) {
	if size := len(e.raw) + e.added(); size <= flatBytes {
		start := len(memory)
		memory = e.Append(slices.Grow(memory, size))
		return append(dst, memory[start:len(memory):len(memory)]), memory
	}
	out := splice{share: true, segments: dst}
	e.write(&out)
	out.cut()
	return out.segments, memory
}

// added bounds the bytes that the changes add.
func (e *Edit) added() int {
	size := 0
	for i := range e.changes {
		size += e.changes[i].size()
	}
	for i := range e.inserts {
		size += len(e.inserts[i].text)
	}
	return size
}

// splice collects an edited object.
type splice struct {
	own      []byte   // copied and new bytes since the last cut
	share    bool     // refer to long pieces
	segments [][]byte // complete ones
}

// keep adds bytes that do not change while the object is in use.
func (s *splice) keep(b []byte) {
	if !s.share || len(b) < sharedBytes {
		s.own = append(s.own, b...)
		return
	}
	s.cut()
	s.segments = append(s.segments, b)
}

// cut ends the segment that own holds.
func (s *splice) cut() {
	if len(s.own) > 0 {
		s.segments = append(s.segments, slices.Clip(s.own))
		s.own = s.own[len(s.own):]
	}
}

func (e *Edit) write(out *splice) {
	// After the last remaining member, members go with the comma before them; before it, with the comma after them.
	last := len(e.members) - 1
	for last >= 0 && e.removed(last) {
		last--
	}
	copied := 0 // raw up to here is in out or gone
	for i := 0; i <= last; i++ {
		m := &e.members[i]
		c := e.find(m.name)
		switch {
		case c == nil:
		case c.value == nil:
			e.copy(out, copied, m.start)
			copied = e.members[i+1].start
		default:
			e.copy(out, copied, m.value.start)
			out.keep(c.value)
			copied = m.value.end
		}
	}
	switch all := len(e.members); {
	case last >= 0:
		e.copy(out, copied, e.members[last].value.end)
		copied = e.members[all-1].value.end
	case all > 0:
		e.copy(out, 0, e.members[0].start)
		copied = e.members[all-1].value.end
	default:
		for e.raw[copied] != '{' {
			copied++
		}
		copied++
		e.copy(out, 0, copied)
	}
	comma := last >= 0
	for i := range e.changes {
		c := &e.changes[i]
		if c.value == nil || has(e.members, c.key) {
			continue
		}
		if comma {
			out.own = append(out.own, ',')
		}
		comma = true
		out.own = appendQuoted(out.own, c.key)
		out.own = append(out.own, ':')
		out.keep(c.value)
	}
	e.copy(out, copied, len(e.raw))
}

// copy writes the object's bytes from start to end with the insertions between them.
func (e *Edit) copy(out *splice, start, end int) {
	for i := range e.inserts {
		if in := &e.inserts[i]; start <= in.at && in.at < end {
			out.keep(e.raw[start:in.at])
			out.keep(in.text)
			start = in.at
		}
	}
	out.keep(e.raw[start:end])
}

func (e *Edit) change(c change) {
	if old := e.find([]byte(c.key)); old != nil {
		*old = c
		return
	}
	e.changes = append(e.changes, c)
}

func (e *Edit) find(key []byte) *change {
	for i := range e.changes {
		if e.changes[i].key == string(key) {
			return &e.changes[i]
		}
	}
	return nil
}

func (e *Edit) removed(i int) bool {
	c := e.find(e.members[i].name)
	return c != nil && c.value == nil
}

// size bounds the bytes the change adds.
func (c *change) size() int {
	if c.value == nil {
		return 0
	}
	return len(c.key) + len(`,"":`) + len(c.value)
}
