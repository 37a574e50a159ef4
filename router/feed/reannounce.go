package feed

import (
	"sync/atomic"

	"github.com/tandem-pd/tandem/kv/follow"
	"github.com/tandem-pd/tandem/kv/overlap"
	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/pools"
)

// Bounds of the requests that ask an engine to re-announce after one loss: until it does so, and in all. Each costs an
// event with the prompt's whole cached prefix.
const (
	maxUnanswered   = 64
	maxReannouncing = 4096
)

// reannounce selects the ranks to ask for re-announcements of the cached prefixes that requests use: ranks with lost
// events whose engine supports it, vLLM from 0.26.0. Older releases ignore the request and are soon left alone.
type reannounce struct {
	status func(wire.Source) (follow.SourceStatus, bool)
	lost   atomic.Pointer[map[overlap.Rank]*asked] // replaced, never changed
}

// asked counts the requests to one rank.
type asked struct {
	source   wire.Source
	losses   atomic.Uint64 // before the first request
	before   atomic.Uint64 // chains re-announced before it
	requests atomic.Int64
}

// lose sets the ranks whose events were lost.
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

// reannounces reports whether a worker's engine may support it and its router uses the result. Decode pools look
// nothing up.
func reannounces(w *pools.Worker) bool {
	return (w.Engine == "vllm" || w.Engine == "sim") && w.Role != pools.Decode
}
