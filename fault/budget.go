package fault

import (
	"errors"
	"sync"
)

// BudgetConfig bounds retries. The zero value of a field takes its default.
type BudgetConfig struct {
	// Share is how many of the live requests may be on a retry, from 0 to 1.
	// Default 0.2.
	Share float64
	// Least is how many may be whatever the share says, so that a quiet
	// gateway can retry at all. Default 10.
	Least int
}

// Defaults of BudgetConfig.
const (
	DefaultRetryShare = 0.2
	DefaultRetryLeast = 10
)

// Validate checks the bounds.
func (c BudgetConfig) Validate() error {
	switch {
	case !(c.Share >= 0 && c.Share <= 1): // not a number either
		return errors.New("retry share is not from 0 to 1")
	case c.Least < 0:
		return errors.New("least retries is negative")
	}
	return nil
}

// Budget says whether a failed request may be tried again, so that an outage
// is not multiplied by retries: the requests that are on a retry are at most
// the greater of Least and Share of the live ones. It counts what is in flight
// and so needs no time. It is safe for concurrent use.
type Budget struct {
	cfg BudgetConfig

	mu    sync.Mutex
	stats BudgetStats
}

// BudgetStats is a budget's state.
type BudgetStats struct {
	// Live is the number of requests that have begun and not ended.
	Live int
	// Retrying is how many of them are on a retry, Limit how many may be.
	Retrying, Limit int
	// Refused counts the retries that were not granted since the start.
	Refused uint64
}

// NewBudget makes a budget. Values that Validate refuses take their defaults.
func NewBudget(cfg BudgetConfig) *Budget {
	if !(cfg.Share > 0 && cfg.Share <= 1) {
		cfg.Share = DefaultRetryShare
	}
	if cfg.Least <= 0 {
		cfg.Least = DefaultRetryLeast
	}
	return &Budget{cfg: cfg}
}

// Begin counts a request as live. Every Begin has one End.
func (b *Budget) Begin() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stats.Live++
}

// End counts a live request out.
func (b *Budget) End() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stats.Live--
}

// Take asks for a retry of a live request. What is granted is given back by
// one Return, at the retry's first token or when the request has ended.
func (b *Budget) Take() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stats.Retrying >= b.limit() {
		b.stats.Refused++
		return false
	}
	b.stats.Retrying++
	return true
}

// Return gives a granted retry back.
func (b *Budget) Return() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stats.Retrying--
}

// Stats is the state now.
func (b *Budget) Stats() BudgetStats {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.stats
	s.Limit = b.limit()
	return s
}

// limit is how many retries may be in flight now.
func (b *Budget) limit() int {
	return max(b.cfg.Least, int(b.cfg.Share*float64(b.stats.Live)))
}
