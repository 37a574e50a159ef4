package tokens

import (
	"encoding/json"
	"errors"
	"fmt"
)

// ErrUnsupported is what Load's error wraps when a tokenizer.json asks for something outside the byte-level BPE
// family as this package knows it.
var ErrUnsupported = errors.New("tokens: not a supported byte-level BPE tokenizer.json")

// maxTokenID bounds ids, and so what a false id in a file can make Load allocate. The largest vocabularies in use
// have about 260,000.
const maxTokenID = 1 << 22

// Load reads a tokenizer.json. The error wraps ErrUnsupported where the file is well-formed JSON but asks for
// something unknown here: another model than BPE, an unknown split pattern, a normaliser other than NFC, and so on.
// It names the field.
func Load(data []byte) (*Tokenizer, error) { return LoadWith(data, nil) }

// LoadWith is Load with the tokenizer_config.json that stands next to the tokenizer.json, nil for none. The config has
// a say in added tokens (added_tokens_decoder) and in what stands around a prompt (add_bos_token and add_eos_token of
// the classes that Llama, DeepSeek and Gemma name); see Prefix.
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
