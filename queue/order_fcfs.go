package queue

import "time"

func init() {
	register("fcfs", "first come, first served; a point of priority is worth a second of waiting: least longest wait",
		func(epoch time.Time) Order { return fcfs{epoch} })
}

// fcfs has the score max(priority, 0) − arrival in seconds.
type fcfs struct{ epoch time.Time }

func (o fcfs) Key(it Item, _ time.Time) float64 {
	return it.Arrival.Sub(o.epoch).Seconds() - it.points()
}

func (fcfs) Ages() bool { return false }
