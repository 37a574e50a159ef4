package router

import (
	"math"
	"strings"
)

func init() {
	// It is for pools of CPUs and accelerators, such as encoders and embedding models. Dynamo's rule: the group of CPUs
	// takes a request while it has fewer in flight than its part of the accelerators' load,
	//
	//	floor(in flight on accelerators · CPUs / (ratio · accelerators)),
	//
	// and within a group the worker with the fewest takes it. An idle pool prefers accelerators. The ratio is
	// [Config.GPUWeight]; anything but a CPU is an accelerator.
	register("device-aware-weighted", "fewest requests in flight within the devices whose turn it is",
		func(cfg Config) policy {
			return func(q *query, ws []candidate) (int, float64, bool) {
				var workers, flying [2]float64 // of accelerators and of CPUs
				for i := range ws {
					group := deviceGroup(&ws[i])
					workers[group]++
					flying[group] += inFlight(q, &ws[i])
				}
				turn := 0
				if allowed := flying[0] * workers[1] / (cfg.GPUWeight * workers[0]); workers[0] == 0 || flying[1] < math.Floor(allowed) {
					turn = 1
				}
				if workers[turn] == 0 {
					turn = 1 - turn
				}
				most := flying[0] + flying[1] + 1 // above every worker's
				return q.cheapest(ws, func(q *query, c *candidate) float64 {
					if deviceGroup(c) == turn {
						return inFlight(q, c)
					}
					return most + inFlight(q, c)
				})
			}
		})
}

// deviceGroup is 1 for a CPU, 0 for anything else.
func deviceGroup(c *candidate) int {
	if strings.EqualFold(c.Worker.DeviceClass, "cpu") {
		return 1
	}
	return 0
}
