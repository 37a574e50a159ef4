package openai

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"iter"
	"strings"
)

// Modality is the content type of a piece of a prompt.
type Modality uint8

// The modalities. Reasoning and refusals of earlier answers are Other: no template of the gateway's renders them.
const (
	Text Modality = iota + 1
	Image
	Audio
	Video
	Other
)

// media is a part of a message that is no text.
type media struct {
	modality Modality
	where    span
}

// modalityOf returns the modality of a part by its type: image_url, input_audio, video_url and engines' own.
func modalityOf(kind []byte) Modality {
	switch {
	case string(kind) == "text":
		return Text
	case bytes.Contains(kind, []byte("image")):
		return Image
	case bytes.Contains(kind, []byte("audio")):
		return Audio
	case bytes.Contains(kind, []byte("video")):
		return Video
	}
	return Other
}

// HasMedia reports whether a message holds a part that is no text.
func (r *Request) HasMedia() bool { return len(r.media) > 0 }

// NameMedia makes e, an edit of r's body, give each inline image, audio or video (a data: URL, or input_audio's base64)
// a uuid: a digest of its bytes and of the cache salt. vLLM uses a part's uuid as its hash
// (vllm/multimodal/processing/inputs.py), so that equal media of one salt have one name in every engine's cache. Media
// that the engine fetches get none: they may differ by the next request.
func (r *Request) NameMedia(e *Edit) {
	if r.mediaNames == nil && len(r.media) > 0 {
		r.mediaNames = make([][]byte, len(r.media))
		for i, m := range r.media {
			if held, _ := heldIn(m.where.of(r.Raw)); held != nil {
				r.mediaNames[i] = nameOf(held, r.CacheSalt)
			}
		}
	}
	for i, name := range r.mediaNames {
		if name != nil {
			e.insert(r.media[i].where.end-1, name)
		}
	}
}

// nameOf is the member that names a part.
func nameOf(held []byte, salt string) []byte {
	h := sha256.New()
	h.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(salt))))
	h.Write([]byte(salt))
	h.Write(held)
	return append(hex.AppendEncode([]byte(`,"uuid":"`), h.Sum(nil)), '"')
}

// NamesFiles reports whether an image, audio or video is neither inline nor an http or https URL: SGLang opens it as a
// path on the worker (srt/utils/common.py of 0.5.23, load_image). vLLM opens files only if its operator allows them.
func (r *Request) NamesFiles() bool {
	for _, m := range r.media {
		if _, local := heldIn(m.where.of(r.Raw)); local {
			return true
		}
	}
	return false
}

// heldIn returns the inline media of a part, as raw JSON; nil for a URL or another form. local: that is no URL of http
// or https.
func heldIn(part []byte) (held []byte, local bool) {
	c := newCursor(part, deepest)
	parts := c.members()
	for parts.next() {
		switch string(parts.name()) {
		case "image_url", "audio_url", "video_url", "image", "audio", "video":
			if c.peek() == '"' {
				held, local = dataURL(&c)
				continue
			}
			inner := c.members()
			for inner.next() {
				if string(inner.name()) == "url" && c.peek() == '"' {
					held, local = dataURL(&c)
				} else {
					c.value()
				}
			}
		case "input_audio":
			v, _ := c.value()
			held = v.of(part)
		default:
			c.value()
		}
	}
	return held, local
}

// dataURL reads a string and returns the content of a data: URL, nil of any other. local is as in heldIn.
func dataURL(c *cursor) (held []byte, local bool) {
	t, _ := c.str()
	url := c.data[t.start:t.end]
	if bytes.HasPrefix(url, []byte("data:")) {
		return url, false
	}
	plain := t.decode(c.data)
	return nil, !strings.HasPrefix(plain, "http://") && !strings.HasPrefix(plain, "https://")
}

// Pieces yields the raw JSON of what becomes the prompt, in the templates' order: the tools, then the prompt or the
// messages, split into text and parts of other modalities. The closing quote or brackets of the prompt are left out:
// they move as a conversation grows.
func (r *Request) Pieces() iter.Seq2[Modality, []byte] {
	return func(yield func(Modality, []byte) bool) {
		if r.Endpoint != Chat {
			prompt, _ := r.Field("prompt")
			yield(Text, openEnded(prompt))
			return
		}
		for _, name := range []string{"tools", "functions"} {
			if offered, ok := r.Field(name); ok && !yield(Text, offered) {
				return
			}
		}
		at, end := r.messages()
		for _, m := range r.media {
			if !yield(Text, r.Raw[at:m.where.start]) || !yield(m.modality, r.Raw[m.where.start:m.where.end]) {
				return
			}
			at = m.where.end
		}
		yield(Text, openEnded(r.Raw[at:end]))
	}
}

// messages is where the messages begin and end in Raw.
func (r *Request) messages() (start, end int) {
	for i := range r.members {
		if m := &r.members[i]; string(m.name) == "messages" {
			return m.value.start, m.value.end
		}
	}
	return 0, 0
}

// openEnded returns the end of a JSON value without an array's closing bracket or a string's closing quote.
func openEnded(value []byte) []byte {
	if v, ok := bytes.CutSuffix(value, []byte("]")); ok {
		value = bytes.TrimRight(v, " \t\r\n")
	}
	value, _ = bytes.CutSuffix(value, []byte(`"`))
	return value
}
