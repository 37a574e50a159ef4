package openai

import "strconv"

// Edit changes members of a JSON object's top level by splicing bytes: all that
// it does not touch comes out as it was. The last word on a key counts.
type Edit struct {
	raw     []byte
	members []member
	changes []change
}

// change is what becomes of one key.
type change struct {
	key  string
	kind changeKind
	raw  []byte // setRaw
	str  string // setString
	num  int64  // setInt
	ids  []uint32
}

type changeKind uint8

const (
	remove changeKind = iota
	setRaw
	setString
	setInt
	setIDs
)

// NewEdit begins an edit of an object that is no scanned request, such as an
// engine's answer. It reports false where raw is not a JSON object.
func NewEdit(raw []byte) (*Edit, bool) {
	c := newCursor(raw, deepest)
	if c.peek() != '{' || !c.open() {
		return nil, false
	}
	e := &Edit{raw: raw, members: make([]member, 0, 16)}
	for first := true; ; first = false {
		key, more := c.member(first)
		if !more {
			break
		}
		m := member{start: key.start - 1, name: raw[key.start:key.end]}
		if key.escaped() {
			m.name = key.appendTo(nil, raw)
		}
		m.value, _ = c.value()
		e.members = append(e.members, m)
	}
	return e, c.finish()
}

// Has reports whether the object, before the edit, has the key.
func (e *Edit) Has(key string) bool { return has(e.members, key) }

// Set gives key the value rawJSON, which must be valid JSON and is kept, not
// copied: in place where the object has the key, else at its end.
func (e *Edit) Set(key string, rawJSON []byte) {
	e.change(change{key: key, kind: setRaw, raw: rawJSON})
}

// SetString gives key a string, quoted as JSON needs it.
func (e *Edit) SetString(key, value string) {
	e.change(change{key: key, kind: setString, str: value})
}

// SetInt gives key a whole number.
func (e *Edit) SetInt(key string, value int64) {
	e.change(change{key: key, kind: setInt, num: value})
}

// SetIDs gives key an array of token ids, which is kept, not copied.
func (e *Edit) SetIDs(key string, ids []uint32) {
	e.change(change{key: key, kind: setIDs, ids: ids})
}

// Delete removes key with its value and one comma.
func (e *Edit) Delete(key string) {
	e.change(change{key: key})
}

// Bytes returns the edited object, in memory of its own. The edit can go on
// afterwards.
func (e *Edit) Bytes() []byte {
	size := len(e.raw)
	for i := range e.changes {
		size += e.changes[i].size()
	}
	return e.Append(make([]byte, 0, size))
}

// Append appends the edited object to dst.
func (e *Edit) Append(dst []byte) []byte {
	// What follows the last member that stays is removed from the end of that
	// one, what comes before it up to the next one's begin: a comma each.
	last := len(e.members) - 1
	for last >= 0 && e.removed(last) {
		last--
	}
	copied := 0 // raw up to here is in dst or gone
	for i := 0; i <= last; i++ {
		m := &e.members[i]
		c := e.find(m.name)
		switch {
		case c == nil:
		case c.kind == remove:
			dst = append(dst, e.raw[copied:m.start]...)
			copied = e.members[i+1].start
		default:
			dst = append(dst, e.raw[copied:m.value.start]...)
			dst = c.append(dst)
			copied = m.value.end
		}
	}
	switch all := len(e.members); {
	case last >= 0:
		dst = append(dst, e.raw[copied:e.members[last].value.end]...)
		copied = e.members[all-1].value.end
	case all > 0:
		dst = append(dst, e.raw[:e.members[0].start]...)
		copied = e.members[all-1].value.end
	default:
		for e.raw[copied] != '{' {
			copied++
		}
		copied++
		dst = append(dst, e.raw[:copied]...)
	}
	comma := last >= 0
	for i := range e.changes {
		c := &e.changes[i]
		if c.kind == remove || has(e.members, c.key) {
			continue
		}
		if comma {
			dst = append(dst, ',')
		}
		comma = true
		dst = appendQuoted(dst, c.key)
		dst = append(dst, ':')
		dst = c.append(dst)
	}
	return append(dst, e.raw[copied:]...)
}

func (e *Edit) change(c change) {
	if e.changes == nil {
		e.changes = make([]change, 0, 8)
	}
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
	return c != nil && c.kind == remove
}

// size bounds the bytes the change adds.
func (c *change) size() int {
	n := len(c.key) + len(`,"":`)
	switch c.kind {
	case setRaw:
		return n + len(c.raw)
	case setString:
		return n + len(c.str) + len(c.str)/8 + 16 // a guess; few need more
	case setInt:
		return n + 20
	case setIDs:
		return n + idsSize(c.ids) + idsSlack
	}
	return 0
}

func (c *change) append(dst []byte) []byte {
	switch c.kind {
	case setString:
		return appendQuoted(dst, c.str)
	case setInt:
		return strconv.AppendInt(dst, c.num, 10)
	case setIDs:
		return AppendIDs(dst, c.ids)
	}
	return append(dst, c.raw...)
}
