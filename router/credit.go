package router

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

// credits is the blocks that are credited.
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
