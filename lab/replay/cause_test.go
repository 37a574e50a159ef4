package replay

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// The pool that is the limit is the one that always has work: a fleet whose numbers are known from queueing theory
// (Little's law, U = λ·S/m) is told apart by the means of a run alone.
func TestCauseNamesTheLimit(t *testing.T) {
	limits := Limits{TTFT: 2 * time.Second, ITL: 25 * time.Millisecond}
	kept := func(ttft, itl, good int) Kept {
		return Kept{Requests: 100, Answered: 100, TTFT: ttft, ITL: itl, Good: good}
	}
	for want, c := range map[string]Cause{
		"The fleet keeps up with this load; --speed 2 shows whether it takes twice as much.": {Kept: kept(95, 95, 95), Limits: limits, Speed: 1},
		// Prompts of 1 s arrive at 3 a second, for two workers: 1.5 of them have work for each.
		"Prefill is the limit: the first token took 8.3 s in the mean, 1.1 s of it in the queue and 7.1 s in prefill on 2 workers; " +
			"try --prefill 3, or --router-mode auto.": {
			Kept: kept(10, 100, 10), Limits: limits, Speed: 1, Workers: [2]int{2, 4}, Busy: 3, TTFT: 8300 * time.Millisecond,
			Queue: 1100 * time.Millisecond, Prefill: 7100 * time.Millisecond, ITL: 14 * time.Millisecond,
		},
		// A gateway that holds requests back keeps workers at one prompt each, and the wait is in its queue.
		"Prefill is the limit: the first token took 6 s in the mean, 5 s of it in the queue and 900 ms in prefill on 1 worker, " +
			"and 70.0 % of the requests were refused; try 2 prefill workers, or mode auto.": {
			Kept: Kept{Requests: 100, Answered: 30, TTFT: 5, ITL: 30, Good: 5}, Refused: 70, Limits: limits, Workers: [2]int{1, 1}, Busy: .98,
			TTFT: 6 * time.Second, Queue: 5 * time.Second, Prefill: 900 * time.Millisecond,
		},
		"Decode is the limit: a token took 40.0 ms in the mean on 2 workers; try --decode 3.": {
			Kept: kept(90, 10, 10), Limits: limits, Speed: 1, Workers: [2]int{2, 2}, Busy: .2, TTFT: time.Second, ITL: 40 * time.Millisecond,
			Queue: 500 * time.Millisecond, Prefill: 300 * time.Millisecond,
		},
		// Decode workers without a free slot hold requests in the queue, and prefill has nothing to do.
		"Decode is the limit: the first token took 9 s in the mean, 8.5 s of it in the queue and 300 ms in prefill on 2 workers, " +
			"while prefill workers had 0.1 prompts each; try --decode 2.": {
			Kept: kept(10, 90, 10), Limits: limits, Speed: 1, Workers: [2]int{2, 1}, Busy: .1, TTFT: 9 * time.Second, ITL: 14 * time.Millisecond,
			Queue: 8500 * time.Millisecond, Prefill: 300 * time.Millisecond,
		},
		"The workers are the limit: the first token took 9 s in the mean; try more workers or less load.": {
			Kept: kept(10, 90, 10), Limits: limits, Speed: 1, TTFT: 9 * time.Second,
		},
	} {
		assert.Equal(t, want, c.Sentence())
	}
	assert.Empty(t, (&Cause{Kept: Kept{Requests: 3}, Limits: limits}).Sentence(), "nothing was answered")
	assert.Empty(t, (&Cause{Kept: kept(0, 0, 0)}).Sentence(), "without limits")
}
