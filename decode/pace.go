package decode

import (
	"cmp"
	"fmt"
	"math"
	"sync"
	"time"
)

// Config is what the decode leg can be told. In both fields 0 means automatic.
type Config struct {
	// StreamIdleTimeout is how long a stream that has begun may bring nothing
	// before it has failed (--stream-idle-timeout). Automatic is the greater of
	// 10 s and 20 times the 99th percentile of the gaps between events that was
	// observed at its worker.
	//
	// The time counts in which the gateway waits for the engine; that in which
	// it waits for a slow client does not. Comments do not end a silence: the
	// processes that keep a connection alive are not those that generate, and
	// go on where those are stuck. Where tools are offered, an engine may show
	// nothing of a call before it is whole: automatic is then at least five times
	// what the rest of the answer takes at the worker's 99th percentile of gaps a
	// token, up to 5 min.
	StreamIdleTimeout time.Duration
	// FirstTokenTimeout is how long a worker may take from the call to the
	// first token (--decode-first-token-timeout). Automatic is the greater of
	// 30 s and five times the prediction: the prompt's tokens over the rate at
	// which the worker was seen to take prompts over, or, where it computes the
	// prompt itself, the uncached tokens booked on it over the rate at which it
	// was seen to compute them. Where it has not computed any yet, the slowest
	// worker of its pool stands for it; while none has, the limit is 30 s, and twice
	// as long, up to 8 min, after each prompt that took longer. Once an event
	// without a token has come, a role say, the engine is at work, perhaps on
	// reasoning that it hides: automatic then counts from the latest event and is
	// at least five times what the longest answer takes, up to 5 min.
	//
	// An answer that is not streamed shows no token before its end. It may take
	// this limit for its first token, and for the rest the greater of the
	// stream's idle limit and five times what its longest form takes at the
	// worker's 99th percentile of gaps a token, up to 1 h; while that is unknown,
	// 100 ms, or a 20th of a stream's idle limit that was set shorter than 2 s.
	FirstTokenTimeout time.Duration
}

// Validate names the setting that is wrong.
func (c Config) Validate() error {
	if c.StreamIdleTimeout < 0 {
		return fmt.Errorf("stream-idle-timeout: %v is negative", c.StreamIdleTimeout)
	}
	if c.FirstTokenTimeout < 0 {
		return fmt.Errorf("decode-first-token-timeout: %v is negative", c.FirstTokenTimeout)
	}
	return nil
}

// The least of the automatic limits, and how far they lie above what was seen.
const (
	leastIdle       = 10 * time.Second
	leastFirstToken = 30 * time.Second
	idleGaps        = 20 // times the 99th percentile
	predictions     = 5  // times what is predicted
	maxPatience     = 16 * leastFirstToken
)

// What is taken for granted of a worker and an answer of which nothing is
// known: a token's time that is slow for any engine, and a long context.
const (
	unknownGap    = 100 * time.Millisecond
	unknownTokens = 128 << 10
)

// pace is how fast one worker was seen to be. It is safe for concurrent use.
type pace struct {
	mu       sync.Mutex
	gaps     gaps
	computed speed // prompts that it computed itself
	taken    speed // prompts handed over: the transfer and one step
}

// prompt is what a call's first token waits for.
type prompt struct {
	tokens    int
	handedOff bool // it is taken over, not computed
}

// first is how long the worker may take to the first token of an answer to p.
func (c Config) first(w *pace, p prompt) time.Duration {
	if c.FirstTokenTimeout > 0 {
		return c.FirstTokenTimeout
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return max(leastFirstToken, bounded(predictions*w.speed(p).predict(p.tokens)))
}

// limits is how long a stream of at most that many tokens, 0 for unknown, may be
// silent that may take so long to its first token. mayHide says that tools are
// offered: an engine that parses a call shows nothing of it before it is whole.
func (c Config) limits(w *pace, first time.Duration, tokens int, mayHide bool) limits {
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
func (c Config) idle(w *pace) time.Duration {
	if c.StreamIdleTimeout > 0 {
		return c.StreamIdleTimeout
	}
	return max(leastIdle, idleGaps*w.gap())
}

// whole is how long the worker may take to an answer of at most that many tokens, 0
// for unknown, which is not streamed and may take so long to its first token.
func (c Config) whole(w *pace, first time.Duration, tokens int) time.Duration {
	return sum(first, max(c.idle(w), min(longestWhole, c.generates(w, tokens))))
}

// generates is five times what the worker takes to generate that many tokens, 0
// for unknown.
func (c Config) generates(w *pace, tokens int) time.Duration {
	gap := cmp.Or(w.gap(), min(unknownGap, c.idle(w)/idleGaps)) // a short limit that was set tells of short gaps
	return bounded(predictions * gap.Seconds() * float64(cmp.Or(tokens, unknownTokens)))
}

// sum adds two limits that are not negative. A sum that time cannot hold is
// the longest there is: one that wrapped around would have passed already.
func sum(a, b time.Duration) time.Duration {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// How long automatic limits may be, whatever was seen.
const (
	longest       = 24 * time.Hour
	longestWhole  = time.Hour       // to generate an answer that is not streamed
	longestHidden = 5 * time.Minute // to generate what a stream does not show: hidden reasoning, a tool's call
)

// bounded is a limit of so many seconds, at most the longest.
func bounded(seconds float64) time.Duration {
	return time.Duration(min(seconds, longest.Seconds()) * float64(time.Second))
}

// knows reports whether the worker was seen to begin an answer to such a prompt.
func (w *pace) knows(p prompt) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.speed(p).tokens > 0
}

// began takes in that the first token of an answer to p took that long.
func (w *pace) began(p prompt, took time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.speed(p).observe(p.tokens, took)
}

// gap is the 99th percentile of the gaps, 0 while unknown.
func (w *pace) gap() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.gaps.p99()
}

// speed is the one that p goes by. The caller holds mu.
func (w *pace) speed(p prompt) *speed {
	if p.handedOff {
		return &w.taken
	}
	return &w.computed
}

// speed is tokens over seconds, of about the last ten prompts: sums that decay
// with each, so that long prompts weigh more than short ones, which measure one
// step's overhead.
type speed struct{ tokens, seconds float64 }

const speedDecay = 0.9

func (s *speed) observe(tokens int, took time.Duration) {
	if tokens <= 0 || took <= 0 {
		return
	}
	s.tokens = s.tokens*speedDecay + float64(tokens)
	s.seconds = s.seconds*speedDecay + took.Seconds()
}

// predict is how many seconds that many tokens take, 0 while unknown.
func (s *speed) predict(tokens int) float64 {
	if s.tokens == 0 {
		return 0
	}
	return float64(tokens) * s.seconds / s.tokens
}
