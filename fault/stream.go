package fault

import (
	"bytes"
	"math/rand/v2"
	"strings"

	"github.com/tandem-pd/tandem/internal/http1"
)

// meter lets the first part of an answer pass and finds its end: after a number of events, or of bytes. It holds
// only a count, so that it can follow an answer through any number of reads.
type meter struct {
	left    int  // still to pass
	events  bool // left counts events, each ending in a blank line; else bytes
	newline bool // the byte before ended a line
}

// wholeBytes is how much of an answer that is no event stream passes before a
// fault that counts events: enough to begin a JSON object, too little for one.
const wholeBytes = 12

// newMeter passes n events of a stream. Any other answer is one piece, of which wholeBytes pass.
func newMeter(s http1.Stream, n int) meter {
	if strings.HasPrefix(s.ContentType(), "text/event-stream") {
		return meter{left: n, events: true}
	}
	return meter{left: wholeBytes}
}

// take returns how many bytes of p pass.
func (m *meter) take(p []byte) int {
	if !m.events {
		n := min(m.left, len(p))
		m.left -= n
		return n
	}
	for i, c := range p {
		if m.left == 0 {
			return i
		}
		switch {
		case c == '\n' && m.newline:
			m.left, m.newline = m.left-1, false
		case c == '\n':
			m.newline = true
		case c != '\r':
			m.newline = false
		}
	}
	return len(p)
}

// cut is a stream whose reads pass up to a point and are another's after it.
type cut struct {
	http1.Stream
	meter
	after func(p []byte) (int, error)
	rest  []byte // came with the last read before the cut, and lies past it
}

// Read passes the answer on up to the cut. An answer that ends before it ends as it would have.
func (c *cut) Read(p []byte) (int, error) {
	if c.left == 0 {
		return c.after(p)
	}
	n, err := c.Stream.Read(p)
	k := c.take(p[:n])
	if c.left > 0 {
		return k, err
	}
	c.rest = append(c.rest, p[k:n]...)
	return k, nil // the next read decides on the rest
}

// resume reads on past the cut.
func (c *cut) resume(p []byte) (int, error) {
	if len(c.rest) > 0 {
		n := copy(p, c.rest)
		c.rest = c.rest[n:]
		return n, nil
	}
	return c.Stream.Read(p)
}

// canned is an answer that no worker gave.
type canned struct {
	*bytes.Reader
	status      int
	contentType string
}

// newCanned makes an answer of text.
func newCanned(status int, contentType, text string) *canned {
	return &canned{Reader: bytes.NewReader([]byte(text)), status: status, contentType: contentType}
}

func (c *canned) Status() int         { return c.status }
func (c *canned) ContentType() string { return c.contentType }
func (c *canned) Close() error        { return nil }

func pick[T any](rng *rand.Rand, choices ...T) T { return choices[rng.IntN(len(choices))] }
