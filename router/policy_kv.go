package router

import (
	"math"
	"math/rand/v2"
	"time"
)

func init() {
	Register("kv", "lowest cost of prompt to compute and blocks in use; knows what is cached where", func(c Config) Policy {
		return kv{
			weight:       c.OverlapWeight,
			temperature:  c.Temperature,
			trackPrefill: c.TrackPrefillTokens,
			trackActive:  c.TrackActiveBlocks,
		}
	})
}

// kv is the cost of the KV router's documents, lower being better:
//
//	logit = overlap_weight · potential_prefill_blocks + potential_active_blocks
//
// where potential_prefill_blocks are the tokens to compute before this
// request's first one, those booked by others and its own uncached ones, in
// blocks; and potential_active_blocks the booked blocks and the request's own,
// those counted once that requests booked on the worker share with it.
type kv struct {
	weight       float64
	temperature  float64
	trackPrefill bool // booked prefill tokens count
	trackActive  bool // active blocks count
}

// Pick takes the lowest cost, ties at random; or, at a temperature, draws from
// the softmax over −cost / ((max − min) · temperature), so that the temperature
// means the same whatever the costs' range.
func (k kv) Pick(req Request, ws []Candidate, now time.Time, rng *rand.Rand, why *Why) (int, float64, bool) {
	if len(ws) == 0 {
		return 0, 0, false
	}
	if why.Explain {
		k.explain(&req, ws, why)
	}
	var best lowest
	most := math.Inf(-1)
	for i := range ws {
		cost := k.cost(&req, &ws[i])
		best.offer(i, cost)
		most = max(most, cost)
	}
	if scale := (most - best.cost) * k.temperature; scale > 0 {
		i := k.draw(&req, ws, best.cost, scale, rng)
		return i, k.cost(&req, &ws[i]), true
	}
	i := best.index
	for n := best.nth(rng); n > 0; {
		if i++; k.cost(&req, &ws[i]) == best.cost {
			n--
		}
	}
	return i, best.cost, true
}

// draw picks a candidate with probability in proportion to
// exp(−(cost − least) / scale). Costs are reckoned again instead of kept: that
// takes less time than memory would.
func (k kv) draw(req *Request, ws []Candidate, least, scale float64, rng *rand.Rand) int {
	var sum float64
	for i := range ws {
		sum += math.Exp((least - k.cost(req, &ws[i])) / scale)
	}
	left := rng.Float64() * sum
	last := 0
	for i := range ws {
		p := math.Exp((least - k.cost(req, &ws[i])) / scale)
		if p == 0 {
			continue
		}
		if last, left = i, left-p; left < 0 {
			break
		}
	}
	return last
}

// cost is the logit of one candidate. The conversion forbids fusing the two
// operations, which would round otherwise on some processors.
func (k kv) cost(req *Request, c *Candidate) float64 {
	prefill, active := k.blocks(req, c)
	return float64(k.weight*prefill) + active
}

// blocks returns the two terms of the cost.
func (k kv) blocks(req *Request, c *Candidate) (prefill, active float64) {
	tokens := req.ISL - c.Overlap*req.BlockSize
	if k.trackPrefill {
		tokens += c.Load.PrefillTokens
	}
	prefill = float64(tokens) / float64(req.BlockSize)
	if k.trackActive {
		active = float64(c.Load.ActiveBlocks + req.blocks() - c.Shared)
	}
	return prefill, active
}

// explain adds each candidate's terms.
func (k kv) explain(req *Request, ws []Candidate, why *Why) {
	for i := range ws {
		c := &ws[i]
		prefill, active := k.blocks(req, c)
		why.Terms = append(why.Terms, Term{
			Worker: c.Worker.ID, Rank: c.Rank,
			Cost:          k.cost(req, c),
			OverlapWeight: k.weight, PrefillBlocks: prefill, ActiveBlocks: active,
			CachedBlocks: c.Overlap,
		})
	}
}
