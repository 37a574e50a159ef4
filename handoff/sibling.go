package handoff

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/decode"
	"github.com/tandem-pd/tandem/fault"
)

// errSibling ends a decode leg whose prefill has failed or has given the whole answer. To the engine it is a client
// that left.
var errSibling = fmt.Errorf("the prefill leg ended: %w", fault.ErrClientGone)

// sibling is a prefill leg that runs at the same time as decode.
type sibling struct {
	outcome atomic.Int32
	came    chan prefilled
	got     *prefilled // what came, once it was collected

	settled bool // it was awaited
}

// trailing is how long the usage of an answer waits for prefill's, which knows what was cached: of a short answer the
// two end at the same moment.
const trailing = 50 * time.Millisecond

// The outcomes of two legs: which of the two ends the other's say.
const (
	undecided    int32 = iota
	decodeBegan        // decode has had its first token: prefill's end does not matter
	prefillEnded       // prefill failed, or has given the whole answer: decode is cut, and none of it leaves
)

// decide settles the outcome, unless it is settled, and reports whether it is this one now.
func (s *sibling) decide(outcome int32) bool {
	s.outcome.CompareAndSwap(undecided, outcome)
	return s.outcome.Load() == outcome
}

// begin notes decode's first token, and reports whether it counts.
func (s *sibling) begin(r *request) bool {
	if s == nil {
		return true
	}
	s.collect(r)
	return s.decide(decodeBegan)
}

// pairSink is a client's sink that takes nothing of a decode leg which is being cut.
type pairSink struct {
	decode.Front
	s *sibling
}

// Start commits the answer, unless there is to be another.
func (p *pairSink) Start(contentType string) {
	if p.s.outcome.Load() != prefillEnded {
		p.Sink.Start(contentType)
	}
}

// Write passes p on.
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

// collect takes what came of prefill into r, if it has ended.
func (s *sibling) collect(r *request) {
	if s == nil || s.got != nil {
		return
	}
	select {
	case came := <-s.came:
		s.take(r, came)
	default:
	}
}

// settle is collect within trailing, once.
func (s *sibling) settle(r *request) {
	if s == nil || s.got != nil || s.settled {
		return
	}
	s.settled = true
	late := time.NewTimer(trailing)
	defer late.Stop()
	select {
	case came := <-s.came:
		s.take(r, came)
	case <-late.C:
	}
}

// wait is collect when prefill has ended.
func (s *sibling) wait(r *request) *prefilled {
	if s.got == nil {
		s.take(r, <-s.came)
	}
	return s.got
}

func (s *sibling) take(r *request, came prefilled) {
	if came.panicked != nil {
		panic(came.panicked) // on the request's goroutine, which reports it
	}
	s.got = &came
	r.prefilled(&came)
	if came.failed == nil {
		r.KV.Cached, r.HandedOver = came.cached, came.ended
	}
}
