package placement

import (
	"math"
	"time"

	"github.com/tandem-pd/tandem/router"
)

// Idle predicts how long a model's workers have nothing to compute, from the prompts that came within about a second and
// about ten: a burst counts at once, and for a while. The zero Idle has seen none.
type Idle struct {
	prompts [len(idleMemory)]float64 // decayed
	at      time.Time
}

// idleMemory is the decay times of prompts, in seconds.
var idleMemory = [...]float64{1, 10}

const (
	// slowest is the prefill speed assumed of a worker that was not observed, in tokens a second.
	slowest = 1000
	// leastStep is assumed of every prompt: a forecast by tokens knows no least, and a step that has begun ends.
	leastStep = 25 * time.Millisecond
	// margin is how many times the forecast must fit: then a prompt comes before the end in one of five cases (Poisson).
	margin = 4
)

// Arrived records a prompt.
func (i *Idle) Arrived(now time.Time) {
	for k := range i.prompts {
		i.prompts[k] = i.recent(k, now) + 1
	}
	i.at = now
}

func (i *Idle) recent(k int, now time.Time) float64 {
	return i.prompts[k] * math.Exp(-max(0, now.Sub(i.at)).Seconds()/idleMemory[k])
}

// Expect returns the expected time until one of so many workers gets a prompt, if each of so many gateways gets as many as
// this one. It is an hour at most.
func (i *Idle) Expect(workers, gateways int, now time.Time) time.Duration {
	perSecond := 1e-9
	for k, memory := range idleMemory {
		perSecond = max(perSecond, i.recent(k, now)/memory)
	}
	mean := float64(workers) / (perSecond * float64(max(1, gateways)))
	return time.Duration(min(mean, time.Hour.Seconds()) * float64(time.Second))
}

// Spare reports whether a worker may compute a prompt that no request waits for: the queue is empty, the worker
// computes none, and the prompt should be done well before the next one comes. A worker that generates must have nothing at all,
// since its streams would stutter. known reports whether forecast is.
func Spare(waiting int, w router.WorkerLoad, generates bool, idle time.Duration, uncached int, forecast time.Duration, known bool) bool {
	if !known {
		forecast = time.Duration(float64(uncached) / slowest * float64(time.Second))
	}
	return waiting == 0 && w.PrefillTokens == 0 && (!generates || w.Requests == 0) && margin*max(forecast, leastStep) <= idle
}
