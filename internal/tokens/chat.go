package tokens

import (
	"unsafe"
)

// The markers of ChatML.
const (
	imStart = "<|im_start|>"
	imEnd   = "<|im_end|>"

	generationRole = "assistant"
)

// Message is one message of a conversation. Role is written as it is; the empty role is legal and renders as nothing.
type Message struct{ Role, Content string }

// EncodeChat appends the ids of the conversation as the simulated model's template renders it: for each message
//
//	<|im_start|>role
//	content<|im_end|>
//
// with a line break after each, and then the beginning of the assistant's answer. Gateway and engine both use it. Only
// the template's own markers become special tokens: one in a role or content is plain text. A vocabulary without
// ChatML's markers gets them as plain text.
func (t *Tokenizer) EncodeChat(dst []uint32, ms []Message) []uint32 {
	return t.encodeChat(dst, ms, t.EncodeText)
}

// maxKeptBody bounds, in bytes, the buffers that are kept.
const maxKeptBody = 1 << 20

func (t *Tokenizer) encodeChat(dst []uint32, ms []Message, plain func(dst []uint32, text string) []uint32) []uint32 {
	body := bodies.Get().(*[]byte)
	for _, m := range ms {
		dst = t.appendMarker(dst, imStart)
		*body = m.appendBody((*body)[:0])
		// The string is read before the buffer is written again, and not retained.
		dst = plain(dst, unsafe.String(unsafe.SliceData(*body), len(*body)))
		dst = t.appendMarker(dst, imEnd)
		dst = t.EncodeText(dst, "\n")
	}
	if cap(*body) <= maxKeptBody {
		bodies.Put(body)
	}
	dst = t.appendMarker(dst, imStart)
	return t.EncodeText(dst, generationRole+"\n")
}

func (t *Tokenizer) appendMarker(dst []uint32, marker string) []uint32 {
	if id, ok := t.ids[marker]; ok {
		return append(dst, id)
	}
	return t.EncodeText(dst, marker)
}

// appendBody appends the text between a message's markers.
func (m Message) appendBody(dst []byte) []byte {
	dst = append(dst, m.Role...)
	dst = append(dst, '\n')
	return append(dst, m.Content...)
}
