package testkit

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"strconv"
)

var (
	headEnd = []byte("\r\n\r\n")
	kvKey   = []byte(`"kv_transfer_params":`)

	// StreamEnd is the end of a chunked body. No event of the engines has it.
	StreamEnd = []byte("\r\n0\r\n\r\n")
	// eventMark is in front of each event.
	eventMark = []byte("data: ")
	// okStatus is how a good answer begins, and doneEvent its last event.
	okStatus  = []byte("HTTP/1.1 200")
	doneEvent = []byte("data: [DONE]")
)

// ChatPath is the path of every request.
const ChatPath = "/v1/chat/completions"

// PrefillFields turn a body without its last brace into the prefill leg's, as handoff's NIXL connector does.
const PrefillFields = `,"stream":false,"max_tokens":1,"ignore_eos":true,"kv_transfer_params":{"do_remote_decode":true,` +
	`"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,"remote_host":null,"remote_port":null}}`

// ErrMessage is a message that is not HTTP, or more of it than is understood here.
var ErrMessage = errors.New("the message is not HTTP that is understood here")

// AppendRequest appends a POST whose body is the parts one after another.
func AppendRequest(dst []byte, path, host string, parts ...[]byte) []byte {
	length := 0
	for _, p := range parts {
		length += len(p)
	}
	dst = append(dst, "POST "...)
	dst = append(dst, path...)
	dst = append(dst, " HTTP/1.1\r\nHost: "...)
	dst = append(dst, host...)
	dst = append(dst, "\r\nContent-Type: application/json\r\nContent-Length: "...)
	dst = strconv.AppendInt(dst, int64(length), 10)
	dst = append(dst, headEnd...)
	for _, p := range parts {
		dst = append(dst, p...)
	}
	return dst
}

// ParseMessage finds a message with a Content-Length at the beginning of b: its head, its body and how many bytes it takes
// in all, which is 0 while it is not whole. Without a Content-Length it has no body.
func ParseMessage(b []byte) (head, body []byte, size int, err error) {
	end := bytes.Index(b, headEnd)
	if end < 0 {
		return nil, nil, 0, nil
	}
	head = b[:end+len("\r\n")]
	from := end + len(headEnd)
	length := 0
	if v, ok := headerValue(head, "content-length"); ok {
		if length, err = strconv.Atoi(string(v)); err != nil || length < 0 {
			return nil, nil, 0, ErrMessage
		}
	} else if _, chunked := headerValue(head, "transfer-encoding"); chunked {
		return nil, nil, 0, ErrMessage
	}
	if len(b) < from+length {
		return nil, nil, 0, nil
	}
	return head, b[from : from+length], from + length, nil
}

// headerValue finds a header of the head; name is in lower case.
func headerValue(head []byte, name string) ([]byte, bool) {
	for len(head) > 0 {
		line, rest, _ := bytes.Cut(head, []byte("\r\n"))
		if len(line) > len(name) && line[len(name)] == ':' && bytes.EqualFold(line[:len(name)], []byte(name)) {
			return bytes.TrimSpace(line[len(name)+1:]), true
		}
		head = rest
	}
	return nil, false
}

// numberAfter reads the digits behind a key, such as "max_tokens":.
func numberAfter(b []byte, key string) (int, bool) {
	_, rest, ok := bytes.Cut(b, []byte(key))
	if !ok {
		return 0, false
	}
	rest = bytes.TrimLeft(rest, " ")
	digits := 0
	for digits < len(rest) && rest[digits] >= '0' && rest[digits] <= '9' {
		digits++
	}
	n, err := strconv.Atoi(string(rest[:digits]))
	return n, err == nil
}

// AppendDecode appends the decode leg's request: the body without its last
// brace, and the hand-off that prefill answered.
func AppendDecode(dst, body, params []byte) []byte {
	return AppendRequest(dst, ChatPath, "decode", body, []byte(","), kvKey, params, []byte("}"))
}

// KVParams is the hand-off object of prefill's answer: from its brace to the one that closes it. Nothing in our
// engine's own object has a brace in a string.
func KVParams(answer []byte) ([]byte, bool) {
	_, rest, ok := bytes.Cut(answer, kvKey)
	if !ok || len(rest) == 0 || rest[0] != '{' {
		return nil, false
	}
	depth := 0
	for i, c := range rest {
		switch c {
		case '{':
			depth++
		case '}':
			if depth--; depth == 0 {
				return rest[:i+1], true
			}
		}
	}
	return nil, false
}

// AnswerReader reads the answers of one connection, into one buffer.
type AnswerReader struct {
	conn net.Conn
	buf  []byte
}

// NewAnswerReader reads from the connection; size is the buffer's in bytes, and grows with whole answers.
func NewAnswerReader(c net.Conn, size int) *AnswerReader {
	return &AnswerReader{conn: c, buf: make([]byte, 0, size)}
}

// Whole reads an answer with a Content-Length. Head and body are valid until the next call.
func (r *AnswerReader) Whole() (head, body []byte, err error) {
	r.buf = r.buf[:0]
	for size := 0; size == 0; {
		if err = r.more(); err == nil {
			head, body, size, err = ParseMessage(r.buf)
		}
		if err != nil {
			return nil, nil, err
		}
	}
	if !bytes.HasPrefix(head, okStatus) {
		return nil, nil, fmt.Errorf("answered with %.40q", head)
	}
	return head, body, nil
}

// Stream reads a streamed answer to its end and returns how many events it had
// before [DONE]. It calls first, unless that is nil, as soon as one is there. It
// relies on events without an empty chunk's bytes in them, as the engines' are.
func (r *AnswerReader) Stream(first func()) (events int, err error) {
	const tail = 16 // at least as long as each mark
	r.buf = r.buf[:0]
	status, done := false, false
	for {
		seen := len(r.buf)
		if err := r.more(); err != nil {
			return events, err
		}
		if !status && len(r.buf) >= len(okStatus) {
			if status = bytes.HasPrefix(r.buf, okStatus); !status {
				return 0, fmt.Errorf("answered with %.200q", r.buf)
			}
		}
		n := bytes.Count(r.buf[max(0, seen-len(eventMark)+1):], eventMark)
		if events == 0 && n > 0 && first != nil {
			first()
		}
		events += n
		done = done || bytes.Contains(r.buf[max(0, seen-len(doneEvent)+1):], doneEvent)
		switch {
		case !bytes.HasSuffix(r.buf, StreamEnd):
		case !done:
			return events, fmt.Errorf("the answer ends after %d events without [DONE]", events)
		default:
			return events - 1, nil
		}
		if status && len(r.buf) > tail {
			r.buf = r.buf[:copy(r.buf, r.buf[len(r.buf)-tail:])]
		}
	}
}

// more appends available bytes to the buffer.
func (r *AnswerReader) more() error {
	if len(r.buf) == cap(r.buf) {
		r.buf = append(r.buf, 0)[:len(r.buf)]
	}
	n, err := r.conn.Read(r.buf[len(r.buf):cap(r.buf)])
	r.buf = r.buf[:len(r.buf)+n]
	if n > 0 {
		return nil
	}
	return err
}
