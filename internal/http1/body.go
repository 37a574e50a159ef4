package http1

import (
	"bytes"
	"errors"
	"io"
)

// body reads an answer's body. A read returns the bytes at hand: it waits for the first byte, never for another one.
type body struct {
	reader
	framing framing
	at      place
	left    int64 // bytes to come, of a sized body or of a chunk
	excess  int64 // bytes of a chunked body that carry nothing
	lines   int   // of the trailer
	err     error // the end, once it was met
}

// place is where in a chunked body the next byte belongs.
type place uint8

const (
	atSize place = iota
	atData
	atDataEnd
	atTrailer
)

// Bounds of a chunked body's framing; net/http's are wider.
const (
	maxChunkLine  = 256 // bounds the line of a chunk's size, extensions included
	maxSizeDigits = 15  // bounds a chunk's size to 2^60
	// maxExcess bounds the chunks' lines beyond 16 bytes a chunk and twice its data: short chunks are legitimate, long
	// extensions are not.
	maxExcess       = 4 << 10
	maxTrailerLine  = 256 // of trailers, which are skipped
	maxTrailerLines = 8
)

// begin makes ready to read the body that follows h.
func (b *body) begin(h head) {
	b.framing, b.left = h.framing, h.length
	if h.framing == sized && h.length == 0 {
		b.err = io.EOF
	}
}

// Read gives io.EOF at the body's end, with the last bytes where it can.
func (b *body) Read(p []byte) (n int, err error) {
	if b.err != nil || len(p) == 0 {
		return 0, b.err
	}
	if b.framing == chunked {
		n, b.err = b.readChunks(p)
	} else {
		n, b.err = b.readPlain(p)
	}
	if b.err == ErrWouldBlock { //nolint:errorlint // it is never wrapped
		b.err = nil
		return n, ErrWouldBlock
	}
	return n, b.err
}

// tryRead is Read without waiting: its error is [ErrWouldBlock] if nothing is at hand.
func (b *body) tryRead(s Socket, p []byte) (int, error) {
	b.try = s
	defer func() { b.try = nil }()
	return b.Read(p)
}

// readPlain reads a body that is its bytes and nothing else, past the buffer once that is empty.
func (b *body) readPlain(p []byte) (n int, err error) {
	if b.framing == sized && int64(len(p)) > b.left {
		p = p[:b.left]
	}
	if have := b.buffered(); len(have) > 0 {
		n = copy(p, have)
		b.r += n
	} else {
		n, err = b.read(p)
	}
	if b.framing == untilClose {
		return n, err
	}
	b.left -= int64(n)
	switch {
	case b.left == 0:
		return n, io.EOF
	case errors.Is(err, io.EOF):
		return n, io.ErrUnexpectedEOF
	default:
		return n, err
	}
}

// readChunks takes the data out of all chunks that are buffered, and reads only while it has none.
func (b *body) readChunks(p []byte) (n int, err error) {
	for {
		switch b.at {
		case atSize:
			if n > 0 && !b.hasLine() {
				return n, nil
			}
			err = b.chunkSize()
		case atData:
			if n == len(p) {
				return n, nil
			}
			have := b.buffered()
			if len(have) == 0 {
				if n > 0 {
					return n, nil
				}
				err = b.fill()
				break
			}
			k := copy(p[n:], have[:min(int64(len(have)), b.left)])
			n, b.r, b.left = n+k, b.r+k, b.left-int64(k)
			if b.left == 0 {
				b.at = atDataEnd
			}
		case atDataEnd:
			have := b.buffered()
			if len(have) >= 2 {
				b.r, b.at = b.r+2, atSize
				if have[0] != '\r' || have[1] != '\n' {
					err = malformed("a chunk is longer than its size")
				}
				break
			}
			if n > 0 {
				return n, nil
			}
			err = b.fill()
		case atTrailer:
			if n > 0 && !b.hasLine() {
				return n, nil
			}
			err = b.trailer()
		}
		if err != nil {
			return n, err
		}
	}
}

// chunkSize reads the line before a chunk's data.
func (b *body) chunkSize() error {
	line, err := b.line(maxChunkLine)
	if err != nil {
		return err
	}
	size, digits := int64(0), 0
	for ; digits < len(line); digits++ {
		v := hexValue(line[digits])
		if v < 0 {
			break
		}
		size = size<<4 | int64(v)
		if digits == maxSizeDigits {
			return malformed("a chunk's size is out of bounds")
		}
	}
	// Some servers pad the size with blanks, which net/http takes as well.
	rest := bytes.TrimRight(line[digits:], " \t")
	if digits == 0 || len(rest) > 0 && (rest[0] != ';' || !Printable(rest)) {
		return malformed("a chunk's size is not a hexadecimal number")
	}
	if b.excess = max(0, b.excess+int64(len(line))+4-16-2*size); b.excess > maxExcess {
		return malformed("its chunks hold too much that is no data")
	}
	b.left, b.at = size, atData
	if size == 0 {
		b.at = atTrailer
	}
	return nil
}

// trailer skips one line after the last chunk; the empty one is the end.
func (b *body) trailer() error {
	line, err := b.line(maxTrailerLine)
	if err != nil {
		return err
	}
	if len(line) == 0 {
		return io.EOF
	}
	if b.lines++; b.lines > maxTrailerLines {
		return malformed("its trailer is too long")
	}
	if name, _, ok := bytes.Cut(line, []byte{':'}); !ok || !isToken(name) || !Printable(line) {
		return malformed("its trailer is no header")
	}
	return nil
}

// hexValue is a hexadecimal digit's value, negative for any other character.
func hexValue(c byte) int {
	switch {
	case '0' <= c && c <= '9':
		return int(c - '0')
	case 'a' <= c && c <= 'f':
		return int(c-'a') + 10
	case 'A' <= c && c <= 'F':
		return int(c-'A') + 10
	}
	return -1
}
