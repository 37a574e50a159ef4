package openai

import (
	"bytes"
	"iter"
)

// Modality is what a piece of a prompt holds.
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

// modalityOf names the modality of a part by its type: image_url, input_audio, video_url and what else engines have.
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

// Pieces yields the raw JSON of what becomes the prompt, in the order that templates have it: the tools, then the
// prompt or the messages, cut into text and parts of other modalities. What closes the prompt's string or arrays is
// left out: it is elsewhere once a conversation has grown.
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

// openEnded returns the end of a JSON value without what closes it: the bracket of an array, and the quote of a
// string.
func openEnded(value []byte) []byte {
	if v, ok := bytes.CutSuffix(value, []byte("]")); ok {
		value = bytes.TrimRight(v, " \t\r\n")
	}
	value, _ = bytes.CutSuffix(value, []byte(`"`))
	return value
}
