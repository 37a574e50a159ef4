package http1

import (
	"bytes"
	"math"
)

// head is the part of a response header that the gateway uses.
type head struct {
	status      int
	contentType string
	framing     framing
	length      int64 // of a sized body
	keep        bool  // the connection may carry another call
}

// framing is how an answer's body ends.
type framing uint8

const (
	sized      framing = iota // after length bytes
	chunked                   // with the chunk of size 0
	untilClose                // with the connection
)

// Bounds of a head with informational ones before it: engines send a few hundred bytes in ten lines.
const (
	maxHeadBytes = 64 << 10
	maxHeadLines = 100
)

// head reads an answer's head, past any informational ones (1xx), and is strict: every line ends in CR LF, nothing is
// folded, and a length that is given twice with two values, or with chunks, is an error. Where one side sees another
// end of an answer than the other, the next answer on the connection is not the next request's.
func (b *reader) head() (head, error) {
	lines, bytesLeft := maxHeadLines, maxHeadBytes
	next := func() ([]byte, error) {
		if lines--; lines < 0 {
			return nil, malformed("its head has too many lines")
		}
		line, err := b.line(min(pageBytes, bytesLeft))
		bytesLeft -= len(line) + 2
		return line, err
	}
	for {
		f := fields{length: -1}
		line, err := next()
		if err != nil {
			return head{}, err
		}
		if err := f.statusLine(line); err != nil {
			return head{}, err
		}
		for {
			line, err := next()
			if err != nil {
				return head{}, err
			}
			if len(line) == 0 {
				break
			}
			if err := f.field(line); err != nil {
				return head{}, err
			}
		}
		switch {
		case f.status >= 200:
			return f.head()
		case f.status == 101:
			return head{}, malformed("it switches protocols unasked")
		}
	}
}

// fields collects a head's fields.
type fields struct {
	minor       byte // of the version, 1.minor
	status      int
	contentType string
	typed       bool
	length      int64 // -1 while unknown
	lengthChars int   // as it was written: "5" and "05" are two lengths
	chunked     bool
	close       bool
	keepAlive   bool
}

// statusLine reads "HTTP/1.x NNN reason".
func (f *fields) statusLine(line []byte) error {
	const version = "HTTP/1."
	if len(line) < len(version)+5 || string(line[:len(version)]) != version || line[8] != ' ' || (line[7] != '0' && line[7] != '1') {
		return malformed("no status line of HTTP/1.0 or 1.1")
	}
	f.minor = line[7] - '0'
	for _, c := range line[9:12] {
		if c < '0' || c > '9' {
			return malformed("its status is not a number of three digits")
		}
		f.status = f.status*10 + int(c-'0')
	}
	if f.status < 100 || len(line) > 12 && line[12] != ' ' {
		return malformed("its status is not a number of three digits")
	}
	if !Printable(line[12:]) {
		return malformed("a control character in the status line")
	}
	return nil
}

// field reads "Name: value".
func (f *fields) field(line []byte) error {
	colon := bytes.IndexByte(line, ':')
	if colon <= 0 {
		return malformed("a header line without a name")
	}
	name, value := line[:colon], bytes.Trim(line[colon+1:], " \t")
	if !isToken(name) {
		return malformed("a header's name is not a token")
	}
	if !Printable(value) {
		return malformed("a control character in a header")
	}
	switch len(name) { // most names end here
	case len("Connection"):
		if is(name, "connection") {
			f.connection(value)
		}
	case len("Content-Type"):
		if is(name, "content-type") && !f.typed {
			f.contentType, f.typed = typeOf(value), true
		}
	case len("Content-Length"):
		if is(name, "content-length") {
			return f.contentLength(value)
		}
	case len("Transfer-Encoding"):
		if is(name, "transfer-encoding") {
			if f.chunked || f.minor == 0 || !is(value, "chunked") {
				return malformed("a transfer coding other than one chunked")
			}
			f.chunked = true
		}
	}
	return nil
}

// contentLength sets the length; a repeated equal one is valid.
func (f *fields) contentLength(value []byte) error {
	if len(value) == 0 {
		return malformed("its content length is not a number")
	}
	n := int64(0)
	for _, c := range value {
		if c < '0' || c > '9' || n > (math.MaxInt64-9)/10 {
			return malformed("its content length is not a number")
		}
		n = n*10 + int64(c-'0')
	}
	if f.length >= 0 && (f.length != n || f.lengthChars != len(value)) {
		return malformed("two different content lengths")
	}
	f.length, f.lengthChars = n, len(value)
	return nil
}

// connection notes the two options that matter.
func (f *fields) connection(value []byte) {
	for option := range bytes.SplitSeq(value, []byte{','}) {
		switch option = bytes.Trim(option, " \t"); {
		case is(option, "close"):
			f.close = true
		case is(option, "keep-alive"):
			f.keepAlive = true
		}
	}
}

// head concludes how the body ends and whether the connection lives on.
func (f *fields) head() (head, error) {
	h := head{status: f.status, contentType: f.contentType, keep: !f.close && (f.minor == 1 || f.keepAlive)}
	switch {
	case f.chunked && f.length >= 0:
		return head{}, malformed("a content length with chunks")
	case f.status == 204 || f.status == 304:
		h.keep = h.keep && !f.chunked && f.length <= 0 // a body may follow all the same
	case f.chunked:
		h.framing = chunked
	case f.length >= 0:
		h.length = f.length
	default:
		h.framing, h.keep = untilClose, false
	}
	return h, nil
}

// typeOf makes a string of a content type; the usual ones cost nothing.
func typeOf(value []byte) string {
	switch string(value) {
	case "application/json":
		return "application/json"
	case "text/event-stream":
		return "text/event-stream"
	case "text/event-stream; charset=utf-8":
		return "text/event-stream; charset=utf-8"
	}
	return string(value)
}

// is compares ignoring case; want is lower-case ASCII.
func is(value []byte, want string) bool {
	if len(value) != len(want) {
		return false
	}
	for i, c := range value {
		if 'A' <= c && c <= 'Z' {
			c += 'a' - 'A'
		}
		if c != want[i] {
			return false
		}
	}
	return true
}

// Printable reports whether text has no control character but the tab.
func Printable[T string | []byte](text T) bool {
	for i := range len(text) {
		if c := text[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// isToken reports whether a header may have such a name.
func isToken[T string | []byte](name T) bool {
	for i := range len(name) {
		if !tokenChars[name[i]] {
			return false
		}
	}
	return len(name) > 0
}

// tokenChars are the characters of a header's name (RFC 9110, 5.6.2).
var tokenChars = func() (set [256]bool) {
	for _, c := range "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" {
		set[c] = true
	}
	return set
}()
