package prefill

import "time"

// rate is what is known of one worker's prefill speed, in tokens a second. It
// is a pure value; its owner guards it.
//
// Sums decay by a fixed factor with each answer, so that the quotient weighs
// answers by their length: a long prompt says much about the speed, a short
// one measures little more than one step's overhead.
type rate struct {
	tokens  float64
	seconds float64
}

// rateDecay keeps about the last ten answers.
const rateDecay = 0.9

// observe takes in that tokens were computed within took.
func (r *rate) observe(tokens int, took time.Duration) {
	if tokens <= 0 || took <= 0 {
		return
	}
	r.tokens = r.tokens*rateDecay + float64(tokens)
	r.seconds = r.seconds*rateDecay + took.Seconds()
}

// perSecond is the observed speed, 0 until something was observed.
func (r *rate) perSecond() float64 {
	if r.seconds == 0 {
		return 0
	}
	return r.tokens / r.seconds
}

const (
	// minTimeout is the least that a prefill may take before it counts as lost,
	// and what it may take at first while no speed is known.
	minTimeout = 30 * time.Second
	// maxPatience is the most that it may take while no speed is known.
	maxPatience = 16 * minTimeout
)

// maxTimeout is the most that it may take, whatever speed was observed.
const maxTimeout = 24 * time.Hour

// timeoutFor is the automatic limit: the greater of 30 s and five times the
// prediction, booked tokens over the observed rate, up to 24 h.
func (r *rate) timeoutFor(bookedTokens int) time.Duration {
	per := r.perSecond()
	if per == 0 {
		return minTimeout
	}
	seconds := min(5*float64(bookedTokens)/per, maxTimeout.Seconds())
	return max(minTimeout, time.Duration(seconds*float64(time.Second)))
}
