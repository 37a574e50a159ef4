package queue

import "time"

func init() {
	register("lcfs", "last come, first served; a point of priority is worth a second of arriving later: a control to compare with",
		func(epoch time.Time) Order { return lcfs{epoch} })
}

// lcfs has the score max(priority, 0) + arrival in seconds.
type lcfs struct{ epoch time.Time }

func (o lcfs) Key(it Item, _ time.Time) float64 {
	return -it.Arrival.Sub(o.epoch).Seconds() - it.points()
}

func (lcfs) Ages() bool { return false }
