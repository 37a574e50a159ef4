package handoff

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/fault"
)

// errSibling ends a decode leg whose prefill failed or gave the whole answer. The engine sees a departed client.
var errSibling = fmt.Errorf("the prefill leg ended: %w", fault.ErrClientGone)

// sibling is a prefill leg that runs in parallel with decode.
type sibling struct {
	outcome atomic.Int32
	result  chan prefilled
	got     *prefilled // the result, once collected

	waited bool // awaitBriefly was called
}

// trailing is how long a short answer's usage waits for prefill's, which has the cached tokens.
const trailing = 50 * time.Millisecond

// The outcomes of two parallel legs.
const (
	undecided    int32 = iota
	decodeBegan        // decode has had its first token: prefill's end does not matter
	prefillEnded       // prefill failed or gave the whole answer: decode is cut, and nothing of it is sent
)

// decide sets the outcome unless one is set, and reports whether it is this one.
func (s *sibling) decide(outcome int32) bool {
	s.outcome.CompareAndSwap(undecided, outcome)
	return s.outcome.Load() == outcome
}

// begin records decode's first token, and reports whether it counts.
func (s *sibling) begin(r *request) bool {
	if s == nil {
		return true
	}
	s.collect(r)
	return s.decide(decodeBegan)
}

// pairSink drops the output of a decode leg that is being cut.
type pairSink struct {
	Sink
	s *sibling
}

// Start begins the answer, unless prefill's replaces it.
func (p *pairSink) Start(contentType string) {
	if p.s.outcome.Load() != prefillEnded {
		p.Sink.Start(contentType)
	}
}

// Write passes b on.
func (p *pairSink) Write(b []byte) error {
	if p.s.outcome.Load() == prefillEnded {
		return errSibling
	}
	return p.Sink.Write(b)
}

// Last passes b on.
func (p *pairSink) Last(b []byte) error {
	if p.s.outcome.Load() == prefillEnded {
		return errSibling
	}
	return p.Sink.Last(b)
}

// collect records prefill's result in r, if it has ended.
func (s *sibling) collect(r *request) {
	if s == nil || s.got != nil {
		return
	}
	select {
	case result := <-s.result:
		s.take(r, result)
	default:
	}
}

// awaitBriefly waits once, up to trailing, for prefill's result.
func (s *sibling) awaitBriefly(r *request) {
	if s == nil || s.got != nil || s.waited {
		return
	}
	s.waited = true
	late := time.NewTimer(trailing)
	defer late.Stop()
	select {
	case result := <-s.result:
		s.take(r, result)
	case <-late.C:
	}
}

func (s *sibling) wait(r *request) *prefilled {
	if s.got == nil {
		s.take(r, <-s.result)
	}
	return s.got
}

func (s *sibling) take(r *request, result prefilled) {
	if result.panicked != nil {
		panic(result.panicked) // on the request's goroutine, which reports it
	}
	s.got = &result
	r.prefilled(&result)
	if result.failed == nil {
		r.KV.Cached, r.HandedOver = result.cached, result.ended
	}
}
