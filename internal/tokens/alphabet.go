package tokens

import (
	"fmt"
	"strconv"
	"strings"
)

// byteChars is the alphabet of byte-level BPE: the character of each byte in a vocabulary. Printable bytes are
// themselves, the others U+0100 and up.
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

// byteToken returns the token that a vocabulary has for a byte.
func (t *Tokenizer) byteToken(b byte) string {
	if t.sentence != nil {
		return fmt.Sprintf("<0x%02X>", b)
	}
	return string(byteChars[b])
}

func (t *Tokenizer) byteOf(token string) (byte, bool) {
	if len(token) != len("<0x00>") {
		return 0, false
	}
	b, err := strconv.ParseUint(token[3:5], 16, 8)
	return byte(b), err == nil && token == t.byteToken(byte(b))
}

// appendBytes appends the decoded token: the bytes of its characters, or the token itself if it has others.
// SentencePiece's are themselves with spaces for ▁, except byte tokens.
func (t *Tokenizer) appendBytes(dst []byte, token string) []byte {
	if t.sentence != nil {
		if b, ok := t.byteOf(token); ok {
			return append(dst, b)
		}
		return append(dst, strings.ReplaceAll(token, spaceMark, " ")...)
	}
	if !isByteLevel(token) {
		return append(dst, token...)
	}
	for _, c := range token {
		dst = append(dst, byte(charBytes[c]-1))
	}
	return dst
}

// isByteLevel reports whether every character of the token is a byte's.
func isByteLevel(token string) bool {
	for _, c := range token {
		if int(c) >= len(charBytes) || charBytes[c] == 0 {
			return false
		}
	}
	return token != ""
}
