package router

import (
	"math"
	"slices"

	"github.com/tandem-pd/tandem/pools"
)

// bears reports whether a worker has all the taints that are required, and the adapter unless that is empty.
func bears(w *pools.Worker, required []string, adapter string) bool {
	if adapter != "" && !slices.Contains(w.Adapters, adapter) {
		return false
	}
	for _, taint := range required {
		if !slices.Contains(w.Taints, taint) {
			return false
		}
	}
	return true
}

// suits reports whether w could serve req if it took requests and were empty: a rank
// of it that the pin names, the taints and the adapter that are required, and room for the prompt.
func (c *Config) suits(w *pools.Worker, req *Request) bool {
	if p := req.Pin; p != nil && (p.Worker != "" && p.Worker != w.ID || p.Ranked && p.Rank >= w.Ranks()) {
		return false
	}
	blocks := blocksOf(req.ISL, max(1, w.BlockSize))
	return bears(w, req.Required, req.Adapter) && (req.Only == nil || req.Only(w)) && (!c.Room || w.TotalKVBlocks <= 0 || blocks < w.TotalKVBlocks)
}

// favour is the sum of the weights of the preferred taints that w has.
func favour(w *pools.Worker, preferred map[string]float64) float64 {
	var sum float64
	for _, taint := range w.Taints { // in this order: a map's order would change how the sum is rounded
		sum += preferred[taint]
	}
	return sum
}

// favoured is a cost as the request's preferences leave it: times
// exp(−tanh(sum of weights)), from 0.368 to 2.718 (router-semantics §2.1).
func (c *candidate) favoured(cost float64) float64 {
	if c.Favour == 0 {
		return cost
	}
	return weighed(cost, c.Favour)
}

// weighed is apart so that favoured is inlined: few requests prefer anything.
func weighed(cost, favour float64) float64 { return cost * math.Exp(-math.Tanh(favour)) }
