package tokens

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// addedToken is a token that is matched in the text before it is split: a special one such as <|im_end|>, or an
// ordinary one such as <tool_call>.
type addedToken struct {
	id             uint32
	special        bool
	lstrip, rstrip bool // takes the white space before, after it along
	alone          bool // is found only where no character of a word is next to it
}

// addedMatcher finds added tokens: at the leftmost place one begins, the longest. It is a trie whose nodes list their
// children.
type addedMatcher struct {
	nodes  []addedNode
	tokens []addedToken
	first  [256]bool // bytes with which a token begins
	only   int       // the one such byte, or -1 for several
}

type addedNode struct {
	char           byte
	child, sibling int32 // 0: none
	token          int32 // index of tokens, -1: none
}

// addedMatch is the next token in a text.
type addedMatch struct {
	start, stop int // byte offsets, with the white space that it takes along; the text's length when none is left
	next        int // where to look for the one after it
	id          uint32
	ok          bool
}

func newAddedMatcher() *addedMatcher {
	return &addedMatcher{nodes: []addedNode{{token: -1}}, only: -1}
}

// add enters a token with the given text, which is not empty.
func (m *addedMatcher) add(content string, token addedToken) {
	at := int32(0)
	for _, c := range []byte(content) {
		next := m.child(at, c)
		if next == 0 {
			next = int32(len(m.nodes))
			m.nodes = append(m.nodes, addedNode{char: c, sibling: m.nodes[at].child, token: -1})
			m.nodes[at].child = next
		}
		at = next
	}
	m.nodes[at].token = int32(len(m.tokens))
	m.tokens = append(m.tokens, token)
	m.first[content[0]] = true
	m.only = -1
	if m.nodes[m.nodes[0].child].sibling == 0 {
		m.only = int(content[0])
	}
}

// find returns the first token at or after byte from; special ones only if specials is set. at is where text begins
// that no token has taken yet.
func (m *addedMatcher) find(s string, from, at int, specials bool) addedMatch {
	for {
		from = m.candidate(s, from)
		if from == len(s) {
			return addedMatch{start: from, stop: from}
		}
		token, stop := m.longest(s, from)
		switch {
		case token < 0:
			from++
		case m.tokens[token].special && !specials, m.tokens[token].alone && besideWord(s, from, stop):
			from = stop
		default:
			return m.tokens[token].match(s, at, from, stop)
		}
	}
}

// candidate returns the next place at or after i where a token may begin.
func (m *addedMatcher) candidate(s string, i int) int {
	switch {
	case len(m.tokens) == 0:
		return len(s)
	case m.only >= 0:
		if n := strings.IndexByte(s[i:], byte(m.only)); n >= 0 {
			return i + n
		}
		return len(s)
	}
	for i < len(s) && !m.first[s[i]] {
		i++
	}
	return i
}

// longest returns the longest token at i and its end, or -1.
func (m *addedMatcher) longest(s string, i int) (token int32, stop int) {
	token = -1
	for at := int32(0); i < len(s); {
		if at = m.child(at, s[i]); at == 0 {
			break
		}
		i++
		if m.nodes[at].token >= 0 {
			token, stop = m.nodes[at].token, i
		}
	}
	return token, stop
}

// child returns the node under at for the byte c, or 0.
func (m *addedMatcher) child(at int32, c byte) int32 {
	at = m.nodes[at].child
	for at != 0 && m.nodes[at].char != c {
		at = m.nodes[at].sibling
	}
	return at
}

// match widens the token found at s[start:stop] by the white space it takes along, not reaching back before at.
func (t addedToken) match(s string, at, start, stop int) addedMatch {
	m := addedMatch{start, stop, stop, t.id, true}
	if t.lstrip {
		m.start = at
		if at < start {
			m.start += len(strings.TrimRightFunc(s[at:start], unicode.IsSpace))
		}
	}
	if t.rstrip {
		m.stop = len(s) - len(strings.TrimLeftFunc(s[stop:], unicode.IsSpace))
	}
	return m
}

// besideWord reports whether a character of a word ends at start or begins at stop.
func besideWord(s string, start, stop int) bool {
	before, _ := utf8.DecodeLastRuneInString(s[:start])
	after, _ := utf8.DecodeRuneInString(s[stop:])
	return start > 0 && isWord(before) || stop < len(s) && isWord(after)
}

// isWord is \w as Rust's regular expressions have it (UTS #18): letters, marks, decimal digits, connectors and joiners.
func isWord(r rune) bool {
	return unicode.In(r, unicode.L, unicode.M, unicode.Nd, unicode.Nl, unicode.Other_Alphabetic, unicode.Pc, unicode.Join_Control)
}
