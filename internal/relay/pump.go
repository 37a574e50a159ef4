package relay

import (
	"errors"
	"sync"

	"github.com/tandem-pd/tandem/internal/loop"
	"github.com/tandem-pd/tandem/internal/openai"
)

// pump is a stream between two ends of a loop. It belongs to one goroutine at a time: the caller's, or, between step's
// arming and its next call, the loop's. The owner reads until nothing is there, writes until the client takes no more, and
// leaves a function with the end that is waited for.
type pump struct {
	from Source
	to   Sink
	tap  Tap
	b    *buffer // nil while nothing is in hand
	over chan struct{}

	longer func(n int) bool

	again  func()       // step, as the ends are given it
	slow   bool         // the client has yet to take something
	ended  error        // why the loop's part is over
	held   openai.Event // the event for which the tap would have to wait
	holds  bool
	reader error // what src said last
}

// pumps are reused: nothing calls a pump whose stream is over, since step has itself called once at a time.
var pumps = sync.Pool{New: func() any {
	p := &pump{over: make(chan struct{}, 1)}
	p.again = p.step
	return p
}}

func (p *pump) release() {
	*p = pump{over: p.over, again: p.again}
	pumps.Put(p)
}

// relay is the caller's part: it sleeps while the loop relays, and does what may wait.
func (p *pump) relay() error {
	for {
		p.step()
		<-p.over
		if p.b == nil {
			p.b = take(p.longer)
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

// mostReads is how many reads in a row the loop makes for one stream. The caller goes on with one that brings more: the
// scheduler divides its time with the loop, which has others' connections to see to.
const mostReads = 4

// step relays what is there, and has itself called when there is more. It never waits, and comes to an end however much there
// is.
func (p *pump) step() {
	for reads := 0; ; {
		if p.slow {
			err := p.to.TryFlush()
			switch {
			case errors.Is(err, loop.ErrWouldBlock):
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
			p.b = take(p.longer)
		}
		n, err := p.from.TryRead(p.b.in)
		if n == 0 && errors.Is(err, loop.ErrWouldBlock) {
			if p.b.split.Idle() {
				p.b.release()
				p.b = nil
			}
			if p.from.OnReadable(p.again) {
				return
			}
			continue
		}
		if !errors.Is(err, loop.ErrWouldBlock) {
			p.reader = err
		}
		if !p.pass(n) {
			return
		}
	}
}

// pass feeds n bytes that were read through the tap, and writes what it made of them. It reports false when the caller
// has to go on.
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
	if p.holds || failed != nil || p.reader != nil { // and what was made leaves with the rest
		p.end(failed)
		return false
	}
	err := p.to.TryWrite(p.b.out)
	p.b.out = p.b.out[:0]
	switch {
	case errors.Is(err, loop.ErrWouldBlock):
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
