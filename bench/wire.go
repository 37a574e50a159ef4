package main

import (
	"bytes"
	"errors"
	"strconv"
)

// What both the engines and the client need of HTTP/1.1: as little as does for
// messages that one of us wrote, since a whole HTTP library here would cost more
// than what is measured.

var (
	headEnd   = []byte("\r\n\r\n")
	streamEnd = []byte("\r\n0\r\n\r\n")
	eventMark = []byte("data: ")
	okStatus  = []byte("HTTP/1.1 200")
	doneEvent = []byte("data: [DONE]")
	kvKey     = []byte(`"kv_transfer_params":`)
)

var errMessage = errors.New("the message is not HTTP that the bench understands")

// appendRequest renders a POST of the body in two parts.
func appendRequest(dst []byte, path, host string, parts ...[]byte) []byte {
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

// message finds a message with a Content-Length at the beginning of b: its
// head, its body and how many bytes it takes in all, which is 0 while it is not
// whole. Without a Content-Length it has no body.
func message(b []byte) (head, body []byte, size int, err error) {
	end := bytes.Index(b, headEnd)
	if end < 0 {
		return nil, nil, 0, nil
	}
	head = b[:end+len("\r\n")]
	from := end + len(headEnd)
	length := 0
	if v, ok := headerValue(head, "content-length"); ok {
		if length, err = strconv.Atoi(string(v)); err != nil || length < 0 {
			return nil, nil, 0, errMessage
		}
	} else if _, chunked := headerValue(head, "transfer-encoding"); chunked {
		return nil, nil, 0, errMessage
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

// number reads the digits behind a key, such as "max_tokens":.
func number(b []byte, key string) (int, bool) {
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

// kvParams is the hand-off object of prefill's answer: from its brace to the
// one that closes it. Nothing in our engine's own object has a brace in a
// string.
func kvParams(answer []byte) ([]byte, bool) {
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
