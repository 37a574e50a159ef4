package wire

import (
	"bytes"
	"fmt"
	"net"
)

// Reader reads the answers of one connection, into one buffer.
type Reader struct {
	conn net.Conn
	buf  []byte
}

// NewReader reads from the connection; size is the buffer's in bytes, and grows with whole answers.
func NewReader(c net.Conn, size int) *Reader { return &Reader{conn: c, buf: make([]byte, 0, size)} }

// Whole reads an answer with a Content-Length. Head and body are valid until the next call.
func (r *Reader) Whole() (head, body []byte, err error) {
	r.buf = r.buf[:0]
	for size := 0; size == 0; {
		if err = r.more(); err == nil {
			head, body, size, err = Message(r.buf)
		}
		if err != nil {
			return nil, nil, err
		}
	}
	if !bytes.HasPrefix(head, OKStatus) {
		return nil, nil, fmt.Errorf("answered with %.40q", head)
	}
	return head, body, nil
}

// Stream reads a streamed answer to its end and returns how many events it had
// before [DONE]. It calls first, unless that is nil, as soon as one is there. It
// relies on events without an empty chunk's bytes in them, as the engines' are.
func (r *Reader) Stream(first func()) (events int, err error) {
	const tail = 16 // at least as long as each mark
	r.buf = r.buf[:0]
	status, done := false, false
	for {
		seen := len(r.buf)
		if err := r.more(); err != nil {
			return events, err
		}
		if !status && len(r.buf) >= len(OKStatus) {
			if status = bytes.HasPrefix(r.buf, OKStatus); !status {
				return 0, fmt.Errorf("answered with %.200q", r.buf)
			}
		}
		n := bytes.Count(r.buf[max(0, seen-len(EventMark)+1):], EventMark)
		if events == 0 && n > 0 && first != nil {
			first()
		}
		events += n
		done = done || bytes.Contains(r.buf[max(0, seen-len(DoneEvent)+1):], DoneEvent)
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
func (r *Reader) more() error {
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
