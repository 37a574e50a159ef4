package queue

import "time"

func init() {
	register("hrrn", "uncached prompt over an age that grows by one each 5 s: short prompts first, none starves",
		func(time.Time) Order { return hrrn{} })
}

// hrrn weighs a prompt's work against how long it has waited, as the highest response ratio next does (Brinch Hansen, 1971):
// max(1, uncached tokens) / ((1 + max(priority, 0)) · (1 + wait / patience)).
type hrrn struct{}

// patience is the wait that halves a prompt's weight.
const patience = 5 * time.Second

func (hrrn) Key(it Item, now time.Time) float64 {
	age := 1 + max(0, now.Sub(it.Arrival).Seconds())/patience.Seconds()
	return float64(max(1, it.Uncached)) / ((1 + it.points()) * age)
}

func (hrrn) Ages() bool { return true }
