package connector

import (
	"time"

	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/upstream"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
)

// NIXLPush is vLLM's NixlPushConnector: both legs are called at once, decode registers with prefill's engine, which
// writes the blocks when it has them. The engines know the request by X-Request-Id and path, which are the same on
// both legs; where prefill's engine is comes from its record. Fields as in vLLM's disagg_proxy_pushconnector_demo.py.
//
// Prefill's engine keeps what decode has not asked for under NIXL's lease, 30 s. A decode engine forgets its
// registration after push_registration_timeout, 480 s, and its request waits until its call ends.
type NIXLPush struct{}

var _ Connector = NIXLPush{}

// Pairs reports different releases or block sizes, and a prefill worker of which decode could not know where it is.
func (NIXLPush) Pairs(p, d *pools.Worker) error {
	return vllmConcurrent(p, d)
}

// Plan edits the body into the two legs.
func (NIXLPush) Plan(r Round) (Plan, error) {
	params := pushParams(r)
	decode, err := leg(r, pools.Decode, func(e *openai.Edit) { e.Set("kv_transfer_params", params) })
	if err != nil {
		return Plan{}, err
	}
	prefill, err := vllmPrefill(r, prefillParams)
	return Plan{Order: Together, Prefill: prefill, Decode: decode}, err
}

// pushParams is the hand-off of a decode leg: where prefill's rank is. Each rank has the port after the one before it.
func pushParams(r Round) []byte {
	host, base := bootstrap(r.P)
	e, _ := openai.NewEdit([]byte(`{"do_remote_prefill":true,"do_remote_decode":false}`))
	e.SetString("remote_engine_id", r.P.TransferIDs[r.PRank])
	e.SetString("remote_host", host)
	e.SetInt("remote_port", int64(base+r.PRank))
	e.SetInt("tp_size", int64(max(1, r.P.TensorParallel)))
	e.SetInt("pp_size", int64(max(1, r.P.PipelineParallel)))
	e.SetString("remote_request_id", r.ID)
	return e.Bytes()
}

// OnPrefill hands nothing over: decode has registered already. What prefill answers is the pull protocol's.
func (NIXLPush) OnPrefill(_ Round, answer prefill.Answer, _ time.Time) (kv prefill.KV, whole bool, err error) {
	return kv, false, answered(answer)
}

// Bind changes nothing.
func (NIXLPush) Bind(*upstream.Leg, prefill.KV) {}

// Abandon has a decode worker refuse a request under the round's own id, which frees prefill's blocks as with [NIXL].
// While prefill runs there is nothing to release: the end of its call ends it.
func (NIXLPush) Abandon(r Round, _ prefill.KV) []upstream.Leg {
	if !r.Held {
		return nil
	}
	d := vllmRelease(r, r.Request.Endpoint)
	d.RequestID = r.ID
	NIXL{}.Bind(&d, prefill.KV{Params: pushParams(r)})
	return []upstream.Leg{d}
}
