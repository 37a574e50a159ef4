package router

import (
	"time"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/load"
)

// Changes calls visit with this gateway's share of each account that its bookings have changed since the last call. The room that
// the pool keeps for prompts which are computed elsewhere comes as the blocks of a worker without a name.
func (r *Router) Changes(now time.Time, visit func(load.Shared)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.core.book.Changes(now, visit)
	if promised := int(r.core.promised.Load() - r.core.heard.blocks); promised != r.core.heard.said {
		r.core.heard.said = promised
		visit(load.Shared{Share: load.Share{Account: load.Account{ActiveBlocks: promised}}})
	}
}

// ApplyShares puts the shares that another gateway has of the pool's accounts in the place of those that it had, and reports whether any of
// them fell. It holds the router's lock for as long as all of them take: some hundred at most should come at a time.
func (r *Router) ApplyShares(peer string, shares []load.Shared, now time.Time) (fell bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range shares {
		if s := &shares[i]; s.Worker == "" {
			fell = r.core.applyPromised(peer, int64(s.ActiveBlocks)) || fell
		} else {
			fell = r.core.book.ApplyShare(peer, *s, now) || fell
		}
	}
	return fell
}

// Sent is a prompt that was sent to a worker of whose cache that is a prediction.
type Sent struct {
	Worker string
	Rank   int
	Text   bool     // see [Request.Text]
	Hashes []uint64 // of the prompt's full blocks, or its granules; they must not be written to
}

// maxSent bounds the prompts that wait for [Router.Sends]. Those that come after go without being known to others.
const maxSent = 256

// noteSent keeps a prompt for [Router.Sends].
func (r *Router) noteSent(s Sent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.core.sent) < maxSent {
		r.core.sent = append(r.core.sent, s)
	}
}

// Sends returns the prompts that this gateway's bookings have sent since the last call, where they predict a cache.
func (r *Router) Sends() []Sent {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.core.sent
	r.core.sent = nil
	return all
}

// ApplySent predicts for p what another gateway does that has sent the prompt. It keeps nothing of s.
func (r *Router) ApplySent(p *pools.Pool, s Sent, now time.Time) {
	if m, here := p.Member(s.Worker); here {
		r.see(p)
		r.sources.Sent(m.Worker, s.Rank, s.Hashes, s.Text, now)
	}
}

// booked calls the hook.
func (r *Router) booked(made bool) {
	if f := r.core.cfg.OnBooking; f != nil {
		f(made)
	}
}

// heard is the part of a pool's promised blocks that other gateways have promised.
type heard struct {
	blocks int64
	by     map[string]int64
	said   int // of this gateway's own, in the last [Router.Changes]
}

// applyPromised enters what another gateway has promised, and reports whether it is less than before.
func (k *core) applyPromised(peer string, blocks int64) bool {
	h := &k.heard
	more := blocks - h.by[peer]
	h.blocks += more
	k.promised.Add(more)
	if blocks == 0 {
		delete(h.by, peer)
	} else {
		if h.by == nil {
			h.by = map[string]int64{}
		}
		h.by[peer] = blocks
	}
	return more < 0
}
