package router

import (
	"math/rand/v2"
	"strings"
	"time"
)

func init() {
	Register("device-aware-weighted", "the worker with the fewest requests in flight for what its device can do",
		func(cfg Config) Policy { return deviceAwareWeighted{gpu: cfg.GPUWeight} })
}

// deviceAwareWeighted takes the candidate with the least of requests in flight
// over its device's weight, ties at random: a CPU weighs 1, anything else
// [Config.GPUWeight]. Its cost is that quotient. It is for pools that mix both,
// such as encoders.
type deviceAwareWeighted struct{ gpu float64 }

func (p deviceAwareWeighted) Pick(req Request, ws []Candidate, now time.Time, rng *rand.Rand, why *Why) (int, float64, bool) {
	why.explain(ws, p.cost)
	var best lowest
	for i := range ws {
		best.offer(i, p.cost(&ws[i]))
	}
	i := best.index
	for n := best.nth(rng); n > 0; {
		if i++; p.cost(&ws[i]) == best.cost {
			n--
		}
	}
	return i, best.cost, best.ties > 0
}

func (p deviceAwareWeighted) cost(c *Candidate) float64 {
	if strings.EqualFold(c.Worker.DeviceClass, "cpu") {
		return float64(c.Load.Requests)
	}
	return float64(c.Load.Requests) / p.gpu
}
