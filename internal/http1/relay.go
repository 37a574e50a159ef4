package http1

import (
	"errors"
	"fmt"
	"io"

	"github.com/tandem-pd/tandem/internal/openai"
)

// Sink sends an answer to a client.
type Sink interface {
	// Start sets status 200 and the content type, at most once and before any Write.
	Start(contentType string)
	// Write copies p and waits while the client is slow. It fails once the client is gone or the call's context has
	// ended.
	Write(p []byte) error
	// Last is Write for the answer's last bytes, which may be sent together with its end.
	Last(p []byte) error

	// Polls reports whether a loop may write to the client, by the methods below, which do not wait; see [Socket].
	Polls() bool
	// TryWrite accepts p whole; its error is [ErrWouldBlock] while a part is unsent, and TryFlush sends more.
	TryWrite(p []byte) error
	TryFlush() error
	OnWritable(f func()) bool
}

// Source is an engine's side with reads that do not wait; see [Socket]. Polls reports whether they are available.
type Source interface {
	io.Reader
	Polls() bool
	TryRead(p []byte) (int, error)
	OnReadable(f func()) bool
}

// Tap sees every event of a stream in order and appends the client's bytes to dst: ev.Raw for an unchanged event,
// nothing for one that is held back. Its error ends the stream. Where it may not wait but must, it returns ErrWaits,
// and is called again for the same event where it may.
type Tap interface {
	Event(dst []byte, ev openai.Event, mayWait bool) ([]byte, error)
}

// ErrWaits is a tap's, which would have to wait.
var ErrWaits = errors.New("the tap would have to wait")

// WriteError is a failure of the client's end, as opposed to the engine's.
type WriteError struct{ Err error }

// Error reports the client side's failure.
func (e *WriteError) Error() string { return fmt.Sprintf("writing to the client: %v", e.Err) }

// Unwrap gives the sink's error.
func (e *WriteError) Unwrap() error { return e.Err }

// Relay relays src to dst until src ends, the tap fails or a write fails. All events of one read leave in one write,
// so that a burst stays a burst. It returns nil at the clean end of src, a *WriteError, the tap's or src's error
// unchanged, openai.ErrEventTooBig or openai.ErrEventCut. An end marker needs no blank line after it: some engines omit
// it. longer is the splitter's of events of more than 8 MiB; see openai.Splitter.
func Relay(src io.Reader, dst Sink, tap Tap, longer func(n int) bool) error {
	from, ok := src.(Source)
	if !ok || !from.Polls() || !dst.Polls() {
		return relayWaiting(src, dst, tap, longer)
	}
	p := pumps.Take()
	if p.over == nil {
		p.over, p.again = make(chan struct{}, 1), p.step
	}
	p.from, p.to, p.tap, p.longer, p.b = from, dst, tap, longer, takeBuffer(longer)
	err := p.relay()
	p.b.Release()
	p.Release()
	return err
}

// relayWaiting relays on the caller's goroutine, for connections that no loop keeps: TLS, pipes, systems without epoll.
func relayWaiting(src io.Reader, dst Sink, tap Tap, longer func(n int) bool) error {
	b := takeBuffer(longer)
	defer b.Release()
	for {
		n, err := src.Read(b.in)
		b.split.Write(b.in[:n])
		failed := b.rest(tap) // its output before an error is sent all the same
		if failed == nil && err != nil {
			return b.end(err, dst, tap)
		}
		if err := b.write(dst.Write); err != nil {
			return err
		}
		if failed != nil {
			return failed
		}
	}
}

// buffer is the memory of one stream while it holds bytes.
type buffer struct {
	Refs
	in    []byte
	out   []byte
	split *openai.Splitter
}

// readBytes is the size of one read. A lone token's event is about 250 B, a burst of sixty fits.
const readBytes = 16 << 10

var buffers Pool[buffer, *buffer]

// maxEventBytes bounds one event: a token with the log-probabilities of many alternatives is a few KB. The caller may
// allow longer ones.
const maxEventBytes = 8 << 20

func takeBuffer(longer func(n int) bool) *buffer {
	b := buffers.Take()
	if b.in == nil {
		b.in, b.split = make([]byte, readBytes), openai.NewSplitter(maxEventBytes)
	}
	b.split.Longer = longer
	return b
}

// Reset implements [Pooled].
func (b *buffer) Reset() {
	poison(b.in)
	b.split.Reset()
	b.split.Longer = nil
	if cap(b.out) > 4*readBytes {
		b.out = nil
	}
	b.out = b.out[:0]
}

// rest feeds the splitter's remainder through the tap.
func (b *buffer) rest(tap Tap) error {
	for {
		ev, ok := b.split.Next()
		if !ok {
			return b.split.Err()
		}
		var err error
		if b.out, err = tap.Event(b.out, ev, true); err != nil {
			return err
		}
	}
}

// end handles the end of src, and writes the rest.
func (b *buffer) end(err error, dst Sink, tap Tap) error {
	if errors.Is(err, io.EOF) {
		if ev, ok := b.split.Rest(); ok && ev.Done() {
			b.out, err = tap.Event(b.out, ev, true)
		} else {
			err = b.split.End()
		}
	}
	write := dst.Last
	if err != nil {
		write = dst.Write
	}
	if failed := b.write(write); failed != nil {
		return failed
	}
	return err
}

// write sends the tap's output.
func (b *buffer) write(send func([]byte) error) error {
	if len(b.out) == 0 {
		return nil
	}
	err := send(b.out)
	b.out = b.out[:0]
	if err != nil {
		return &WriteError{Err: err}
	}
	return nil
}
