package http1

import (
	"maps"
	"slices"
)

// Stats is one worker's connections. The counts begin again at 0 when a worker
// comes back that was without a connection for ten minutes.
type Stats struct {
	Base string // the worker's base URL
	// Open is how many connections there are, Idle how many of them carry no call.
	Open, Idle int
	// Dialed is how many connections were made, Reused how many calls were made on one that was there.
	Dialed, Reused uint64
}

// Stats gives every worker's connections, ordered by base URL.
func (h *Client) Stats() []Stats {
	pools := *h.pools.Load()
	out := make([]Stats, 0, len(pools))
	for _, base := range slices.Sorted(maps.Keys(pools)) {
		p := pools[base]
		p.mu.Lock()
		out = append(out, Stats{Base: p.target.base, Open: p.open, Idle: len(p.idle), Dialed: p.dialed, Reused: p.reused.Load()})
		p.mu.Unlock()
	}
	return out
}
