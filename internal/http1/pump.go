package http1

import (
	"errors"

	"github.com/tandem-pd/tandem/internal/openai"
)

// pump is a stream between two sockets of loops. It belongs to one goroutine at a time: the caller's, or, between
// step's arming and its next call, the loop's. The owner reads all bytes at hand, writes as far as there is room, and
// registers a callback with the end it waits for.
type pump struct {
	Refs
	from Source
	to   Sink
	tap  Tap
	b    *buffer // nil while it holds no bytes
	over chan struct{}

	longer func(n int) bool

	again  func()       // step, as the ends are given it
	slow   bool         // the client has yet to take something
	ended  error        // why the loop's part is over
	held   openai.Event // the event for which the tap would have to wait
	holds  bool
	reader error // the last error of src
}

// pumps have one holder: a finished stream has no pending callback, since step registers one at a time.
var pumps Pool[pump, *pump]

// Reset implements [Pooled].
func (p *pump) Reset() { *p = pump{Refs: p.Refs, over: p.over, again: p.again} }

// relay is the caller's part: it sleeps while the loop relays, and does what may block.
func (p *pump) relay() error {
	for {
		p.step()
		<-p.over
		if p.b == nil {
			p.b = takeBuffer(p.longer)
		}
		failed := p.ended
		if p.holds {
			p.holds = false
			if p.b.out, failed = p.tap.Event(p.b.out, p.held, true); failed == nil {
				failed = p.b.rest(p.tap)
			}
		}
		if failed == nil && p.reader != nil {
			return p.b.end(p.reader, p.to, p.tap)
		}
		if err := p.b.write(p.to.Write); err != nil {
			return err
		}
		if failed != nil {
			return failed
		}
	}
}

// mostReads is how many reads in a row the loop makes for one stream. The caller continues with one that has more: the
// scheduler shares its time with the loop, which serves other connections.
const mostReads = 4

// step relays the bytes at hand, and registers itself for more. It never waits, and is bounded.
func (p *pump) step() {
	for reads := 0; ; {
		if p.slow {
			err := p.to.TryFlush()
			switch {
			case errors.Is(err, ErrWouldBlock):
				if p.to.OnWritable(p.again) {
					return
				}
				continue
			case err != nil:
				p.end(&WriteError{Err: err})
				return
			}
			p.slow = false
		}
		if reads++; reads > mostReads {
			p.end(nil)
			return
		}
		if p.b == nil {
			p.b = takeBuffer(p.longer)
		}
		n, err := p.from.TryRead(p.b.in)
		if n == 0 && errors.Is(err, ErrWouldBlock) {
			if p.b.split.Idle() {
				p.b.Release()
				p.b = nil
			}
			if p.from.OnReadable(p.again) {
				return
			}
			continue
		}
		if !errors.Is(err, ErrWouldBlock) {
			p.reader = err
		}
		if !p.pass(n) {
			return
		}
	}
}

// pass feeds n bytes through the tap, and writes its output. It reports false when the caller has to continue.
func (p *pump) pass(n int) bool {
	var failed error
	if n > 0 {
		p.b.split.Write(p.b.in[:n])
	}
	for failed == nil && n > 0 {
		ev, ok := p.b.split.Next()
		if !ok {
			failed = p.b.split.Err()
			break
		}
		if p.b.out, failed = p.tap.Event(p.b.out, ev, false); failed == ErrWaits { //nolint:errorlint // it is never wrapped
			p.held, p.holds = ev, true
		}
	}
	if p.holds || failed != nil || p.reader != nil { // and the output leaves with the rest
		p.end(failed)
		return false
	}
	err := p.to.TryWrite(p.b.out)
	p.b.out = p.b.out[:0]
	switch {
	case errors.Is(err, ErrWouldBlock):
		p.slow = true
	case err != nil:
		p.end(&WriteError{Err: err})
		return false
	}
	return true
}

// end gives the stream back to the caller.
func (p *pump) end(why error) {
	p.ended = why
	p.over <- struct{}{}
}
