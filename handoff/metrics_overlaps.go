package handoff

import "github.com/tandem-pd/tandem/pools"

// perPool are the labels of what is told of each pool.
var perPool = []string{"model", "role"}

var (
	sentBlocks = desc("frontend_worker_sent_blocks", "KV blocks that a worker was sent within router-predicted-ttl-secs, believed to be cached beside those it told of.", perWorker...)

	overlapBlocks = desc("component_router_overlap_blocks_total", "Blocks that bookings took to be cached on their worker, by why: events, predicted, sent.", "model", "role", "source")

	indexHeld    = desc("component_router_index_held_blocks", "Pairs of block and rank in the index, each tier counted for itself.", perPool...)
	indexBlocks  = desc("component_router_index_blocks", "Distinct blocks in the index.", perPool...)
	indexOwners  = desc("component_router_index_owners", "Ranks that the index knows.", perPool...)
	indexHoled   = desc("component_router_index_holed", "Pairs of rank and tier whose blocks have gaps.", perPool...)
	indexBytes   = desc("component_router_index_bytes", "Memory of the index.", perPool...)
	indexEvicted = desc("component_router_index_evicted_blocks_total", "Pairs of block and rank that the index had no room for.", perPool...)
)

// overlaps tells what a pool's router believes to be cached, and why.
func (s *state) overlaps(p *pools.Pool, gauge, counter emit) {
	r, role := s.flow.routerOf(p), string(p.Role)
	if x, ok := r.IndexStats(); ok {
		gauge(indexHeld, float64(x.Held), p.Model, role)
		gauge(indexBlocks, float64(x.Blocks), p.Model, role)
		gauge(indexOwners, float64(x.Owners), p.Model, role)
		gauge(indexHoled, float64(x.Holed), p.Model, role)
		gauge(indexBytes, float64(x.Bytes), p.Model, role)
		counter(indexEvicted, float64(x.Evicted), p.Model, role)
	}
	if r.Blind() {
		return
	}
	b := r.Overlaps()
	counter(overlapBlocks, float64(b.Events), p.Model, role, "events")
	counter(overlapBlocks, float64(b.Predicted), p.Model, role, "predicted")
	counter(overlapBlocks, float64(b.Sent), p.Model, role, "sent")
}
