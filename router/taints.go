package router

import (
	"math"
	"slices"

	"github.com/tandem-pd/tandem/pools"
)

// bears reports whether a worker has all required taints, and the adapter unless it is empty.
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

// suits reports whether w could serve req if it were up and empty: pin, taints, adapter and room.
func (c *Config) suits(w *pools.Worker, req *Request) bool {
	if p := req.Pin; p != nil && (p.Worker != "" && p.Worker != w.ID || p.Ranked && p.Rank >= w.Ranks()) {
		return false
	}
	blocks := blocksOf(req.ISL, max(1, w.BlockSize))
	return bears(w, req.Required, req.Adapter) && (req.Only == nil || req.Only(w)) &&
		(!c.Room || w.TotalKVBlocks <= 0 || blocks < w.TotalKVBlocks)
}

// favour returns the sum of the weights of the preferred taints of w.
func favour(w *pools.Worker, preferred map[string]float64) float64 {
	var sum float64
	for _, taint := range w.Taints { // in this order: a map's order would change the rounding
		sum += preferred[taint]
	}
	return sum
}

// favoured returns the cost times exp(−tanh(sum of weights)), from 0.368 to 2.718 (router-semantics §2.1).
func (c *candidate) favoured(cost float64) float64 {
	if c.Favour == 0 {
		return cost
	}
	return weighed(cost, c.Favour)
}

// weighed is separate to keep favoured inlinable: few requests have preferences.
func weighed(cost, favour float64) float64 { return cost * math.Exp(-math.Tanh(favour)) }
