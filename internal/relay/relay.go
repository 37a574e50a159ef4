// Package relay moves an engine's event stream to a client. It is handed the upstream's bytes, the client's sink and
// a tap that sees each event; which connections lie behind the two ends is not its business, so that a loop of our
// own over raw sockets can take a goroutine's place behind the same call.
package relay

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/tandem-pd/tandem/internal/openai"
)

// Writer is the client's end. Write copies p and waits while the client is slow.
type Writer interface {
	Write(p []byte) error
}

// Tap sees every event of a stream in order and appends to dst what the client is to get for it: ev.Raw for an event
// that passes as it came, nothing for one that is held back. Its error ends the stream.
type Tap interface {
	Event(dst []byte, ev openai.Event) ([]byte, error)
}

// WriteError is a failure of the client's end, as opposed to the engine's.
type WriteError struct{ Err error }

// Error says that the client's end failed.
func (e *WriteError) Error() string { return fmt.Sprintf("writing to the client: %v", e.Err) }

// Unwrap gives the sink's error.
func (e *WriteError) Unwrap() error { return e.Err }

// Stream relays src to dst until src ends, a tap's error or a failed write. All events that one read brought leave in
// one write, so that a burst stays a burst. It returns nil at the clean end of src, a *WriteError, the tap's error as
// it is, openai.ErrEventTooBig or openai.ErrEventCut, or src's error as it is. An end marker needs no blank line
// behind it: some engines end with it.
func Stream(src io.Reader, dst Writer, tap Tap) error {
	b := buffers.Get().(*buffer)
	defer b.release()
	for {
		n, err := src.Read(b.in)
		if n > 0 {
			if terr := b.pass(b.in[:n], dst, tap); terr != nil {
				return terr
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			if ev, ok := b.split.Rest(); ok && ev.Done() {
				return b.last(ev, dst, tap)
			}
			return b.split.End()
		default:
			return err
		}
	}
}

// buffer is what one stream needs; they are pooled, since a gateway opens thousands of short streams a second.
type buffer struct {
	in    []byte
	out   []byte
	split *openai.Splitter
}

// readBytes is the size of one read. A lone token's event is about 250 B, a burst of sixty fits.
const readBytes = 16 << 10

var buffers = sync.Pool{New: func() any {
	return &buffer{in: make([]byte, readBytes), split: openai.NewSplitter(maxEventBytes)}
}}

// maxEventBytes bounds one event: a token with the log-probabilities of many alternatives is a few KB.
const maxEventBytes = 8 << 20

func (b *buffer) release() {
	b.split.Reset()
	if cap(b.out) > 4*readBytes {
		b.out = nil
	}
	b.out = b.out[:0]
	buffers.Put(b)
}

// pass feeds one read's bytes through the tap and writes what it made of them. What the tap appended before an error
// is written first: the client gets every event up to the one that failed.
func (b *buffer) pass(p []byte, dst Writer, tap Tap) error {
	b.out = b.out[:0]
	b.split.Write(p)
	var failed error
	for failed == nil {
		ev, ok := b.split.Next()
		if !ok {
			failed = b.split.Err()
			break
		}
		b.out, failed = tap.Event(b.out, ev)
	}
	return b.write(dst, failed)
}

// last feeds the event that src's end has cut off through the tap.
func (b *buffer) last(ev openai.Event, dst Writer, tap Tap) error {
	out, failed := tap.Event(b.out[:0], ev)
	b.out = out
	return b.write(dst, failed)
}

// write sends what the tap made, and returns failed unless that fails.
func (b *buffer) write(dst Writer, failed error) error {
	if len(b.out) > 0 {
		if err := dst.Write(b.out); err != nil {
			return &WriteError{Err: err}
		}
	}
	return failed
}
