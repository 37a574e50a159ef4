package tokens

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// addedToken is a token that is matched in the text as it stands, before pieces are cut: a special one such as
// <|im_end|>, or an ordinary one such as <tool_call>.
type addedToken struct {
	id             uint32
	special        bool
	lstrip, rstrip bool // takes the white space before, after it along
}

// addedMatcher finds added tokens: at the leftmost place one begins, the longest. It is a trie whose nodes list their
// children.
type addedMatcher struct {
	nodes  []addedNode
	tokens []addedToken
	first  [256]bool // bytes with which a token begins
	only   int       // the one such byte, or -1 when there are several
}

type addedNode struct {
	char           byte
	child, sibling int32 // 0: none
	token          int32 // index of tokens, -1: none
}

// addedMatch is where the next token stands and what stands before it.
type addedMatch struct {
	start, stop int // byte offsets; start is the text's length when none is left
	id          uint32
	ok          bool
}

// newAddedMatcher returns a matcher without tokens.
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

// find returns the first token at or after byte from; special ones only if specials is set.
func (m *addedMatcher) find(s string, from int, specials bool) addedMatch {
	for at := from; ; {
		at = m.candidate(s, at)
		if at == len(s) {
			return addedMatch{start: at, stop: at}
		}
		token, stop := m.longest(s, at)
		switch {
		case token < 0:
			at++
		case m.tokens[token].special && !specials:
			at = stop
		default:
			return m.tokens[token].match(s, from, at, stop)
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

// match widens the token found at s[start:stop] by the white space it takes along, not reaching back before from.
func (t addedToken) match(s string, from, start, stop int) addedMatch {
	if t.lstrip {
		start = from + len(strings.TrimRightFunc(s[from:start], unicode.IsSpace))
	}
	if t.rstrip {
		for stop < len(s) {
			r, w := utf8.DecodeRuneInString(s[stop:])
			if !unicode.IsSpace(r) {
				break
			}
			stop += w
		}
	}
	return addedMatch{start, stop, t.id, true}
}
