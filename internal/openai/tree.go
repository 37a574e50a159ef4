package openai

import (
	"bytes"
	"iter"
	"math"
	"strconv"
	"unicode/utf8"
)

// maxNodes bounds a tree's values: many tiny ones take ten times a body's size in memory.
const maxNodes = 1 << 20

// Node is a value in a Tree: its place in the order of the text, 0 for the whole. NoNode is none.
type Node int32

// NoNode is the absent value. Every method of Tree accepts it.
const NoNode Node = -1

// Tree is a JSON text that was read once, for code that looks at many of its values. Strings that it returns share the
// text's memory. The zero Tree is empty; Parse uses its memory again.
type Tree struct {
	data   []byte
	text   string // the same memory
	nodes  []branch
	opaque func(key []byte) bool
	// Twice is the first member that Get found more than once, NoNode for none.
	Twice Node
}

// branch is a value and the key before it.
type branch struct {
	key, keyEnd int32 // where the key's text is, 0 without one
	start, end  int32
	up, next    Node // the container, and the value after this one and all in it
	escaped     bool // the key is
	kind        byte
}

// longest bounds a tree's text, in bytes.
const longest = math.MaxInt32

// Parse reads data, which must not change while the tree or a string of it is in use. It checks strict JSON as Limits.Scan does, with the
// default depth and a limit of the number of values. Values whose key is opaque are checked, not taken apart; opaque
// may be nil. Its error is an *Error, status 400.
func (t *Tree) Parse(data []byte, opaque func(key []byte) bool) error {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	if len(data) > longest {
		return TooLarge(longest)
	}
	if t.nodes == nil {
		t.nodes = *branches.Get().(*[]branch)
	}
	*t = Tree{data: data, text: own(data), nodes: t.nodes[:0], opaque: opaque, Twice: NoNode}
	c := newCursor(data, defaultMaxDepth)
	ok := t.read(&c) && c.finish()
	switch {
	case (c.wide || !ok) && !utf8.Valid(data):
		return badJSON("the body is not valid UTF-8 at byte %d", invalidAt(data))
	case c.fault != "":
		return badJSON("invalid JSON at byte %d: %s", c.pos, c.fault)
	}
	return nil
}

// Release recycles the tree's memory. Strings that it returned stay valid.
func (t *Tree) Release() {
	if nodes := t.nodes[:0]; cap(nodes) <= keptNodes {
		branches.Put(&nodes)
	}
	*t = Tree{}
}

// read reads one value and all in it, without recursion.
func (t *Tree) read(c *cursor) bool {
	up, key := NoNode, text{}
	for {
		if len(t.nodes) == maxNodes {
			return c.fail("more than " + strconv.Itoa(maxNodes) + " values")
		}
		b, n, first := c.peek(), Node(len(t.nodes)), false
		t.nodes = append(t.nodes, branch{key: int32(key.start), keyEnd: int32(key.end), start: int32(c.pos), up: up,
			escaped: key.escaped(), kind: b})
		ok, contains := false, b == '{' || b == '['
		switch {
		case !contains:
			if ok = c.scalar(); b == '-' || b-'0' <= 9 {
				t.nodes[n].kind = 0
			}
		case key.start > 0 && t.opaque != nil && t.opaque(key.of(t.data)):
			ok, contains = c.container(), false
		default:
			ok, up, first = c.open(), n, true
		}
		if !ok {
			return false
		}
		if !contains {
			t.nodes[n].end, t.nodes[n].next = int32(c.pos), n+1
		}
		for more := false; !more; first = false {
			if up == NoNode {
				return true
			}
			of := &t.nodes[up]
			if key = (text{}); of.kind == '[' {
				more = c.element(first)
			} else {
				key, more = c.member(first)
			}
			if !c.ok() {
				return false
			}
			if !more {
				of.end, of.next = int32(c.pos), Node(len(t.nodes))
				up = of.up
			}
		}
	}
}

// Kind returns the first byte of the value, which names its type: { [ " t f n, or 0 for any number. It is n, null, for
// NoNode.
func (t *Tree) Kind(n Node) byte {
	if n == NoNode {
		return 'n'
	}
	return t.nodes[n].kind
}

// Raw returns the value's JSON, empty for NoNode.
func (t *Tree) Raw(n Node) string {
	if n == NoNode {
		return ""
	}
	return t.text[t.nodes[n].start:t.nodes[n].end]
}

// Quoted returns the JSON between a string's quotes, its escapes as they are; empty for any other value.
func (t *Tree) Quoted(n Node) string {
	if t.Kind(n) != '"' {
		return ""
	}
	return t.text[t.nodes[n].start+1 : t.nodes[n].end-1]
}

// Is reports whether the value is the string s, which needs no escapes.
func (t *Tree) Is(n Node, s string) bool { return t.Kind(n) == '"' && t.Quoted(n) == s }

// First returns the first value in an array or object, NoNode for an empty one, an opaque one or another value.
func (t *Tree) First(n Node) Node {
	if n == NoNode || t.nodes[n].next == n+1 {
		return NoNode
	}
	return n + 1
}

// Next returns the value after n in the array or object, NoNode after the last.
func (t *Tree) Next(n Node) Node {
	up, next := t.nodes[n].up, t.nodes[n].next
	if up == NoNode || next == t.nodes[up].next {
		return NoNode
	}
	return next
}

// All yields the values in an array or object, in order.
func (t *Tree) All(n Node) iter.Seq[Node] {
	return func(yield func(Node) bool) {
		for m := t.First(n); m != NoNode && yield(m); m = t.Next(m) {
		}
	}
}

// Get returns the member of an object with this key, NoNode where there is none, or null, or n is no object. It notes
// one that appears more than once as Twice.
func (t *Tree) Get(n Node, key string) Node {
	if t.Kind(n) != '{' {
		return NoNode
	}
	found := NoNode
	for m, end := n+1, t.nodes[n].next; m < end; {
		of := &t.nodes[m]
		if int(of.keyEnd-of.key) == len(key) && t.text[of.key:of.keyEnd] == key || of.escaped && t.Key(m) == key {
			if found == NoNode {
				found = m
			} else if t.Twice == NoNode {
				t.Twice = m
			}
		}
		m = of.next
	}
	if t.Kind(found) == 'n' {
		return NoNode
	}
	return found
}

// Key returns the key of an object's member, its escapes resolved.
func (t *Tree) Key(n Node) string {
	of := &t.nodes[n]
	if !of.escaped {
		return t.text[of.key:of.keyEnd]
	}
	c := newCursor(t.data, 0)
	c.pos = int(of.key) - 1
	s, _ := c.str()
	return s.decode(t.data)
}

// Path returns where the value is: messages[2].content, empty for the whole.
func (t *Tree) Path(n Node) string {
	if n <= 0 {
		return ""
	}
	up := t.nodes[n].up
	path := t.Path(up)
	if t.nodes[n].key > 0 {
		if path != "" {
			path += "."
		}
		return path + shown([]byte(t.Key(n)))
	}
	i := 0
	for m := t.First(up); m != n; m = t.Next(m) {
		i++
	}
	return path + "[" + strconv.Itoa(i) + "]"
}

// AppendText appends a string's text, its escapes resolved, to dst; nothing for any other value.
func (t *Tree) AppendText(dst []byte, n Node) []byte {
	if t.Kind(n) == '"' {
		c := newCursor(t.data, 0)
		c.pos = int(t.nodes[n].start)
		s, _ := c.str()
		dst = s.appendTo(dst, t.data)
	}
	return dst
}

// Text returns a string's text as a new string, empty for any other value.
func (t *Tree) Text(n Node) string { return own(t.AppendText(nil, n)) }

// AppendQuoted appends s as a JSON string, quotes included. Bytes that are no UTF-8 become U+FFFD.
func AppendQuoted[S string | []byte](dst []byte, s S) []byte { return appendQuoted(dst, s) }
