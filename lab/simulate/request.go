package simulate

import (
	"math"
	"slices"
	"time"

	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/lab/replay"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/placement"
)

// request is one request on its way.
type request struct {
	*replay.Request
	id       string
	gateway  int32 // that serves it
	isl      int
	ticket   queue.Ticket[int32]
	p, d     *router.Lease
	decode   int32          // machine
	class    int32          // of the queue's, in its latest wait
	remote   *engine.Remote // what its decode pulls that prefill computed
	turns    int            // legs that it was granted
	done     router.Done    // what slices have computed of its prompt
	sliced   int            // tokens that the latest of them computed
	slices   bool           // its prompt may be computed in slices
	transfer placement.Transfer
	pulls    uint32 // transfers begun
	pulled   int64  // when the latest was
	slow     bool   // one took too long: decode computes the prompt itself
	promoted bool   // it goes before the order, for its next turn too

	arrived, granted int64
	prefilled        int64 // its KV was complete
	sent             int64 // its latest leg
	first, last      int64 // its first and latest token
	tokens           int
	grown            int // blocks
	cached           int
	gaps             []uint32 // µs, where they are wanted

	owed work // of what r.owed has of it
	over bool // it has ended

	prefillWorker, decodeWorker string
}

// sample is its result.
func (r *request) sample(outcome string, now int64) replay.Sample {
	s := replay.Sample{
		Index: r.Index, Session: r.Session, Outcome: outcome,
		Scheduled: replay.Millis(r.arrived), InputTokens: r.isl, PromptTokens: r.isl, AskedTokens: r.OutputTokens,
		OutputTokens: r.tokens, CachedTokens: r.cached, PrefillWorker: r.prefillWorker, DecodeWorker: r.decodeWorker,
	}
	if r.tokens > 0 {
		s.TTFT, s.Queue = replay.Millis(r.first-r.arrived), replay.Millis(r.granted-r.arrived)
	}
	if r.prefilled > 0 {
		s.Prefill = replay.Millis(r.prefilled - r.granted)
	}
	s.End(time.Duration(now - r.arrived))
	return s
}

// longest is the mean of the longest tenth of the gaps between tokens:
// Mooncake's TBT (FAST'25, Fig. 1). It sorts the gaps.
func longest(gaps []uint32) time.Duration {
	if len(gaps) == 0 {
		return 0
	}
	slices.Sort(gaps)
	n := (len(gaps) + 9) / 10
	sum := 0.0
	for _, g := range gaps[len(gaps)-n:] {
		sum += float64(g)
	}
	return time.Duration(math.Round(sum/float64(n))) * time.Microsecond
}
