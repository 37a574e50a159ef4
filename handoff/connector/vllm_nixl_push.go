package connector

import (
	"fmt"
	"time"

	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
)

// NIXLPush is vLLM's NixlPushConnector: like [NIXL], prefill answers with the location of its blocks and keeps them
// under a lease; decode gets that answer and registers with prefill's engine, which writes the blocks. Engines match
// the request by X-Request-Id and path, equal on both legs (nixl/push_worker.py, _pop_matching_finished_blocks).
//
// Decode is called after prefill has answered, though it could register before: a registered decode request that ends
// keeps its blocks until the KV arrives (finish_requests in v1/core/sched/scheduler.py) or the engine restarts.
type NIXLPush struct{ NIXL }

var _ Connector = NIXLPush{}

// Pairs requires equal releases and block sizes.
func (NIXLPush) Pairs(p, d *pools.Worker) error {
	if p.BlockSize != d.BlockSize {
		return fmt.Errorf("%s has blocks of %d tokens and %s of %d: want the same", p.ID, p.BlockSize, d.ID, d.BlockSize)
	}
	return sameRelease(p, d)
}

// OnPrefill is like NIXL's.
func (NIXLPush) OnPrefill(r Round, answer prefill.Answer, now time.Time) (kv prefill.KV, whole bool, err error) {
	kv, err = onPrefill(r, answer, now, "push")
	kv.RequestID = r.ID
	return kv, false, err
}

// Bind adds the metadata to the body, and gives decode's request the id of the prefill round.
func (NIXLPush) Bind(d *http1.Leg, kv prefill.KV) {
	NIXL{}.Bind(d, kv)
	d.RequestID = kv.RequestID
}

// Release makes no call: a decode engine that refuses a request sends nothing to prefill (start_load_kv in 0.32's
// nixl/push_worker.py), and a second registration would wait forever. The lease frees the blocks.
func (NIXLPush) Release(Round, prefill.KV) []http1.Leg { return nil }
