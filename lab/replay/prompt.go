package replay

import (
	"errors"
	"math/bits"
	"strconv"

	"github.com/tandem-pd/tandem/internal/tokens"
)

// Prompter turns a request's spans into a prompt: the token at each position of a span is drawn from a vocabulary by
// hash(seed, span id, position). It is immutable and safe for concurrent use.
type Prompter struct {
	seed  uint64
	ids   []uint32 // the vocabulary to draw from, for prompts of token ids
	words []string // the vocabulary to draw from, for prompts of text
}

// ErrVocabulary: a tokenizer has too few tokens to make prompts of.
var ErrVocabulary = errors.New("replay: the vocabulary has too few plain tokens")

// leastVocabulary keeps spans with different ids from beginning alike.
const leastVocabulary = 64

// NewPrompter returns a prompter for endpoints with this tokenizer. Token ids are drawn from the tokens that plain text
// can become, so no special token is among them. Text is drawn from those that are a blank and lower-case letters: a
// text of n of them is n tokens again, because each is a piece of its own to every split pattern in use.
func NewPrompter(t *tokens.Tokenizer, seed uint64) (*Prompter, error) {
	p := &Prompter{seed: seed}
	var text []byte
	var ids []uint32
	for id := range uint32(t.VocabSize()) {
		text = t.Decode(text[:0], []uint32{id})
		if len(text) == 0 {
			continue
		}
		ids = t.EncodeText(ids[:0], string(text))
		if len(ids) != 1 || ids[0] != id {
			continue
		}
		p.ids = append(p.ids, id)
		if isWord(text) {
			p.words = append(p.words, string(text))
		}
	}
	if len(p.ids) < leastVocabulary || len(p.words) < leastVocabulary {
		return nil, ErrVocabulary
	}
	return p, nil
}

// isWord reports whether the text is a blank and then lower-case letters.
func isWord(text []byte) bool {
	if len(text) < 3 || text[0] != ' ' {
		return false
	}
	for _, c := range text[1:] {
		if c < 'a' || c > 'z' {
			return false
		}
	}
	return true
}

// IDs appends the prompt's token ids to dst.
func (p *Prompter) IDs(dst []uint32, spans []Span) []uint32 {
	for at := range p.draw(spans, len(p.ids)) {
		dst = append(dst, p.ids[at])
	}
	return dst
}

// AppendIDs appends the prompt as a JSON array of token ids to dst.
func (p *Prompter) AppendIDs(dst []byte, spans []Span) []byte {
	dst = append(dst, '[')
	begun := false
	for at := range p.draw(spans, len(p.ids)) {
		if begun {
			dst = append(dst, ',')
		}
		begun = true
		dst = strconv.AppendUint(dst, uint64(p.ids[at]), 10)
	}
	return append(dst, ']')
}

// AppendText appends the prompt as text to dst. It needs no escaping in JSON.
func (p *Prompter) AppendText(dst []byte, spans []Span) []byte {
	for at := range p.draw(spans, len(p.words)) {
		dst = append(dst, p.words[at]...)
	}
	return dst
}

// draw yields an index below n for each of the spans' tokens.
func (p *Prompter) draw(spans []Span, n int) func(yield func(at int) bool) {
	return func(yield func(at int) bool) {
		for _, s := range spans {
			state := mix(p.seed ^ mix(s.ID))
			for range s.Tokens {
				state += golden
				at, _ := bits.Mul64(mix(state), uint64(n))
				if !yield(int(at)) {
					return
				}
			}
		}
	}
}

// golden is the step of SplitMix64: 2^64 over the golden ratio.
const golden = 0x9e3779b97f4a7c15

// mix is the finaliser of SplitMix64 (Steele, Lea, Flood, 2014).
func mix(x uint64) uint64 {
	x += golden
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
