// Package tokens encodes text into token ids and hashes token ids into block hashes.
//
// A Tokenizer reads Hugging Face's tokenizer.json of the byte-level BPE families (GPT-2, Llama 3, Qwen, gpt-oss,
// DeepSeek, Mistral's tekken) and of SentencePiece's BPE with byte fall-back (Llama 2, Mistral 7B, Gemma), and gives
// the reference library's ids; it rejects unsupported files rather than give wrong ids. Sim is the tokenizer of the
// simulated model, and ships in the binary. A Cache caches a Tokenizer's ids. ChatML renders conversations for the
// simulated model. LocalHashes and SequenceHashes identify the blocks of a prompt.
//
// Everything here is a plain computation: no goroutine, no clock, no I/O.
package tokens

import (
	"slices"
	"strings"
)

// Tokenizer encodes text by byte-pair encoding. It is immutable but for an internal cache of pieces of fixed size (1
// MB), and safe for concurrent use. Load makes one.
type Tokenizer struct {
	pattern  pattern // of a byte-level family
	nfc      bool
	sentence *sentence     // of SentencePiece's family, nil otherwise
	added    *addedMatcher // matched in the original text
	late     *addedMatcher // matched after normalisation; nil without any
	seams    seams
	ids      map[string]uint32
	vocab    *vocab
	merges   *merges
	bytes    [][]byte // the decoded bytes of each id, nil without such a token
	special  map[uint32]bool
	pieces   *pieceCache
	longest  int

	prefix, suffix []uint32 // around a prompt with add_special_tokens
}

// Encode appends the ids of text to dst, as engines do with a rendered chat template (add_special_tokens=false).
// Special tokens and other added tokens written out in the text become their ids; EncodeText takes
// special ones for plain text. Bytes that are not UTF-8 are encoded as they are.
func (t *Tokenizer) Encode(dst []uint32, text string) []uint32 {
	return t.encode(dst, text, first, true)
}

// EncodeText appends the ids of text to dst and treats special tokens as plain text. Added tokens that are not special,
// such as Qwen's <tool_call>, are still matched, as in the reference library with encode_special_tokens set.
func (t *Tokenizer) EncodeText(dst []uint32, text string) []uint32 {
	return t.encode(dst, text, first, false)
}

// Prefix returns the ids that an engine puts before the text of a prompt when it encodes it with
// add_special_tokens=true: the begin of the sequence (BOS) for Llama, DeepSeek, Mistral and Gemma, nothing for Qwen and
// gpt-oss. That is the default for `prompt` on /v1/completions. Chat has false: the template writes the BOS itself, and
// Encode finds it in the rendered text. The slice is shared and must not be changed.
//
// The ids are those of tokenizer.json's post-processor (TemplateProcessing), or of tokenizer_config.json's
// add_bos_token where its tokenizer_class goes by that.
func (t *Tokenizer) Prefix() []uint32 { return t.prefix }

// Suffix returns the ids that follow the text in the same case: none in most models, EOS with add_eos_token. The slice
// is shared and must not be changed.
func (t *Tokenizer) Suffix() []uint32 { return t.suffix }

// Decode appends the bytes of the tokens to dst, special tokens included. A character may be spread over several
// tokens, so a part of a text need not be UTF-8. Ids outside the vocabulary add nothing.
func (t *Tokenizer) Decode(dst []byte, ids []uint32) []byte {
	for _, id := range ids {
		if int(id) < len(t.bytes) {
			dst = append(dst, t.bytes[id]...)
		}
	}
	return dst
}

// DecodeText is Decode without special tokens, as engines show an answer (skip_special_tokens).
func (t *Tokenizer) DecodeText(dst []byte, ids []uint32) []byte {
	for i, id := range ids {
		if !t.special[id] {
			dst = t.Decode(dst, ids[i:i+1])
		}
	}
	return dst
}

// ID returns the id of an added token by its content, or of an ordinary one by its bytes (" the", not "Ġthe").
func (t *Tokenizer) ID(token string) (uint32, bool) {
	if id, ok := t.ids[token]; ok {
		return id, true
	}
	e, ok := t.vocab.get(token)
	return e.id, ok
}

// VocabSize returns the highest id plus one.
func (t *Tokenizer) VocabSize() int { return len(t.bytes) }

// MinTokens returns a lower bound of the tokens of a text of the given length in bytes: its length over that of the
// longest token. If the text is normalised first it is a third of that: normalising shrinks it threefold at most
// (three Hangul jamo to one syllable).
func (t *Tokenizer) MinTokens(textBytes int) int {
	if t.longest == 0 {
		return 0 // an added token takes along any amount of white space
	}
	return (textBytes + t.longest - 1) / t.longest
}

// place is a text's position in the input, which decides on a leading ▁.
type place uint8

const (
	within place = iota // it continues a text
	after               // an added token is before it
	first               // it begins the input
)

// encode appends the ids of a text: of the added tokens in it, special ones only if specials is set, and of the rest.
func (t *Tokenizer) encode(dst []uint32, text string, at place, specials bool) []uint32 {
	for taken, from := 0, 0; ; {
		m := t.added.find(text, from, taken, specials)
		if m.start > taken {
			dst = t.encodeLate(dst, text[taken:m.start], at.behind(taken), specials)
		}
		if !m.ok {
			return dst
		}
		dst = append(dst, m.id)
		taken, from = m.stop, m.next
	}
}

// behind returns the place of a part of a text after so many bytes of it, and after an added token if there are any.
func (p place) behind(bytes int) place {
	if bytes > 0 {
		return after
	}
	return p
}

// encodeLate does the same for the added tokens that are matched in normal form.
func (t *Tokenizer) encodeLate(dst []uint32, text string, at place, specials bool) []uint32 {
	lead := t.sentence != nil && t.sentence.leads(text, at)
	if t.late == nil {
		return t.plain(dst, text, form{lead: lead})
	}
	text, prepended := t.normalized(text, lead)
	for taken, from := 0, 0; ; {
		m := t.late.find(text, from, taken, specials)
		if m.start > taken {
			part := text[taken:m.start]
			lead := !prepended && t.sentence != nil && t.sentence.leads(part, at.behind(taken))
			dst = t.plain(dst, part, form{normal: true, lead: lead})
		}
		if !m.ok {
			return dst
		}
		dst = append(dst, m.id)
		taken, from = m.stop, m.next
	}
}

// normalized returns the normalised text between added tokens, for matching late ones. prepended reports that no part
// of it gets another ▁.
func (t *Tokenizer) normalized(text string, lead bool) (normal string, prepended bool) {
	switch {
	case t.nfc:
		return nfc(text), false
	case t.sentence == nil || !t.sentence.early:
		return text, false
	}
	text = strings.ReplaceAll(text, spaceMark, " ")
	if lead {
		text = " " + text
	}
	return text, true
}

// form describes a text between added tokens.
type form struct {
	normal bool // it is in its normal form already
	lead   bool // a ▁ goes before it
}

// plain appends the ids of text, in which no added token is looked for.
func (t *Tokenizer) plain(dst []uint32, text string, form form) []uint32 {
	if t.nfc && !form.normal {
		text = nfc(text)
	}
	if cap(dst)-len(dst) < len(text)/8 {
		dst = slices.Grow(dst, len(text)/3+8)
	}
	if t.sentence != nil {
		return t.plainSentence(dst, text, form.lead)
	}
	for i := 0; i < len(text); {
		end := t.pattern.next(text, i)
		dst = t.piece(dst, text, i, end)
		i = end
	}
	return dst
}

// piece appends the ids of the piece text[i:end].
func (t *Tokenizer) piece(dst []uint32, text string, i, end int) []uint32 {
	if end-i > maxKey {
		if end-i <= t.vocab.max {
			if e := t.vocab.long[text[i:end]]; e.whole {
				return append(dst, e.id)
			}
		}
		return t.merges.append(dst, text[i:end])
	}
	k := keyOf(text, i, end)
	hash := k.hash()
	if s := t.vocab.find(k, hash); s.whole {
		return append(dst, s.id)
	}
	slot := t.pieces.slot(hash)
	dst, known := slot.append(dst, k)
	if !known {
		from := len(dst)
		dst = t.merges.append(dst, text[i:end])
		slot.put(k, dst[from:])
	}
	return dst
}
