package openai

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
)

// EventStream is the content type of a streamed answer, as vLLM, SGLang and TensorRT-LLM send it (Starlette appends the
// charset). Python's requests decodes text without a charset as Latin-1.
const EventStream = "text/event-stream; charset=utf-8"

// Done is the data of the event that ends an OpenAI stream.
const Done = "[DONE]"

var (
	// ErrEventTooBig: an event is longer than the splitter allows.
	ErrEventTooBig = errors.New("openai: server-sent event too big")
	// ErrEventCut: the stream ended in the middle of an event.
	ErrEventCut = errors.New("openai: stream ended in the middle of a server-sent event")
)

// Event is one server-sent event. Its slices are valid until the splitter's next call.
type Event struct {
	// Raw is the unchanged event with its final blank line. The concatenated Raws of a stream's events are the stream.
	Raw []byte
	// Data is the event's data lines joined by line feeds, nil without any: a comment, or a lone blank line.
	Data []byte
}

// Done reports whether the event ends an OpenAI stream.
func (e Event) Done() bool { return string(e.Data) == Done }

// Splitter splits a stream of server-sent events (WHATWG HTML, "Server-sent events") that arrives in any chunks. Lines
// end in LF, CR or CRLF. Write adds a chunk, Next returns its events:
//
//	s.Write(chunk)
//	for {
//		ev, ok := s.Next()
//		if !ok {
//			break
//		}
//		…
//	}
//	if err := s.Err(); err != nil { … }
//
// An event within one chunk is not copied. A CR at the end of a chunk ends its line at once; the LF of a CRLF that
// follows in the next chunk is part of the next event's Raw.
type Splitter struct {
	// Longer reports whether an event of n bytes, more than the splitter allows, may be held; nil allows none.
	Longer func(n int) bool

	maxBytes int
	chunk    []byte
	start    int    // where the event being looked for begins in chunk
	pos      int    // chunk was searched up to here
	held     []byte // the event's beginning, from earlier chunks
	joined   []byte // data of several lines
	ends     lineEnds
	spent    bool // held was handed out
	inLine   bool // the line at pos has begun
	afterCR  bool // an LF at pos belongs to the line before
	err      error
}

// NewSplitter returns a splitter for events of at most maxBytes bytes, their blank line included.
func NewSplitter(maxBytes int) *Splitter {
	return &Splitter{maxBytes: maxBytes}
}

// Reset makes the splitter ready for another stream.
func (s *Splitter) Reset() {
	*s = Splitter{maxBytes: s.maxBytes, held: s.held[:0], joined: s.joined}
	if cap(s.held)+cap(s.joined) > keptEvent {
		s.held, s.joined = nil, nil
	}
}

// Write hands over the stream's next chunk, once Next has returned false for the one before. The splitter reads it in
// place: it must not change until Next returns false.
func (s *Splitter) Write(chunk []byte) {
	s.chunk, s.start, s.pos, s.ends = chunk, 0, 0, noLineEnds
}

// Next returns the next complete event, or false when the chunk has no more or the splitter has failed (see Err).
func (s *Splitter) Next() (Event, bool) {
	if s.spent {
		s.held, s.spent = s.held[:0], false
	}
	if s.err != nil {
		return Event{}, false
	}
	for s.pos < len(s.chunk) {
		if s.afterCR {
			s.afterCR = false
			if s.chunk[s.pos] == '\n' {
				s.pos++
				continue
			}
		}
		end := s.ends.next(s.chunk, s.pos)
		if end == len(s.chunk) {
			s.inLine = true
			break
		}
		blank := end == s.pos && !s.inLine
		s.inLine = false
		s.pos = end + 1
		if s.chunk[s.pos-1] == '\r' {
			s.afterCR = s.pos == len(s.chunk)
			if !s.afterCR && s.chunk[s.pos] == '\n' {
				s.pos++
			}
		}
		if blank {
			return s.event()
		}
	}
	return s.hold()
}

// Err returns ErrEventTooBig, wrapped, once an event was too big.
func (s *Splitter) Err() error { return s.err }

// End returns the error of a stream that ends here: ErrEventCut, wrapped, in mid-event, or Err. Call it after Next has
// returned false.
func (s *Splitter) End() error {
	if s.err != nil {
		return s.err
	}
	if n := len(s.held); n > 1 || n == 1 && s.held[0] != '\n' {
		return fmt.Errorf("%w, after %d bytes of it", ErrEventCut, n)
	}
	return nil
}

// Idle reports whether the splitter holds nothing: the next byte begins an event. Call it after Next has returned
// false.
func (s *Splitter) Idle() bool {
	return len(s.held) == 0 && len(s.chunk) == 0 && !s.inLine && !s.afterCR && s.err == nil
}

// Rest returns the event that the stream's end cut off, if any, as though a blank line had ended it. Call it after Next
// has returned false, and nothing but Reset after it.
func (s *Splitter) Rest() (Event, bool) {
	if s.End() == nil || s.err != nil {
		return Event{}, false
	}
	if s.inLine {
		s.held = append(s.held, '\n')
	}
	s.held = append(s.held, '\n')
	return Event{Raw: s.held, Data: s.data(s.held)}, true
}

// event returns the event that ends at pos.
func (s *Splitter) event() (Event, bool) {
	raw := s.chunk[s.start:s.pos]
	s.start = s.pos
	if s.exceeds(len(s.held) + len(raw)) {
		return s.tooBig()
	}
	if len(s.held) > 0 {
		s.held = append(s.held, raw...)
		raw, s.spent = s.held, true
	}
	return Event{Raw: raw, Data: s.data(raw)}, true
}

// hold keeps the beginning of an incomplete event.
func (s *Splitter) hold() (Event, bool) {
	rest := s.chunk[s.start:]
	s.chunk, s.start, s.pos = nil, 0, 0
	if s.exceeds(len(s.held) + len(rest)) {
		return s.tooBig()
	}
	s.held = append(s.held, rest...)
	return Event{}, false
}

// keptEvent is the longest event, in bytes, whose memory Reset keeps.
const keptEvent = 1 << 20

// exceeds reports whether an event of n bytes is too big.
func (s *Splitter) exceeds(n int) bool { return n > s.maxBytes && (s.Longer == nil || !s.Longer(n)) }

func (s *Splitter) tooBig() (Event, bool) {
	s.err = fmt.Errorf("%w: more than %d bytes", ErrEventTooBig, s.maxBytes)
	s.held, s.chunk = nil, nil
	return Event{}, false
}

// data returns the event's data: a part of raw where it is one line.
func (s *Splitter) data(raw []byte) []byte {
	var data []byte
	lines := 0
	ends := noLineEnds
	for pos := 0; pos < len(raw); {
		end := ends.next(raw, pos)
		value, ok := dataField(raw[pos:end])
		pos = end + 1
		if !ok {
			continue
		}
		switch lines++; lines {
		case 1:
			data = value
			continue
		case 2:
			s.joined = append(s.joined[:0], data...)
		}
		s.joined = append(s.joined, '\n')
		s.joined = append(s.joined, value...)
		data = s.joined
	}
	return data
}

func dataField(line []byte) ([]byte, bool) {
	value, ok := bytes.CutPrefix(line, []byte("data"))
	if !ok {
		return nil, false
	}
	if len(value) == 0 {
		return value, true
	}
	if value[0] != ':' {
		return nil, false
	}
	value = value[1:]
	if len(value) > 0 && value[0] == ' ' {
		value = value[1:]
	}
	return value, true
}

// Events returns the data of each event of a whole stream, in order; comments have none. It fails if the stream ends
// within an event.
func Events(r io.Reader, maxBytes int) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		s, chunk := NewSplitter(maxBytes), make([]byte, 16<<10)
		for {
			n, err := r.Read(chunk)
			s.Write(chunk[:n])
			for ev, ok := s.Next(); ok; ev, ok = s.Next() {
				if ev.Data != nil && !yield(ev.Data, nil) {
					return
				}
			}
			switch {
			case s.Err() != nil:
				err = s.Err()
			case errors.Is(err, io.EOF):
				if err = s.End(); err == nil {
					return
				}
			}
			if err != nil {
				yield(nil, err)
				return
			}
		}
	}
}

// AppendEvent appends an event with this data to dst, with one data line for each line.
func AppendEvent(dst, data []byte) []byte {
	ends := noLineEnds
	for pos := 0; ; {
		end := ends.next(data, pos)
		dst = append(dst, "data: "...)
		dst = append(dst, data[pos:end]...)
		dst = append(dst, '\n')
		if end == len(data) {
			return append(dst, '\n')
		}
		pos = end + 1
		if data[end] == '\r' && pos < len(data) && data[pos] == '\n' {
			pos++
		}
	}
}

// lineEnds remembers where the next LF and the next CR are. So a text with only one of the two is not searched for
// the other at each line.
type lineEnds struct{ lf, cr int }

var noLineEnds = lineEnds{-1, -1}

// next returns the index of b's first LF or CR at or after pos, or len(b). From call to call pos must not go back.
func (e *lineEnds) next(b []byte, pos int) int {
	if e.lf < pos {
		e.lf = index(b, pos, '\n')
	}
	if e.cr < pos {
		e.cr = index(b, pos, '\r')
	}
	return min(e.lf, e.cr)
}

func index(b []byte, pos int, c byte) int {
	if i := bytes.IndexByte(b[pos:], c); i >= 0 {
		return pos + i
	}
	return len(b)
}
