package queue

import "time"

func init() {
	register("wspt", "least uncached prompt for its priority first: least mean wait",
		func(time.Time) Order { return wspt{} })
}

// wspt has the score (1 + max(priority, 0)) / max(1, uncached tokens): Smith's rule (1956), weight over work. It is
// right for the time to first token, whose work is known when a request arrives; a long prompt may starve.
type wspt struct{}

func (wspt) Key(it Item, _ time.Time) float64 {
	return -(1 + it.points()) / float64(max(1, it.Uncached))
}

func (wspt) Ages() bool { return false }
