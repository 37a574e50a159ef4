package tokens

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// ErrUnsupported is what Load's error wraps when a tokenizer.json asks for something outside the byte-level BPE
// family as this package knows it.
var ErrUnsupported = errors.New("tokens: not a supported byte-level BPE tokenizer.json")

// file is Hugging Face's tokenizer.json, as far as it bears on encoding without special tokens added. Truncation,
// padding and the post-processor do not.
type file struct {
	AddedTokens  []fileAdded `json:"added_tokens"`
	Normalizer   *fileStep   `json:"normalizer"`
	PreTokenizer *fileStep   `json:"pre_tokenizer"`
	Decoder      *fileStep   `json:"decoder"`
	Model        fileModel   `json:"model"`
}

type fileAdded struct {
	ID         uint32 `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

type fileStep struct {
	Type           string     `json:"type"`
	PreTokenizers  []fileStep `json:"pretokenizers"`
	Normalizers    []fileStep `json:"normalizers"`
	AddPrefixSpace bool       `json:"add_prefix_space"`
	UseRegex       *bool      `json:"use_regex"`
	Behavior       string     `json:"behavior"`
	Invert         bool       `json:"invert"`
	Pattern        struct {
		Regex  string
		String *string
	} `json:"pattern"`
}

type fileModel struct {
	Type         string            `json:"type"`
	Dropout      *float64          `json:"dropout"`
	Prefix       string            `json:"continuing_subword_prefix"`
	Suffix       string            `json:"end_of_word_suffix"`
	ByteFallback bool              `json:"byte_fallback"`
	IgnoreMerges bool              `json:"ignore_merges"`
	Vocab        map[string]uint32 `json:"vocab"`
	Merges       fileMerges        `json:"merges"`
}

// fileMerges reads merges in both of their forms: "a b" and ["a","b"].
type fileMerges [][2]string

// UnmarshalJSON implements json.Unmarshaler.
func (ms *fileMerges) UnmarshalJSON(data []byte) error {
	var joined []string
	if json.Unmarshal(data, &joined) == nil {
		*ms = make(fileMerges, len(joined))
		for i, j := range joined {
			left, right, ok := strings.Cut(j, " ")
			if !ok || strings.Contains(right, " ") {
				return fmt.Errorf("model.merges[%d] is not two tokens", i)
			}
			(*ms)[i] = [2]string{left, right}
		}
		return nil
	}
	var pairs [][]string
	if err := json.Unmarshal(data, &pairs); err != nil {
		return err
	}
	*ms = make(fileMerges, len(pairs))
	for i, p := range pairs {
		if len(p) != 2 {
			return fmt.Errorf("model.merges[%d] is not two tokens", i)
		}
		(*ms)[i] = [2]string{p[0], p[1]}
	}
	return nil
}

// maxTokenID bounds ids, and so what a false id in a file can make Load allocate. The largest vocabularies in use
// have about 260,000.
const maxTokenID = 1 << 22

// Load reads a tokenizer.json. The error wraps ErrUnsupported where the file is well-formed JSON but asks for
// something unknown here: another model than BPE, an unknown split pattern, a normaliser other than NFC, and so on.
// It names the field.
func Load(data []byte) (*Tokenizer, error) {
	fillPlane0()
	var f file
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, fmt.Errorf("tokens: read tokenizer.json: %w", err)
	}
	t := &Tokenizer{pieces: new(pieceCache)}
	for _, step := range []func(*file) error{t.loadText, t.loadModel, t.loadAdded} {
		if err := step(&f); err != nil {
			return nil, err
		}
	}
	t.fillVocab(&f.Model)
	t.boundLength(&f)
	return t, nil
}

func unsupported(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrUnsupported, fmt.Sprintf(format, args...))
}

// loadText reads the steps before and after the model.
func (t *Tokenizer) loadText(f *file) error {
	if n := f.Normalizer; n != nil {
		if n.Type == "Sequence" && len(n.Normalizers) == 1 {
			n = &n.Normalizers[0]
		}
		switch {
		case n.Type == "NFC":
			t.nfc = true
		case n.Type == "Sequence" && len(n.Normalizers) == 0:
		default:
			return unsupported("normalizer.type %q", n.Type)
		}
	}
	if d := f.Decoder; d != nil && d.Type != "ByteLevel" {
		return unsupported("decoder.type %q", d.Type)
	}
	if f.PreTokenizer == nil {
		return unsupported("pre_tokenizer is absent")
	}
	steps := []fileStep{*f.PreTokenizer}
	if f.PreTokenizer.Type == "Sequence" {
		steps = f.PreTokenizer.PreTokenizers
	}
	last := len(steps) - 1
	if last < 0 || last > 1 || steps[last].Type != "ByteLevel" {
		return unsupported("pre_tokenizer is not ByteLevel, alone or after one Split")
	}
	if steps[last].AddPrefixSpace {
		return unsupported("pre_tokenizer.add_prefix_space")
	}
	if own := steps[last].UseRegex == nil || *steps[last].UseRegex; own != (last == 0) {
		return unsupported("pre_tokenizer.use_regex %t with %d patterns before it", own, last)
	}
	if last == 0 {
		t.pattern = gpt2
		return nil
	}
	return t.loadSplit(&steps[0])
}

func (t *Tokenizer) loadSplit(s *fileStep) error {
	if s.Type != "Split" || s.Pattern.String != nil {
		return unsupported("pre_tokenizer of type %q is not a Split by a regular expression", s.Type)
	}
	// The known patterns match every character, so to keep the pieces between matches or to drop them is the same.
	if kept := s.Behavior == "Isolated" && !s.Invert || s.Behavior == "Removed" && s.Invert; !kept {
		return unsupported("pre_tokenizer Split with behavior %q, invert %t", s.Behavior, s.Invert)
	}
	var known bool
	if t.pattern, known = patternOf(s.Pattern.Regex); !known {
		return unsupported("pre_tokenizer Split pattern %q is not a known one", s.Pattern.Regex)
	}
	return nil
}

// loadModel reads vocabulary and merges.
func (t *Tokenizer) loadModel(f *file) error {
	m := &f.Model
	switch {
	case m.Type != "BPE" && m.Type != "":
		return unsupported("model.type %q", m.Type)
	case m.Dropout != nil && *m.Dropout != 0:
		return unsupported("model.dropout %g", *m.Dropout)
	case m.Prefix != "" || m.Suffix != "":
		return unsupported("model.continuing_subword_prefix or end_of_word_suffix")
	case m.ByteFallback:
		return unsupported("model.byte_fallback")
	}
	top := uint32(0)
	for _, id := range m.Vocab {
		top = max(top, id)
	}
	for i := range f.AddedTokens {
		top = max(top, f.AddedTokens[i].ID)
	}
	if top > maxTokenID {
		return unsupported("token id %d is above %d", top, maxTokenID)
	}
	t.bytes = make([][]byte, top+1)
	arena := make([]byte, 0, 8*len(m.Vocab))
	for token, id := range m.Vocab {
		if t.bytes[id] != nil {
			return unsupported("model.vocab has two tokens with id %d", id)
		}
		from := len(arena)
		arena = appendTokenBytes(arena, token)
		t.bytes[id] = arena[from:len(arena):len(arena)]
	}
	t.merges = newMerges(len(m.Merges))
	for b, char := range byteChars {
		id, ok := m.Vocab[string(char)]
		if !ok {
			return unsupported("model.vocab has no token for byte 0x%02x", b)
		}
		t.merges.single[b] = id
	}
	for i, pair := range m.Merges {
		left, okLeft := m.Vocab[pair[0]]
		right, okRight := m.Vocab[pair[1]]
		both, okBoth := m.Vocab[pair[0]+pair[1]]
		if !okLeft || !okRight || !okBoth {
			return unsupported("model.merges[%d] names a token that model.vocab lacks", i)
		}
		t.merges.add(left, right, both)
	}
	return nil
}

// loadAdded reads the added tokens. A special one that merging could make would let a client's text forge it, and is
// refused.
func (t *Tokenizer) loadAdded(f *file) error {
	t.added, t.ids = newAddedMatcher(), make(map[string]uint32)
	late := newAddedMatcher()
	special := make(map[uint32]string)
	for i := range f.AddedTokens {
		a := &f.AddedTokens[i]
		switch {
		case a.Content == "":
			return unsupported("added_tokens[%d].content is empty", i)
		case a.SingleWord:
			return unsupported("added_tokens[%d].single_word", i)
		}
		if id, ok := f.Model.Vocab[a.Content]; ok && id != a.ID {
			return unsupported("added_tokens[%d].id is %d, in model.vocab %d", i, a.ID, id)
		}
		if b := t.bytes[a.ID]; b != nil && string(b) != a.Content {
			return unsupported("added_tokens[%d].id %d is taken by another token", i, a.ID)
		}
		t.ids[a.Content] = a.ID
		t.bytes[a.ID] = []byte(a.Content)
		if a.Special {
			special[a.ID] = a.Content
		}
		matcher, content := t.added, a.Content
		if a.Normalized {
			matcher = late
			if t.nfc {
				content = nfc(content)
			}
		}
		matcher.add(content, addedToken{a.ID, a.Special, a.LStrip, a.RStrip})
	}
	if len(late.tokens) > 0 {
		t.late = late
	}
	for _, id := range t.merges.joined {
		if content, ok := special[id]; ok {
			return unsupported("special token %q is also made by merges", content)
		}
	}
	for _, id := range t.merges.single {
		if content, ok := special[id]; ok {
			return unsupported("special token %q is also a single byte", content)
		}
	}
	return nil
}

// fillVocab enters the tokens that a piece may be looked up as, and marks those that stand for a whole piece: the
// ones that merging their bytes yields, or all where the model ignores merges for them. An added token that no merge
// makes, every special one among them, is not to come out of plain text.
func (t *Tokenizer) fillVocab(m *fileModel) {
	t.vocab = newVocab(len(m.Vocab))
	var ids []uint32
	for token, id := range m.Vocab {
		if !isByteLevel(token) {
			continue
		}
		b := string(t.bytes[id])
		ids = t.merges.append(ids[:0], b)
		made := len(ids) == 1 && ids[0] == id
		if _, added := t.ids[b]; added && !made {
			continue
		}
		t.vocab.add(b, id, made || m.IgnoreMerges)
	}
}

// boundLength sets longest, for MinTokens.
func (t *Tokenizer) boundLength(f *file) {
	for _, b := range t.bytes {
		t.longest = max(t.longest, len(b))
	}
	if t.nfc {
		t.longest *= 3
	}
	for i := range f.AddedTokens {
		if f.AddedTokens[i].LStrip || f.AddedTokens[i].RStrip {
			t.longest = 0
		}
	}
}

// byteChars is the alphabet of byte-level BPE: the character that stands for each byte in a vocabulary. Printable
// bytes stand for themselves, the others for U+0100 and up.
var byteChars = func() (chars [256]rune) {
	next := rune(0x100)
	for b := range chars {
		switch {
		case b >= '!' && b <= '~', b >= 0xa1 && b <= 0xac, b >= 0xae:
			chars[b] = rune(b)
		default:
			chars[b] = next
			next++
		}
	}
	return chars
}()

// charBytes is the inverse of byteChars: byte plus one, 0 for none.
var charBytes = func() (bytes [0x144]uint16) {
	for b, c := range byteChars {
		bytes[c] = uint16(b) + 1
	}
	return bytes
}()

// appendTokenBytes appends what a vocabulary's token decodes to: the bytes its characters stand for, or the token
// itself if it has others.
func appendTokenBytes(dst []byte, token string) []byte {
	if !isByteLevel(token) {
		return append(dst, token...)
	}
	for _, c := range token {
		dst = append(dst, byte(charBytes[c]-1))
	}
	return dst
}

// isByteLevel reports whether every character of the token stands for a byte.
func isByteLevel(token string) bool {
	for _, c := range token {
		if int(c) >= len(charBytes) || charBytes[c] == 0 {
			return false
		}
	}
	return token != ""
}
