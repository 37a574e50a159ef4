package connector

import (
	"fmt"
	"time"

	"github.com/tandem-pd/tandem/internal/upstream"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
)

// NIXLPush is vLLM's NixlPushConnector: as with [NIXL] prefill answers with where its blocks lie, and keeps them under a lease;
// decode gets that answer and registers with prefill's engine, which writes the blocks. The engines know the request by
// X-Request-Id and path, which are the same on both legs (nixl/push_worker.py, _pop_matching_finished_blocks).
//
// Decode is called when prefill has answered, though it could register before: a decode request that has registered and
// ends, because its client leaves or prefill fails, keeps its blocks until the KV comes (finish_requests in
// v1/core/sched/scheduler.py), and without it until the engine is started again.
type NIXLPush struct{ NIXL }

var _ Connector = NIXLPush{}

// Pairs reports different releases or block sizes.
func (NIXLPush) Pairs(p, d *pools.Worker) error {
	if p.BlockSize != d.BlockSize {
		return fmt.Errorf("%s has blocks of %d tokens and %s of %d: want the same", p.ID, p.BlockSize, d.ID, d.BlockSize)
	}
	return sameRelease(p, d)
}

// OnPrefill is NIXL's.
func (NIXLPush) OnPrefill(r Round, answer prefill.Answer, now time.Time) (kv prefill.KV, whole bool, err error) {
	kv, err = onPrefill(r, answer, now, "push")
	kv.RequestID = r.ID
	return kv, false, err
}

// Bind adds the metadata to the body, and has decode know the request by the id of the round that prefilled it.
func (NIXLPush) Bind(d *upstream.Leg, kv prefill.KV) {
	NIXL{}.Bind(d, kv)
	d.RequestID = kv.RequestID
}

// Abandon makes no call: of a request that decode refuses nothing is sent to prefill (start_load_kv in 0.32's
// nixl/push_worker.py), and one that registers after another has would wait for ever. The lease frees prefill's blocks.
func (NIXLPush) Abandon(Round, prefill.KV) []upstream.Leg { return nil }
