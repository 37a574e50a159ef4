package router

import (
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/pools"
)

// Thresholds exclude the ranks of workers with a higher load from the choice. Zero is off. If all are excluded, the
// request fails with an [*OverloadedError] instead of waiting.
type Thresholds struct {
	// DecodeBlocks is the share of a rank's KV blocks in use, up to 1. It applies where active blocks are tracked and
	// the worker registered its total: not in prefill pools.
	DecodeBlocks float64 `flag:"active-decode-blocks-threshold" default:"0" range:"0..1" help:"Share of a worker's KV blocks above which it is not chosen; with all above it, 503. 0 is off. POST /busy_threshold changes it."`
	// PrefillTokens is the prompt tokens yet to compute. It applies where they are tracked: not in decode pools.
	PrefillTokens int `flag:"active-prefill-tokens-threshold" default:"0" range:"0..2147483647" help:"Prompt tokens yet to prefill above which a worker is not chosen; with all above it, 503. 0 is off."`
}

// Validate returns every threshold that is out of range.
func (t Thresholds) Validate() error { return setting.Check(&t) }

// The thresholds' names in [OverloadedError.Reason].
const (
	OverDecodeBlocks  = "active_decode_blocks"
	OverPrefillTokens = "active_prefill_tokens"
)

// OverloadedError refuses a request because every eligible worker is above one of the [Thresholds].
type OverloadedError struct {
	Reason string // the threshold that excluded most of them
}

func (e *OverloadedError) Error() string {
	return "every worker is above the busy threshold of " + e.Reason
}

// over counts the slots that are above a threshold.
type over struct{ blocks, tokens int }

// takesOut reports whether s is above a threshold, and counts it.
func (t *Thresholds) takesOut(s *slot, prefillTokens int, n *over) bool {
	switch {
	case t.PrefillTokens > 0 && prefillTokens > t.PrefillTokens:
		n.tokens++
	case t.DecodeBlocks > 0 && s.worker.TotalKVBlocks > 0 && float64(s.page.ActiveBlocks) > t.DecodeBlocks*float64(s.worker.TotalKVBlocks):
		n.blocks++
	default:
		return false
	}
	return true
}

// err names the threshold that most were above.
func (n over) err() error {
	if n.blocks > n.tokens {
		return &OverloadedError{OverDecodeBlocks}
	}
	return &OverloadedError{OverPrefillTokens}
}

// Thresholds returns those in force for a model's pools.
func (s *Set) Thresholds(model string) Thresholds {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if t, ok := s.limits[model]; ok {
		return t
	}
	return s.Configured()
}

// Configured returns the thresholds of the settings, the default for models without [Set.SetThresholds].
func (s *Set) Configured() Thresholds { return s.configs[pools.Decode].Thresholds }

// SetThresholds sets t for all current and future pools of a model. It returns t's validation error.
func (s *Set) SetThresholds(model string, t Thresholds) error {
	if err := t.Validate(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.limits[model] = t; t == s.Configured() {
		delete(s.limits, model)
	}
	for key, e := range s.pools {
		if key.model == model {
			e.router.SetThresholds(t)
		}
	}
	return nil
}
