package feed

import (
	"sync/atomic"

	"github.com/tandem-pd/tandem/kv/follow"
	"github.com/tandem-pd/tandem/kv/overlap"
	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/pools"
)

// Bounds on the requests that ask an engine after one loss: while no sign shows that it understands, and in all. Each
// answer to one is an event of the prompt's whole cached prefix.
const (
	maxUnanswered   = 64
	maxReannouncing = 4096
)

// reannounce selects the ranks that are asked to re-announce the cached prefixes a request uses: those that can, of ranks
// whose events were lost. That is vLLM, from 0.26.0; older releases take no notice, and are not asked for long.
type reannounce struct {
	status func(wire.Source) (follow.SourceStatus, bool)
	lost   atomic.Pointer[map[overlap.Rank]*asked] // replaced, never changed
}

// asked counts what was asked of one rank.
type asked struct {
	source   wire.Source
	losses   atomic.Uint64 // those that there were when asking began
	before   atomic.Uint64 // chains that had been re-announced by then
	requests atomic.Int64  // that asked since
}

// lose takes in the ranks whose events were lost.
func (r *reannounce) lose(now map[overlap.Rank]wire.Source) {
	var was map[overlap.Rank]*asked
	if all := r.lost.Load(); all != nil {
		was = *all
	}
	next := map[overlap.Rank]*asked{}
	for rank, source := range now {
		of := was[rank]
		if of == nil {
			s, _ := r.status(source)
			of = &asked{source: source}
			of.losses.Store(s.Losses)
			of.before.Store(s.Reannounced)
		}
		next[rank] = of
	}
	r.lost.Store(&next)
}

// wanted is [Feed.Reannounce].
func (r *reannounce) wanted(w *pools.Worker, rank int) bool {
	all := r.lost.Load()
	if all == nil || len(*all) == 0 {
		return false
	}
	of := (*all)[overlap.Rank{Worker: w.ID, Rank: rank}]
	if of == nil {
		return false
	}
	s, followed := r.status(of.source)
	if !followed || s.State != follow.Predicted {
		return false
	}
	if of.losses.Swap(s.Losses) != s.Losses {
		of.before.Store(s.Reannounced)
		of.requests.Store(0)
	}
	n := of.requests.Add(1)
	return n <= maxReannouncing && (n <= maxUnanswered || s.Reannounced > of.before.Load())
}

// reannounces reports whether a worker's engine may know how, and its router would make use of it: a decode pool's looks
// nothing up.
func reannounces(w *pools.Worker) bool {
	return (w.Engine == "vllm" || w.Engine == "sim") && w.Role != pools.Decode
}
