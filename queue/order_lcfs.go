package queue

import "time"

func init() {
	register("lcfs", "last come, first served, as a control",
		func(epoch time.Time) Order { return lcfs{epoch} })
}

// lcfs has the score max(priority, 0) + arrival in seconds.
type lcfs struct{ epoch time.Time }

func (o lcfs) Key(it Item, _ time.Time) float64 {
	return -it.Arrival.Sub(o.epoch).Seconds() - it.points()
}

func (lcfs) Ages() bool { return false }
