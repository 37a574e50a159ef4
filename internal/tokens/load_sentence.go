package tokens

import (
	"strings"
	"unicode/utf8"
)

// loadSentenceMerges reads characters and merges of SentencePiece's family. It omits merges that make a special token:
// such a token is matched before merging, and plain text must not give it. It rejects one that does not match
// everywhere, because of single_word or of normalizer Prepend.
func (t *Tokenizer) loadSentenceMerges(f *file) error {
	m := &f.Model
	t.merges.chars = newChars()
	for token, id := range m.Vocab {
		switch r, w := utf8.DecodeRuneInString(token); {
		case w < len(token) || r == ' ' || r == utf8.RuneError && w < 2:
		case r == '▁':
			t.merges.chars.add(' ', id)
		default:
			t.merges.chars.add(r, id)
		}
	}
	special := make(map[uint32]*fileAdded)
	for i := range f.AddedTokens {
		if a := &f.AddedTokens[i]; a.Special {
			if utf8.RuneCountInString(a.Content) == 1 {
				return unsupported("special token %q is also a single character", a.Content)
			}
			special[a.ID] = a
		}
	}
	bytes := make(map[uint32]bool)
	for _, id := range t.merges.single {
		bytes[id] = true
	}
	for i, pair := range m.Merges {
		left, okLeft := m.Vocab[pair[0]]
		right, okRight := m.Vocab[pair[1]]
		both, okBoth := m.Vocab[pair[0]+pair[1]]
		switch {
		case !okLeft || !okRight || !okBoth:
			return unsupported("model.merges[%d] names a token that model.vocab lacks", i)
		case pair[0] == "" || pair[1] == "":
			return unsupported("model.merges[%d] has an empty token", i)
		case bytes[left] || bytes[right]:
			return unsupported("model.merges[%d] has the token of a byte", i)
		case strings.Contains(pair[0]+pair[1], " "):
			continue // no space is left in a text
		}
		if a := special[both]; a != nil {
			if a.SingleWord || a.Normalized && t.sentence.lead == leadText {
				return unsupported("special token %q is also made by merges", a.Content)
			}
			continue
		}
		t.merges.add(left, right, both)
		t.sentence.join(string(t.bytes[left]), string(t.bytes[right]))
	}
	return nil
}

// longestMarked returns the greatest length of a token with each ▁ in any of its forms.
func longestMarked(m *fileModel) int {
	longest := 0
	for token := range m.Vocab {
		longest = max(longest, len(token))
	}
	return longest
}
