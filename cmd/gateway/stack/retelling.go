package stack

import (
	"sync/atomic"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/events"
)

// Bounds on what requests ask of an engine after one loss: as many without a sign
// that it understands, and as many in all. Each answer to one is an event of the
// prompt's whole cached prefix.
const (
	retellUnanswered = 64
	retellAtMost     = 4096
)

// retelling is which engines requests ask to tell again what of their caches they
// use: those that can, of ranks whose events were lost. That is vLLM, from 0.26.0;
// older ones take no notice, and are not asked for long.
type retelling struct {
	status func(events.Source) (events.SourceStatus, bool)
	lost   atomic.Pointer[map[router.Rank]*retold] // replaced, never changed
}

// retold is what was asked of one rank.
type retold struct {
	source events.Source
	losses atomic.Uint64 // those that there were when asking began
	before atomic.Uint64 // chains that were told again by then
	asked  atomic.Int64  // requests since
}

// lose takes in the ranks whose events were lost.
func (r *retelling) lose(now map[router.Rank]events.Source) {
	was, next := map[router.Rank]*retold{}, map[router.Rank]*retold{}
	if all := r.lost.Load(); all != nil {
		was = *all
	}
	for rank, source := range now {
		if next[rank] = was[rank]; next[rank] == nil {
			s, _ := r.status(source)
			next[rank] = &retold{source: source}
			next[rank].losses.Store(s.Losses)
			next[rank].before.Store(s.Retold)
		}
	}
	r.lost.Store(&next)
}

// wanted reports whether the next request to a rank shall ask. It is on every
// request's way, and costs one look where nothing is lost.
func (r *retelling) wanted(w *pools.Worker, rank int) bool {
	all := r.lost.Load()
	if all == nil || len(*all) == 0 {
		return false
	}
	of := (*all)[router.Rank{Worker: w.ID, Rank: rank}]
	if of == nil {
		return false
	}
	s, followed := r.status(of.source)
	if !followed || s.State != events.Predicted {
		return false
	}
	if of.losses.Swap(s.Losses) != s.Losses {
		of.before.Store(s.Retold)
		of.asked.Store(0)
	}
	n := of.asked.Add(1)
	return n <= retellAtMost && (n <= retellUnanswered || s.Retold > of.before.Load())
}

// retells reports whether a worker's engine may know how, and its router would
// make use of it: a decode pool's looks nothing up.
func retells(w *pools.Worker) bool {
	return (w.Engine == "vllm" || w.Engine == "sim") && w.Role != pools.Decode
}
