package decode

import (
	"cmp"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/internal/pace"
	"github.com/tandem-pd/tandem/internal/setting"
)

// Config is the decode leg's settings. In both fields 0 means automatic.
type Config struct {
	// StreamIdleTimeout is how long a stream that has begun may bring nothing before it has failed. Automatic is the
	// greater of 10 s and 20 times the 99th percentile of its worker's gaps between events.
	//
	// Time spent waiting for a slow client does not count. Comments do not end a silence: a process that keeps the
	// connection alive goes on where the one that generates is stuck. Where tools are offered, an engine may show
	// nothing of a call before it is whole: automatic is then at least five times the predicted time of the answer
	// (its tokens times that percentile), up to 5 min.
	StreamIdleTimeout time.Duration `flag:"stream-idle-timeout" default:"0s" range:"0s.." group:"Faults" help:"Silence after which a begun stream's worker is given up. 0 is automatic: the greater of 10s and 20 times the worker's p99 gap."`
	// FirstTokenTimeout is how long a worker may take from the call to the first token. Automatic is the greater of
	// 30 s and five times the prediction: the prompt's tokens over the worker's observed speed at taking prompts over
	// or, where it computes them, the tokens booked on it over its speed at that (see [pace.Limits]). After an event
	// without a token (a role) the engine is at work, perhaps on hidden reasoning: automatic then counts from the
	// latest event and is at least five times the predicted time of the longest answer, up to 5 min.
	//
	// An answer that is not streamed may take this limit and then the greater of the stream's idle limit and five times
	// the predicted time of its longest form, up to 1 h. While the worker's gaps are unknown, the prediction takes 100 ms
	// a token, or a 20th of a stream's idle limit that was set below 2 s.
	FirstTokenTimeout time.Duration `flag:"decode-first-token-timeout" default:"0s" range:"0s.." group:"Faults" help:"How long decode may take to the first token before another worker is tried. 0 is automatic: the greater of 30s and five times the prediction."`
}

// Validate returns every setting that is out of range.
func (c Config) Validate() error { return setting.Check(&c) }

// The least of the automatic limits of a stream that has begun, and how far they lie above what was seen.
const (
	leastIdle   = 10 * time.Second
	idleGaps    = 20 // times the 99th percentile
	predictions = 5  // times what is predicted
)

// What is taken for granted of a worker and an answer of which nothing is known: a token's time that is slow for any
// engine, and a long context.
const (
	unknownGap    = 100 * time.Millisecond
	unknownTokens = 128 << 10
)

// seen is what was observed of one worker's streams. It is safe for concurrent use.
type seen struct {
	mu    sync.Mutex
	gaps  gaps
	taken pace.Rate // prompts handed over: the transfer and one step

	latest atomic.Pointer[time.Time] // when the latest token came, up to 100 ms before that; nil for none

	moves atomic.Bool // an operator has the streams go on elsewhere
}

// prompt is what a call's first token waits for.
type prompt struct {
	tokens    int
	handedOff bool // it is taken over, not computed
}

// limits is how long a stream of at most that many tokens, 0 for unknown, may be silent that may take so long to its
// first token. mayHide says that tools are offered: an engine that parses a call shows nothing of it before it is
// whole.
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

// idle is how long a stream of the worker may be silent now.
func (c Config) idle(w *seen) time.Duration {
	if c.StreamIdleTimeout > 0 {
		return c.StreamIdleTimeout
	}
	return max(leastIdle, idleGaps*w.gap())
}

// whole is how long the worker may take to an answer of at most that many tokens, 0 for unknown, which is not
// streamed and may take so long to its first token.
func (c Config) whole(w *seen, first time.Duration, tokens int) time.Duration {
	return sum(first, max(c.idle(w), min(longestWhole, c.generates(w, tokens))))
}

// generates is five times what the worker takes to generate that many tokens, 0 for unknown.
func (c Config) generates(w *seen, tokens int) time.Duration {
	gap := cmp.Or(w.gap(), min(unknownGap, c.idle(w)/idleGaps)) // a short limit that was set means short gaps
	return pace.Bounded(predictions * gap.Seconds() * float64(cmp.Or(tokens, unknownTokens)))
}

// sum adds two limits that are not negative. A sum that time cannot hold is the longest there is: one that wrapped
// around would have passed already.
func sum(a, b time.Duration) time.Duration { return min(a, math.MaxInt64-b) + b }

// How long automatic limits may be, whatever was seen.
const (
	longestWhole  = time.Hour       // to generate an answer that is not streamed
	longestHidden = 5 * time.Minute // to generate what a stream does not show: hidden reasoning, a tool's call
)

// gap is the 99th percentile of the gaps, 0 while unknown.
func (w *seen) gap() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.gaps.p99()
}

// token takes in that a token came. Most leave what is shared as it is.
func (w *seen) token(now time.Time) {
	if before := w.latest.Load(); before == nil || now.Sub(*before) >= 100*time.Millisecond {
		at := now // so that now stays on the stack
		w.latest.Store(&at)
	}
}
