package router

import (
	"math"
	"math/rand/v2"
)

func init() {
	register("kv", "lowest cost of blocks to prefill and blocks in use; uses caches", func(c Config) policy {
		weights := pricing{
			credit:       c.Cost == Credited,
			weight:       c.OverlapWeight,
			w:            c.Credit,
			temperature:  c.Temperature,
			trackPrefill: c.TrackPrefillTokens,
			trackActive:  c.TrackActiveBlocks,
			noPrompts:    c.ignoresOverlap(),
		}
		return weights.pick
	})
}

// pricing is the weights of one choice. The cost is that of the KV router's documents, lower being better:
//
//	logit = overlap_weight · potential_prefill_blocks + potential_active_blocks
//
// where potential_prefill_blocks are the tokens to compute before this request's first one, those booked by others
// and its own uncached ones, in blocks; and potential_active_blocks the booked blocks and the request's own, those
// counted once that requests booked on the worker share with it, and those not that a hand-off need not bring
// ([Config.RestOnly]). With [Config.Cost] "credit" the cost is that of [Credit]. A request may override the weights, and
// prefer workers by their taints.
type pricing struct {
	credit       bool    // the cost credit, by w; else classic, by weight
	trackPrefill bool    // booked prefill tokens count
	trackActive  bool    // active blocks count
	noPrompts    bool    // computes no prompts: a request may not change its weights
	weight       float64 // classic: of prefill blocks
	temperature  float64
	w            Credit

	// Of one choice:
	isl, blockSize, blocks int     // of the request, blocks of the prompt
	per                    float64 // blockSize

	// Of one choice by the cost credit with a decay:
	decays bool
	least  int     // the least prefill tokens booked on a candidate
	size   float64 // the prompt's blocks
}

// pick takes the lowest cost, ties at random; or, at a temperature, draws from the softmax over
// −cost/((max−min)·temperature), so that the temperature means the same whatever the costs' range.
func (p pricing) pick(q *query, ws []candidate) (int, float64, bool) {
	if len(ws) == 0 {
		return 0, 0, false
	}
	if q.Override != nil {
		p.override(q.Override)
	}
	p.ask(q, ws)
	if q.why.Explain {
		p.explain(ws, q.why)
	}
	best := p.lowest(q, ws)
	if p.temperature > 0 {
		if scale := (p.most(ws) - best.cost) * p.temperature; scale > 0 {
			i := p.draw(ws, best.cost, scale, q.rng)
			return i, p.cost(&ws[i]), true
		}
	}
	i := best.index
	if n := best.nth(q.rng); n > 0 {
		i = p.again(ws, best, n)
	}
	return i, best.cost, true
}

// ask makes the weights those of a choice of one of ws for req.
func (p *pricing) ask(q *query, ws []candidate) {
	p.isl, p.blockSize, p.blocks = q.ISL, q.BlockSize, q.blocks()
	p.per = float64(q.BlockSize)
	if p.credit && p.trackPrefill && p.w.Decay > 0 && q.ISL > 0 {
		p.decays, p.least, p.size = true, math.MaxInt, float64(p.blocks)
		for i := range ws {
			p.least = min(p.least, ws[i].Load.PrefillTokens)
		}
	}
}

// lowest is the lowest of the costs. At a temperature they are not what decides, and are not given away.
func (p *pricing) lowest(q *query, ws []candidate) (best lowest) {
	var room [stretch]float64
	for at := 0; at < len(ws); at += stretch {
		costs := p.costs(ws[at:], &room)
		if q.costs != nil && p.temperature == 0 {
			copy(q.costs[at:], costs)
		}
		for i, cost := range costs {
			best.offer(at+i, cost)
		}
	}
	return best
}

// most is the highest of the costs.
func (p *pricing) most(ws []candidate) float64 {
	most := math.Inf(-1)
	for i := range ws {
		most = max(most, p.cost(&ws[i]))
	}
	return most
}

// again finds the nth candidate behind best.index that costs the same.
func (p *pricing) again(ws []candidate, best lowest, n int) int {
	var costs [stretch]float64
	for at := best.index + 1; ; at += stretch {
		for i, cost := range p.costs(ws[at:], &costs) {
			if cost == best.cost {
				if n--; n == 0 {
					return at + i
				}
			}
		}
	}
}

// override takes a request's own weights over.
func (p *pricing) override(o *Override) {
	given(&p.temperature, o.Temperature)
	if p.noPrompts {
		return
	}
	given(&p.weight, o.OverlapWeight)
	given(&p.w.Overlap, o.OverlapCredit)
	given(&p.w.PrefillScale, o.PrefillScale)
	given(&p.w.Shared, o.SharedMultiplier)
	given(&p.trackPrefill, o.TrackPrefillTokens)
}

// draw picks a candidate with probability in proportion to exp(−(cost − least) / scale). Costs are computed again
// instead of kept: that takes less time than memory would.
func (p *pricing) draw(ws []candidate, least, scale float64, rng *rand.Rand) int {
	var sum float64
	for i := range ws {
		sum += math.Exp((least - p.cost(&ws[i])) / scale)
	}
	left := rng.Float64() * sum
	last := 0
	for i := range ws {
		share := math.Exp((least - p.cost(&ws[i])) / scale)
		if share == 0 {
			continue
		}
		if last, left = i, left-share; left < 0 {
			break
		}
	}
	return last
}

// stretch is how many costs are computed at a time: one loop for them, and one
// for what is made of them, take less time than one for both.
const stretch = 64

// costs is the costs of the first candidates, up to stretch of them.
func (p *pricing) costs(ws []candidate, room *[stretch]float64) []float64 {
	costs := room[:min(len(ws), stretch)]
	ws = ws[:len(costs)]
	if p.credit {
		for i := range ws {
			costs[i] = p.credited(&ws[i])
		}
		return costs
	}
	for i := range ws {
		c := &ws[i]
		costs[i] = c.favoured(float64(p.weight*p.prefill(c)) + p.active(c)) // classic, which is not inlined
	}
	return costs
}

func (p *pricing) cost(c *candidate) float64 {
	if p.credit {
		return p.credited(c)
	}
	return p.classic(c)
}

// credited and classic are the two costs. The conversions forbid fusing two
// operations, which would round otherwise on some processors.
func (p *pricing) credited(c *candidate) float64 {
	prefill := max(0, p.raw(c)-p.credits(c, p.decay(c)))
	return c.favoured(float64(p.w.PrefillScale*prefill) + p.active(c) + p.requests(c))
}

func (p *pricing) classic(c *candidate) float64 {
	return c.favoured(float64(p.weight*p.prefill(c)) + p.active(c))
}

// prefill is classic's blocks to compute.
func (p *pricing) prefill(c *candidate) float64 {
	tokens := p.isl - c.Overlap*p.blockSize
	if p.trackPrefill {
		tokens += c.Load.PrefillTokens
	}
	return float64(tokens) / p.per
}

// active is the blocks held, with the request's own.
func (p *pricing) active(c *candidate) float64 {
	if !p.trackActive {
		return 0
	}
	own := p.blocks - max(c.Reused, c.Spared)
	if c.Load.Faded != 0 {
		return c.Load.Weight() + float64(own)
	}
	return float64(c.Load.ActiveBlocks + own)
}

// explain adds each candidate's terms.
func (p *pricing) explain(ws []candidate, why *Why) {
	for i := range ws {
		c := &ws[i]
		t := Term{
			Worker: c.Worker.ID, Rank: int(c.Rank), Cost: p.cost(c), OverlapWeight: p.weight,
			CachedBlocks: c.Overlap, HostBlocks: int(c.Host), DiskBlocks: int(c.Disk), SharedBlocks: int(c.Shared),
			Favour: c.Favour,
		}
		if p.credit {
			t.RawPrefillBlocks, t.CreditDecay, t.Requests = p.raw(c), p.decay(c), p.requests(c)
			t.Credit = p.credits(c, t.CreditDecay)
			t.OverlapWeight, t.PrefillBlocks, t.ActiveBlocks = p.w.PrefillScale, max(0, t.RawPrefillBlocks-t.Credit), p.active(c)
		} else {
			t.PrefillBlocks, t.ActiveBlocks = p.prefill(c), p.active(c)
		}
		why.Terms = append(why.Terms, t)
	}
}

// The costs of mode kv.
const (
	Classic  = "classic" // the KV router's documents': see the policy kv
	Credited = "credit"  // Dynamo's newer one: see [Credit]
)

// Credit is the weights of the cost "credit" (router-semantics §2.1), all from 0.
// In blocks, for a prompt of ISL tokens:
//
//	decay    = 1 / (1 + Decay · (booked − least booked of any candidate) / blocks of the prompt)
//	credit   = Overlap · decay · device + Host · host + Disk · disk + Shared · shared
//	prefill  = max(0, booked + ISL − credit)
//	cost     = PrefillScale · prefill + active blocks + ActiveRequests · requests in flight
//
// where booked are the prompt tokens yet to be computed for others, and device, host, disk and shared the leading
// blocks that each tier of the worker's cache adds to those of the faster ones. A hit so discounts the backlog of
// others too. Where prefill tokens are not tracked, prefill is 0.
type Credit struct {
	Overlap        float64 `flag:"router-kv-overlap-score-credit" default:"1.0" range:"0.." help:"Blocks credited for each cached block of the prompt. Above 1 a hit outweighs backlog; 0 ignores caches."`
	Decay          float64 `flag:"router-kv-overlap-score-credit-decay" default:"0" range:"0.." help:"How fast the credit falls with a worker's backlog. 1 halves it at one prompt's length; 0 keeps it."`
	Host           float64 `flag:"router-host-cache-hit-weight" default:"0.75" range:"0.." help:"Credit of a block in a worker's host memory."`
	Disk           float64 `flag:"router-disk-cache-hit-weight" default:"0.25" range:"0.." help:"Credit of a block on a worker's disk."`
	Shared         float64 `flag:"router-shared-cache-multiplier" default:"0" range:"0.." help:"Credit of a block in a store that workers share. 0 ignores it."`
	PrefillScale   float64 `flag:"router-prefill-load-scale" default:"1.0" range:"0.." help:"Weight of a block to prefill against a block held. Higher improves TTFT, lower ITL."`
	ActiveRequests float64 `flag:"router-decode-active-request-weight" default:"0" range:"0.." help:"Cost of each request in flight, in blocks, on workers that decode. Higher spreads short requests."`
}

// lower is what the tiers below the device save of a prompt, in blocks.
func (c *Credit) lower(w *candidate) float64 {
	return float64(c.Host*float64(w.Host)) + float64(c.Disk*float64(w.Disk)) + float64(c.Shared*float64(w.Shared))
}

// raw is the blocks to compute before any credit.
func (p *pricing) raw(c *candidate) float64 {
	if !p.trackPrefill {
		return 0
	}
	return float64(c.Load.PrefillTokens+p.isl) / p.per
}

// decay is what is left of the credit for the device.
func (p *pricing) decay(c *candidate) float64 {
	more := c.Load.PrefillTokens - p.least
	if !p.decays || more <= 0 {
		return 1
	}
	backlog := float64(more) / p.per
	return 1 / (1 + float64(float64(p.w.Decay*backlog)/p.size))
}

func (p *pricing) credits(c *candidate, decay float64) float64 {
	device := float64(float64(p.w.Overlap*decay) * float64(c.Overlap))
	if c.Host|c.Disk|c.Shared == 0 {
		return device
	}
	return device + p.w.lower(c)
}

// requests is the weight of the requests in flight.
func (p *pricing) requests(c *candidate) float64 {
	return float64(p.w.ActiveRequests * float64(c.Load.Requests))
}

// Override has a request's own weights for mode kv; nil fields keep the pool's. It does not change bookings, and
// applies to legs that compute prompts. For workers that only decode, only Temperature and AssumeReuse apply.
type Override struct {
	OverlapWeight      *float64 // of the cost "classic", ≥ 0
	OverlapCredit      *float64 // of the cost "credit", as the fields below, ≥ 0
	PrefillScale       *float64 // ≥ 0
	SharedMultiplier   *float64 // ≥ 0
	Temperature        *float64 // ≥ 0
	TrackPrefillTokens *bool    // weigh booked prefill tokens
	AssumeReuse        *bool    // false: weigh the prompt's blocks as if no other request shared them
}

// given sets dst if the request has a value.
func given[T any](dst *T, own *T) {
	if own != nil {
		*dst = *own
	}
}
