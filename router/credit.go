package router

import (
	"fmt"
	"math"
)

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
// where booked are the prompt tokens yet to be computed for others, and device,
// host, disk and shared the leading blocks that each tier of the worker's cache
// adds to those of the faster ones. A hit so discounts the backlog of others too.
// Where prefill tokens are not tracked, prefill is 0.
type Credit struct {
	Overlap        float64 // of a block on the device; above 1 it discounts others' backlog as well
	Decay          float64 // how fast Overlap falls with a backlog longer than others'; 0: not at all
	Host, Disk     float64 // of a block in the worker's host memory, and on its disk
	Shared         float64 // of a block in a store that workers share
	PrefillScale   float64 // a block to compute against one held
	ActiveRequests float64 // a request in flight, in blocks; not in prefill pools
}

// DefaultCredit are the reference's weights.
func DefaultCredit() Credit {
	return Credit{Overlap: 1, Host: 0.75, Disk: 0.25, PrefillScale: 1}
}

// check reports the first weight that is out of range, by its flag.
func (c *Credit) check() error {
	for _, w := range []struct {
		flag  string
		value float64
	}{
		{"router-kv-overlap-score-credit", c.Overlap},
		{"router-kv-overlap-score-credit-decay", c.Decay},
		{"router-host-cache-hit-weight", c.Host},
		{"router-disk-cache-hit-weight", c.Disk},
		{"router-shared-cache-multiplier", c.Shared},
		{"router-prefill-load-scale", c.PrefillScale},
		{"router-decode-active-request-weight", c.ActiveRequests},
	} {
		if !(w.value >= 0) || math.IsInf(w.value, 0) {
			return fmt.Errorf("%s: %v is not a number from 0", w.flag, w.value)
		}
	}
	return nil
}

// lower is what the tiers below the device save of a prompt, in blocks.
func (c *Credit) lower(w *Candidate) float64 {
	return float64(c.Host*float64(w.Host)) + float64(c.Disk*float64(w.Disk)) + float64(c.Shared*float64(w.Remote))
}

// raw is the blocks to compute before any credit.
func (p *pricing) raw(c *Candidate) float64 {
	if !p.trackPrefill {
		return 0
	}
	return float64(c.Load.PrefillTokens+p.isl) / p.per
}

// decay is what is left of the credit for the device.
func (p *pricing) decay(c *Candidate) float64 {
	more := c.Load.PrefillTokens - p.least
	if !p.decays || more <= 0 {
		return 1
	}
	backlog := float64(more) / p.per
	return 1 / (1 + float64(float64(p.w.Decay*backlog)/p.size))
}

// credits is the blocks that are credited.
func (p *pricing) credits(c *Candidate, decay float64) float64 {
	device := float64(float64(p.w.Overlap*decay) * float64(c.Overlap))
	if c.Host|c.Disk|c.Remote == 0 {
		return device
	}
	return device + p.w.lower(c)
}

// requests is the weight of the requests in flight.
func (p *pricing) requests(c *Candidate) float64 {
	return float64(p.w.ActiveRequests * float64(c.Load.Requests))
}
