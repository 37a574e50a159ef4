package router

import (
	"math/rand/v2"
	"time"

	"github.com/tandem-pd/tandem/pools"
)

func init() {
	Register("min-ttft", "earliest predicted first token: queue, uncached prompt and transfer, at the rates workers were seen to have",
		func(c Config) Policy {
			if !c.TrackPrefillTokens && c.OverlapWeight == 0 {
				// Nothing that delays a first token differs between workers that
				// compute no prompts: the blocks they hold decide, as in mode kv.
				return policies["kv"].make(c)
			}
			return minTTFT{c.Forecast}
		})
}

// Forecast predicts how long a worker takes to the first token of a prompt that
// comes now: booked tokens of others before it, uncached ones of its own behind
// cached ones, and the transfer of its KV where another worker decodes. It is
// not ok for a worker of which nothing is known yet.
type Forecast func(w *pools.Worker, booked, uncached, cached int) (d time.Duration, ok bool)

// minTTFT is the choice of Mooncake's conductor (FAST'25, §6.1): the instance
// whose transfer, queue and prefill time add up to the least. Its cost is in
// seconds. A worker of which nothing is known is taken to be as fast as the
// mean of the others; where nothing is known of any, the cost is in tokens.
type minTTFT struct {
	forecast Forecast
}

func (m minTTFT) Pick(req Request, ws []Candidate, now time.Time, rng *rand.Rand, why *Why) (int, float64, bool) {
	var seconds, tokens float64
	for i := range ws {
		booked, uncached := ws[i].Load.PrefillTokens, req.uncached(&ws[i])
		if d, ok := m.predict(&req, &ws[i]); ok {
			seconds, tokens = seconds+d.Seconds(), tokens+float64(booked+uncached)
		}
	}
	each := 1.0 // a token's cost where a worker's is not known
	if tokens > 0 {
		each = seconds / tokens
	}
	cost := func(c *Candidate) float64 {
		if d, ok := m.predict(&req, c); ok {
			return d.Seconds()
		}
		return float64(each * float64(c.Load.PrefillTokens+req.uncached(c)))
	}
	why.explain(ws, cost)
	return cheapest(ws, cost, rng)
}

func (m minTTFT) predict(req *Request, c *Candidate) (time.Duration, bool) {
	if m.forecast == nil {
		return 0, false
	}
	return m.forecast(c.Worker, c.Load.PrefillTokens, req.uncached(c), min(req.ISL, c.Overlap*req.BlockSize))
}
