package router

import "strings"

func init() {
	// The cost is the requests in flight over the device's weight: a CPU weighs 1, anything else [Config.GPUWeight].
	// It is for pools that mix both, such as encoders.
	register("device-aware-weighted", "fewest requests in flight for its device",
		func(cfg Config) policy {
			return byCost(func(q *query, c *candidate) float64 {
				if strings.EqualFold(c.Worker.DeviceClass, "cpu") {
					return inFlight(q, c)
				}
				return inFlight(q, c) / cfg.GPUWeight
			})
		})
}
