package tokens

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// ErrUnsupported is wrapped by Load's error for a valid tokenizer.json outside the supported BPE families.
var ErrUnsupported = errors.New("tokens: not a supported BPE tokenizer.json")

// maxTokenID bounds ids, and so the memory that a false id in a file takes. The largest vocabularies in use have about
// 260,000.
const maxTokenID = 1 << 22

// Load reads a tokenizer.json. The error wraps ErrUnsupported and names the field if the file is well-formed JSON with
// something unsupported: another model than BPE, an unknown split pattern, a normaliser other than NFC, and so on.
func Load(data []byte) (*Tokenizer, error) { return LoadWith(data, nil) }

// LoadWith is Load with the tokenizer_config.json next to the tokenizer.json, nil for none. The config sets added
// tokens (added_tokens_decoder) and the tokens around a prompt (add_bos_token and add_eos_token of the classes that
// Llama, DeepSeek and Gemma name); see Prefix.
func LoadWith(data, config []byte) (*Tokenizer, error) {
	fillPlane0()
	var f file
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, fmt.Errorf("tokens: read tokenizer.json: %w", err)
	}
	if err := f.loadConfig(config); err != nil {
		return nil, err
	}
	t := &Tokenizer{pieces: new(pieceCache)}
	for _, step := range []func(*file) error{t.loadText, t.loadModel, t.loadAdded, t.loadAffixes} {
		if err := step(&f); err != nil {
			return nil, err
		}
	}
	t.seams.load(&f)
	t.fillVocab(&f.Model)
	t.boundLength(&f)
	return t, nil
}

func unsupported(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrUnsupported, fmt.Sprintf(format, args...))
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
		arena = t.appendBytes(arena, token)
		t.bytes[id] = arena[from:len(arena):len(arena)]
	}
	t.merges = newMerges(len(m.Merges))
	for b := range t.merges.single {
		id, ok := m.Vocab[t.byteToken(byte(b))]
		if !ok {
			return unsupported("model.vocab has no token for byte 0x%02x", b)
		}
		t.merges.single[b] = id
	}
	if t.sentence != nil {
		return t.loadSentenceMerges(f)
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

// loadAdded reads the added tokens. It rejects a special one that merges could make, since a client's text could
// forge it.
func (t *Tokenizer) loadAdded(f *file) error {
	t.added, t.ids = newAddedMatcher(), make(map[string]uint32)
	late := newAddedMatcher()
	special := make(map[uint32]string)
	t.special = make(map[uint32]bool)
	for i := range f.AddedTokens {
		a := &f.AddedTokens[i]
		if a.Content == "" {
			return unsupported("added_tokens[%d].content is empty", i)
		}
		if id, ok := f.Model.Vocab[a.Content]; ok && id != a.ID {
			return unsupported("added_tokens[%d].id is %d, in model.vocab %d", i, a.ID, id)
		}
		decoded := []byte(a.Content)
		if t.sentence != nil {
			decoded = t.appendBytes(nil, a.Content)
		}
		if b := t.bytes[a.ID]; b != nil && string(b) != string(decoded) {
			return unsupported("added_tokens[%d].id %d is taken by another token", i, a.ID)
		}
		t.ids[a.Content] = a.ID
		t.bytes[a.ID] = decoded
		if a.Special {
			special[a.ID], t.special[a.ID] = a.Content, true
		}
		if !a.Normalized {
			t.added.add(a.Content, addedToken{a.ID, a.Special, a.LStrip, a.RStrip, a.SingleWord})
			continue
		}
		if t.sentence != nil && t.sentence.early && (a.LStrip || a.RStrip) {
			return unsupported("added_tokens[%d] is normalized, with lstrip or rstrip, where spaces are none", i)
		}
		content, _ := t.normalized(a.Content, t.sentence != nil && t.sentence.lead == leadText)
		late.add(content, addedToken{a.ID, a.Special, a.LStrip, a.RStrip, a.SingleWord})
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

// fillVocab enters the tokens that a piece may be looked up as, and marks those that equal a whole piece: those that
// merging their bytes yields, or all if the model ignores merges for them. Plain text never gives an added token that
// no merge makes, as every special one.
func (t *Tokenizer) fillVocab(m *fileModel) {
	t.vocab = newVocab(len(m.Vocab))
	var ids []uint32
	for token, id := range m.Vocab {
		if !t.inText(token) {
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

// inText reports whether a vocabulary's token can match text in a lookup.
func (t *Tokenizer) inText(token string) bool {
	if t.sentence == nil {
		return isByteLevel(token)
	}
	_, isByte := t.byteOf(token)
	return !isByte && !strings.Contains(token, " ")
}

// boundLength sets longest, for MinTokens.
func (t *Tokenizer) boundLength(f *file) {
	for _, b := range t.bytes {
		t.longest = max(t.longest, len(b))
	}
	if t.sentence != nil {
		t.longest = max(t.longest, longestMarked(&f.Model))
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
