package fault

import (
	"context"
	"slices"
	"sync"
)

// The retry budget: the greater of retryShare of the live requests, and a floor, so
// that a quiet gateway can retry at all. The floor is retryLeast divided among the gateways of a group, and retryAlone at least.
const (
	retryShare = 0.2
	retryLeast = 10
	retryAlone = 2
)

// Budget bounds retries, so that they do not multiply an outage: at most a fifth of the
// live requests, and at least 10 for all gateways of a group together, may be on a retry. It counts requests in flight and
// so needs no clock. The zero Budget is ready; it is safe for concurrent use.
type Budget struct {
	mu      sync.Mutex
	stats   BudgetStats
	among   int             // gateways; 0 is one
	waiting []chan struct{} // for a retry, the first first; closed when it is granted
}

// BudgetStats is a budget's state.
type BudgetStats struct {
	Live int // requests that have begun and not ended
	// Retrying is how many of them are on a retry, Limit how many may be.
	Retrying, Limit int
	Waiting         int    // how many wait until they may
	Refused         uint64 // retries that were not granted since the start
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

// Take asks for a retry of a live request. Each granted retry needs one Return, at the
// retry's first token or at the request's end.
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

// Wait is Take of a request that can wait until ctx ends: those before it come first.
func (b *Budget) Wait(ctx context.Context) bool {
	b.mu.Lock()
	if len(b.waiting) == 0 && b.stats.Retrying < b.limit() {
		b.stats.Retrying++
		b.mu.Unlock()
		return true
	}
	granted := make(chan struct{})
	b.waiting = append(b.waiting, granted)
	b.mu.Unlock()
	select {
	case <-granted:
		return true
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	at := slices.Index(b.waiting, granted)
	if at < 0 {
		return true // in the same moment
	}
	b.waiting = slices.Delete(b.waiting, at, at+1)
	b.stats.Refused++
	return false
}

// Return gives a granted retry back, to the first that waits for one.
func (b *Budget) Return() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stats.Retrying--
	for len(b.waiting) > 0 && b.stats.Retrying < b.limit() {
		close(b.waiting[0])
		b.waiting = b.waiting[1:]
		b.stats.Retrying++
	}
}

// SetReplicaCount sets the number of gateways in the group, this one included.
func (b *Budget) SetReplicaCount(gateways int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.among = gateways
}

// Stats is the state now.
func (b *Budget) Stats() BudgetStats {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.stats
	s.Limit, s.Waiting = b.limit(), len(b.waiting)
	return s
}

// limit is how many retries may be in flight now.
func (b *Budget) limit() int {
	return max(retryAlone, retryLeast/max(1, b.among), int(retryShare*float64(b.stats.Live)))
}
