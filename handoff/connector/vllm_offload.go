package connector

import (
	"fmt"
	"time"

	"github.com/tandem-pd/tandem/internal/upstream"
	"github.com/tandem-pd/tandem/prefill"
)

// Offload is vLLM's OffloadingConnector with a p2p tier: prefill leaves the prompt's blocks in its host's memory under an id, and a
// decode engine that is given the id fetches those that it lacks (remote_decoder and remote_prefiller in 0.32's
// v1/kv_offload/tiering/p2p/manager.py). It computes the blocks that do not arrive, so that no hand-off fails.
//
// Decode is called when prefill has answered. It could fetch blocks while prefill computes, but of a prefill that fails it waits for
// them for 30 s (_LOAD_TIMEOUT_S in p2p/session/client.py).
//
// As with [NIXLPush] block sizes and releases are the same, and no call frees the blocks: the tier is not
// informed of a request that decode refuses.
type Offload struct{ NIXLPush }

var _ Connector = Offload{}

const (
	// offloadLease is how long prefill's engine keeps blocks that no decode engine has asked for (unbound_store_timeout_s).
	offloadLease = 60 * time.Second
	// offloadPort is where rank 0 listens by default, each further one at the next port (VLLM_P2P_SIDE_CHANNEL_PORT).
	offloadPort = 5710
)

// Plan edits the body into the two legs, or the decode leg of staged KV.
func (Offload) Plan(r Round) (Plan, error) {
	plan, err := vllmPlan(r, fmt.Appendf(nil, `{"remote_decoder":{"kv_request_id":%q}}`, transferID(r)))
	plan.Once = true // what has been fetched is gone from the tier
	return plan, err
}

// OnPrefill hands over the address of prefill's engine and the round's id. Prefill's answer has neither.
func (Offload) OnPrefill(r Round, answer prefill.Answer, now time.Time) (kv prefill.KV, whole bool, err error) {
	if err := answered(answer); err != nil || r.Slice > 0 {
		return kv, false, err
	}
	host, port := sideChannel(r.P, offloadPort)
	kv = nixlKV(r, fmt.Appendf(nil, `{"remote_prefiller":{"kv_request_id":%q,"remote_host":%q,"remote_port":%d}}`,
		transferID(r), urlHost(host), port+r.PRank), now)
	kv.Expires = now.Add(offloadLease)
	return kv, false, nil
}

// Bind adds the metadata to the body.
func (Offload) Bind(d *upstream.Leg, kv prefill.KV) { NIXL{}.Bind(d, kv) }
