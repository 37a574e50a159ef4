package replay

import (
	"fmt"
	"time"
)

// Cause is what a run shows of the reason for which requests were not good. Times are means over the answers.
type Cause struct {
	Kept
	Limits
	// Refused is how many requests the endpoint did not take.
	Refused int
	// Queue and Prefill are the parts of TTFT that the endpoint reports; both are 0 where it reports none.
	Queue, Prefill, TTFT time.Duration
	ITL                  time.Duration
	// Workers are those that served: prefill workers, and decode workers.
	Workers [2]int
	// Busy is how many prompts a prefill worker had in hand in the mean: the sum of prefill times over the run's time
	// and the workers. By Little's law a worker that always has one is the limit.
	Busy float64
	// Speed is a load's, 0 of a simulation.
	Speed float64
}

// idle is the Busy below which prefill workers wait for work.
const idle = 0.7

// cause reads the cause off a finished run.
func (r *Report) cause() *Cause {
	s := &r.Summary
	c := &Cause{
		Kept: r.Kept, Limits: r.Limits, Refused: s.Refused, Speed: r.Speed, Queue: time.Duration(s.Queue.Mean),
		Prefill: time.Duration(s.Prefill.Mean), TTFT: time.Duration(s.TTFT.Mean), ITL: time.Duration(s.ITL.Mean),
	}
	for _, w := range s.Workers {
		if w.Role == "prefill" {
			c.Workers[0]++
		} else {
			c.Workers[1]++
		}
	}
	if n := c.Workers[0]; n > 0 && s.Wall > 0 {
		c.Busy = float64(s.Prefill.Mean) * float64(s.Prefill.Count) / float64(s.Wall) / float64(n)
	}
	return c
}

// Sentence names the limit of the fleet, with the figures that show it, and what to try next. It is empty where no
// request was answered or no limit is set.
func (c *Cause) Sentence() string {
	if c.Requests == 0 || c.Answered == 0 || !c.set() {
		return ""
	}
	if float64(c.Good) >= .9*float64(c.Requests) {
		return fmt.Sprintf("The fleet keeps up with this load; --speed %v shows whether it takes twice as much.", 2*c.Speed)
	}
	refused := ""
	if c.Refused > 0 {
		refused = ", and " + Percent(float64(c.Refused)/float64(c.Requests)) + " of the requests were refused"
	}
	return c.limit() + refused + "; " + c.next() + "."
}

// prefills reports whether prefill is the limit, rather than decode.
func (c *Cause) prefills() bool {
	if c.ITL > c.Limits.ITL && c.Limits.ITL > 0 && c.Kept.ITL < c.Kept.TTFT {
		return false
	}
	return c.Workers[0] > 0 && (c.Busy >= idle || c.Prefill > c.Queue)
}

// limit is the pool that is the limit, and the figures.
func (c *Cause) limit() string {
	first := fmt.Sprintf("the first token took %s in the mean", length(c.TTFT))
	switch {
	case c.Queue+c.Prefill > 0 && c.Workers[0] > 0:
		first += fmt.Sprintf(", %s of it in the queue and %s in prefill on %s", length(c.Queue), length(c.Prefill), workers(c.Workers[0]))
	case c.Queue > 0:
		first += fmt.Sprintf(", %s of it in the queue", length(c.Queue))
	}
	switch {
	case c.prefills():
		return "Prefill is the limit: " + first
	case c.Kept.ITL < c.Kept.TTFT:
		return fmt.Sprintf("Decode is the limit: a token took %s in the mean on %s", length(c.ITL), workers(c.Workers[1]))
	case c.Workers[0] > 0:
		return fmt.Sprintf("Decode is the limit: %s, while prefill workers had %.1f prompts each", first, c.Busy)
	}
	return "The workers are the limit: " + first
}

// next is what to try.
func (c *Cause) next() string {
	switch {
	case c.prefills() && c.Speed == 0:
		return fmt.Sprintf("try %d prefill workers, or mode auto", c.Workers[0]+1)
	case c.prefills():
		return fmt.Sprintf("try --prefill %d, or --router-mode auto", c.Workers[0]+1)
	case c.Workers[1] == 0:
		return "try more workers or less load"
	case c.Workers[0] == 0 || c.Speed == 0:
		return fmt.Sprintf("try %d workers that decode", c.Workers[1]+1)
	}
	return fmt.Sprintf("try --decode %d", c.Workers[1]+1)
}

func workers(n int) string {
	if n == 1 {
		return "1 worker"
	}
	return fmt.Sprintf("%d workers", n)
}

// length writes a time with three figures.
func length(d time.Duration) string {
	if d < time.Second {
		return short(Millis(d)) + " ms"
	}
	return Number(float64(d.Round(10*time.Millisecond))/1e9) + " s"
}
