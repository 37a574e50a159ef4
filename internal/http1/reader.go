package http1

import (
	"bytes"
	"errors"
	"io"
)

// reader is the buffered reading side of one answer. It reads one buffer ahead at most, and never while it holds unread
// bytes: a slow reader slows the worker and takes no memory.
type reader struct {
	src  io.Reader
	try  Socket // reads do not wait; nil: they do
	page *Buf   // nil while nothing is buffered: idle connections and silent answers hold none
	buf  []byte
	r, w int  // buf[r:w] is read from src and not yet taken
	came bool // a byte was read
	over bool // nothing more is read
}

// pageBytes is one read's size, and the longest line of a head. A lone token's
// event is about 250 B; bodies with a length are read past the buffer.
const pageBytes = 8 << 10

func (b *reader) open(src io.Reader) {
	b.src, b.r, b.w, b.came, b.over = src, 0, 0, false, false
}

// release gives the buffer back, for good.
func (b *reader) release() {
	b.over = true
	b.drop()
}

// drop gives the buffer back.
func (b *reader) drop() {
	if b.page != nil {
		b.page.Release()
		b.page, b.buf, b.r, b.w = nil, nil, 0, 0
	}
}

// buffered returns the bytes that were read and not consumed.
func (b *reader) buffered() []byte { return b.buf[b.r:b.w] }

// fill reads once, after the buffered bytes. An end of src is unexpected here: a caller that allows it reads by itself.
func (b *reader) fill() error {
	if b.page == nil {
		b.page = Take(pageBytes)
		b.buf = b.page.B[:pageBytes]
	}
	if b.r > 0 {
		b.w = copy(b.buf, b.buf[b.r:b.w])
		b.r = 0
	}
	n, err := b.read(b.buf[b.w:])
	if n == 0 && b.w == 0 {
		b.drop() // while its reader waits, if it does
	}
	b.w += n
	if n > 0 {
		b.came = true
		return nil // an error with bytes is returned again by the next read
	}
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// read reads from src until there is a byte or an error.
func (b *reader) read(p []byte) (int, error) {
	if b.try != nil {
		return b.try.TryRead(p)
	}
	for range 100 {
		if n, err := b.src.Read(p); n > 0 || err != nil {
			return n, err
		}
	}
	return 0, io.ErrNoProgress
}

// hasLine reports whether a whole line is buffered.
func (b *reader) hasLine() bool { return bytes.IndexByte(b.buffered(), '\n') >= 0 }

// line returns a line of at most limit bytes without its CRLF, reading as needed. It is valid until the next read.
// limit is at most pageBytes.
func (b *reader) line(limit int) ([]byte, error) {
	for seen := 0; ; {
		have := b.buffered()
		if i := bytes.IndexByte(have[seen:], '\n'); i >= 0 {
			line := have[:seen+i]
			if len(line) >= limit {
				return nil, malformed("a line is too long")
			}
			b.r += len(line) + 1
			if len(line) == 0 || line[len(line)-1] != '\r' {
				return nil, malformed("a line does not end in CR LF")
			}
			return line[:len(line)-1], nil
		}
		if len(have) >= limit {
			return nil, malformed("a line is too long")
		}
		seen = len(have)
		if err := b.fill(); err != nil {
			return nil, err
		}
	}
}
