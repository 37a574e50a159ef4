package prefill

import (
	"math"
	"time"
)

// Rate is the speed observed at one worker, in tokens a second. It is a pure value; its owner guards it.
//
// Sums decay by a fixed factor with each answer, so that the quotient weighs answers by their length: a short prompt
// measures little more than one step's overhead.
type Rate struct{ tokens, seconds float64 }

// decay keeps about the last ten answers.
const decay = 0.9

// Observe records that tokens were computed within took.
func (r *Rate) Observe(tokens int, took time.Duration) {
	if tokens <= 0 || took <= 0 {
		return
	}
	r.tokens = r.tokens*decay + float64(tokens)
	r.seconds = r.seconds*decay + took.Seconds()
}

// PerSecond is the observed speed, 0 until something was observed.
func (r *Rate) PerSecond() float64 {
	if r.seconds == 0 {
		return 0
	}
	return r.tokens / r.seconds
}

// Limits of the time that a worker may take.
const (
	// leastLimit is the lowest limit of a prompt, and the first one without an observed speed.
	leastLimit = 30 * time.Second
	// maxPatience is the highest limit without an observed speed.
	maxPatience = 16 * leastLimit
	// longestLimit is the highest limit at any speed.
	longestLimit = 24 * time.Hour
	// predictions is how many times the predicted time it may take.
	predictions = 5
)

// Limit is how long the worker may take to that many tokens: the greater of leastLimit and five times the prediction,
// tokens over the observed speed, up to longestLimit. It is leastLimit while nothing was observed.
func (r *Rate) Limit(tokens int) time.Duration {
	if r.tokens == 0 {
		return leastLimit
	}
	return max(leastLimit, Bounded(predictions*float64(tokens)*r.seconds/r.tokens))
}

// Predicted returns how long so many tokens take at a rate in tokens a second, and false for the rate 0.
func Predicted(perSecond float64, tokens int) (time.Duration, bool) {
	if perSecond <= 0 {
		return 0, false
	}
	return Bounded(float64(tokens) / coarse(math.Log(perSecond))), true
}

// coarse is e to the power of a logarithm, in steps of two percent. Workers that differ by less are alike: otherwise
// chance would always have the same one of several idle workers look the fastest.
func coarse(log float64) float64 {
	const step = .02
	return math.Exp(math.Round(log/step) * step)
}

// Bounded is a time of so many seconds, at most longestLimit.
func Bounded(seconds float64) time.Duration {
	return time.Duration(min(seconds, longestLimit.Seconds()) * float64(time.Second))
}
