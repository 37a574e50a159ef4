package prefill

import (
	"time"

	"github.com/tandem-pd/tandem/internal/speed"
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
	// predictions is how many times the predicted time it may take.
	predictions = 5
)

// Limit is how long the worker may take to that many tokens: the greater of leastLimit and five times the prediction,
// tokens over the observed speed, up to a day. It is leastLimit while nothing was observed.
func (r *Rate) Limit(tokens int) time.Duration {
	if r.tokens == 0 {
		return leastLimit
	}
	return max(leastLimit, speed.Bounded(predictions*float64(tokens)*r.seconds/r.tokens))
}
