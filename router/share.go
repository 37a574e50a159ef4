package router

import (
	"time"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/load"
)

// Changes calls visit with this gateway's share of each account that changed since the last call. Room kept for prompts
// computed elsewhere is a share without a worker.
func (r *Router) Changes(now time.Time, visit func(load.Shared)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.core.book.Changes(now, visit)
	if promised := int(r.core.promised.Load() - r.core.peerPromises.blocks); promised != r.core.peerPromises.published {
		r.core.peerPromises.published = promised
		visit(load.Shared{Share: load.Share{Account: load.Account{ActiveBlocks: promised}}})
	}
}

// ApplyShares replaces another gateway's shares of the pool's accounts, and reports whether any fell. It holds the
// router's lock throughout: pass at most a few hundred.
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

// Sent is a prompt sent to a worker, to predict its cache.
type Sent struct {
	Worker string
	Rank   int
	Text   bool     // see [Request.Text]
	Hashes []uint64 // of the prompt's full blocks, or its granules; read-only
}

// maxSent bounds the prompts that wait for [Router.Sends]. Others are not published.
const maxSent = 256

// noteSent keeps a prompt for [Router.Sends].
func (r *Router) noteSent(s Sent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.core.sent) < maxSent {
		r.core.sent = append(r.core.sent, s)
	}
}

// Sends returns the prompts sent by this gateway's bookings since the last call, if they predict a cache.
func (r *Router) Sends() []Sent {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.core.sent
	r.core.sent = nil
	return all
}

// ApplySent predicts the effect of another gateway's sent prompt on p. It does not retain s.
func (r *Router) ApplySent(p *pools.Pool, s Sent, now time.Time) {
	if m, here := p.Member(s.Worker); here {
		r.see(p)
		r.sources.Sent(m.Worker, s.Rank, s.Hashes, s.Text, now)
	}
}

// booked calls OnBooking.
func (r *Router) booked(made bool) {
	if f := r.core.cfg.OnBooking; f != nil {
		f(made)
	}
}

// peerPromises is the part of a pool's promised blocks that other gateways promised.
type peerPromises struct {
	blocks    int64
	by        map[string]int64
	published int // this gateway's own, in the last [Router.Changes]
}

// applyPromised sets what another gateway promised, and reports whether it fell.
func (k *core) applyPromised(peer string, blocks int64) bool {
	h := &k.peerPromises
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
