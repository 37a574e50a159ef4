package router

import (
	"time"

	"github.com/tandem-pd/tandem/pools"
)

func init() {
	register("min-ttft", "earliest predicted first token: queue, uncached prompt, transfer",
		func(c Config) policy {
			if c.ignoresOverlap() {
				// Workers that compute no prompts delay no first token: the blocks they hold decide, as in mode kv.
				return policies["kv"].make(c)
			}
			return minTTFT(c.Forecast)
		})
}

// Forecast predicts how long a worker takes to the first token of a prompt that comes now: booked tokens of others
// before it, uncached ones of its own behind cached ones, and the transfer of its KV where another worker decodes. It
// is not ok for a worker of which nothing is known yet.
type Forecast func(w *pools.Worker, booked, uncached, cached int) (d time.Duration, ok bool)

// minTTFT is the choice of Mooncake's conductor (FAST'25, §6.1): the instance whose transfer, queue and prefill time add
// up to the least. Its cost is in seconds. A worker of which nothing is known is taken to be as fast as the mean of the
// others; where nothing is known of any, the cost is in tokens.
func minTTFT(forecast Forecast) policy {
	predict := func(q *query, c *candidate) (time.Duration, bool) {
		if forecast == nil {
			return 0, false
		}
		return forecast(c.Worker, c.Load.PrefillTokens, q.uncached(c), min(q.ISL, c.Overlap*q.BlockSize))
	}
	return func(q *query, ws []candidate) (int, float64, bool) {
		var seconds, tokens float64
		for i := range ws {
			if d, ok := predict(q, &ws[i]); ok {
				seconds, tokens = seconds+d.Seconds(), tokens+float64(ws[i].Load.PrefillTokens+q.uncached(&ws[i]))
			}
		}
		each := 1.0 // a token's cost where a worker's is not known
		if tokens > 0 {
			each = seconds / tokens
		}
		return q.cheapest(ws, func(q *query, c *candidate) float64 {
			if d, ok := predict(q, c); ok {
				return d.Seconds()
			}
			return float64(each * float64(c.Load.PrefillTokens+q.uncached(c)))
		})
	}
}
