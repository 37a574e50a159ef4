package router

func init() {
	register("lmetric", "least prompt to compute times requests in flight; uses caches, without weights",
		func(c Config) policy {
			if c.ignoresOverlap() {
				return byCost(inFlight)
			}
			return byCost(lmetric)
		})
}

// lmetric is the product of what a worker has yet to compute and how many it serves:
//
//	(booked prefill tokens + uncached tokens of this prompt) · (requests in flight + 1)
//
// after LMetric (arXiv 2603.15202): the first factor delays the first token, the second every token, and a product
// needs no exchange rate between them. In a pool that computes no prompts the fewest requests win.
func lmetric(q *query, c *candidate) float64 {
	return float64(c.Load.PrefillTokens+q.uncached(c)) * float64(c.Load.Requests+1)
}
