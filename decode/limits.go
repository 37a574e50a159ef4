package decode

import (
	"cmp"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/internal/speed"
	"github.com/tandem-pd/tandem/prefill"
)

// Config is the decode leg's settings. 0 means automatic in both fields.
type Config struct {
	// StreamIdleTimeout is how long a stream may be silent between events before it fails. Automatic is the greater of
	// 10 s and 20 times the 99th percentile of its worker's gaps between events.
	//
	// Time spent waiting for a slow client does not count. Comments do not end a silence: they may continue although
	// the engine is stuck. With tools, an engine may send a call only once it is complete: automatic is then at least
	// five times the predicted time of the answer (its tokens times that percentile), up to 5 min.
	StreamIdleTimeout time.Duration `flag:"stream-idle-timeout" default:"0s" range:"0s.." group:"Faults" help:"Silence after which a stream's worker counts as failed. 0 is automatic: the greater of 10s and 20 times the worker's p99 gap."`
	// FirstTokenTimeout is how long a worker may take from the call to the first token. Automatic is the greater of
	// 30 s and five times the prediction: prompt tokens over the worker's observed hand-off speed or, if it computes
	// prompts, its booked tokens over its prefill speed (see [prefill.Limits]). After an event without a token (a role)
	// the engine may be reasoning silently: automatic then counts from the latest event and is at least five times
	// the predicted time of the longest answer, up to 5 min.
	//
	// An answer that is not streamed may take this limit and then the greater of the stream's idle limit and five times
	// the predicted time of its longest form, up to 1 h. While the worker's gaps are unknown, the prediction takes 100 ms
	// a token, or a 20th of a stream's idle limit that was set below 2 s.
	FirstTokenTimeout time.Duration `flag:"first-token-timeout" default:"0s" range:"0s.." group:"Faults" help:"How long prefill, and then decode to the first token, may take before another worker is tried. 0 is automatic: the greater of 30s and five times the prediction."`
}

// Validate returns every setting that is out of range.
func (c Config) Validate() error { return setting.Check(&c) }

// The least automatic limits of a stream, and their factors over observed times.
const (
	leastIdle   = 10 * time.Second
	idleGaps    = 20 // times the 99th percentile
	predictions = 5  // times the prediction
)

// Assumptions for a worker and an answer without observations: a token's time that is slow for any engine, and a long
// context.
const (
	unknownGap    = 100 * time.Millisecond
	unknownTokens = 128 << 10
)

// seen is what was observed of one worker's streams. It is safe for concurrent use.
type seen struct {
	mu    sync.Mutex
	gaps  gaps
	taken prefill.Rate // prompts taken over: the transfer and one step

	latest atomic.Pointer[time.Time] // when the latest token arrived, up to 100 ms early; nil for none

	drained atomic.Bool // by an operator: its streams resume on other workers
}

// prompt is the work before a call's first token.
type prompt struct {
	tokens    int
	handedOff bool // taken over, not computed
}

// limits returns how long a stream of at most tokens, 0 for unknown, may be silent. mayHide reports that tools are
// offered: a tool call may be sent only once it is complete.
func (c Config) limits(w *seen, first time.Duration, tokens int, mayHide bool) limits {
	l := limits{first: first}
	hidden := min(longestHidden, c.generates(w, tokens))
	if c.FirstTokenTimeout == 0 {
		l.role = max(l.first, hidden)
	}
	if c.StreamIdleTimeout == 0 && mayHide {
		l.tokens = hidden
	}
	return l
}

// idle returns how long a stream of the worker may be silent now.
func (c Config) idle(w *seen) time.Duration {
	if c.StreamIdleTimeout > 0 {
		return c.StreamIdleTimeout
	}
	return max(leastIdle, idleGaps*w.gap())
}

// whole returns how long the worker may take for an answer of at most tokens, 0 for unknown, that is not streamed.
func (c Config) whole(w *seen, first time.Duration, tokens int) time.Duration {
	return sum(first, max(c.idle(w), min(longestWhole, c.generates(w, tokens))))
}

// generates returns five times the worker's time to generate tokens, 0 for unknown.
func (c Config) generates(w *seen, tokens int) time.Duration {
	gap := cmp.Or(w.gap(), min(unknownGap, c.idle(w)/idleGaps)) // a short configured limit implies short gaps
	return speed.Bounded(predictions * gap.Seconds() * float64(cmp.Or(tokens, unknownTokens)))
}

// sum adds two limits that are not negative, saturating instead of overflowing.
func sum(a, b time.Duration) time.Duration { return min(a, math.MaxInt64-b) + b }

// Upper bounds of automatic limits.
const (
	longestWhole  = time.Hour       // to generate an answer that is not streamed
	longestHidden = 5 * time.Minute // to generate what a stream does not show: hidden reasoning, a tool call
)

// gap returns the 99th percentile of the gaps, 0 while unknown.
func (w *seen) gap() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.gaps.p99()
}

// token records the arrival of a token. Most calls write nothing shared.
func (w *seen) token(now time.Time) {
	if before := w.latest.Load(); before == nil || now.Sub(*before) >= 100*time.Millisecond {
		at := now // keeps now on the stack
		w.latest.Store(&at)
	}
}
