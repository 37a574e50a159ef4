package connector

import (
	"fmt"
	"time"

	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/prefill"
)

// Offload is vLLM's OffloadingConnector with a p2p tier: prefill leaves the prompt's blocks in host memory under an
// id. A decode engine with that id fetches those it lacks (remote_decoder and remote_prefiller in 0.32's
// v1/kv_offload/tiering/p2p/manager.py). It computes blocks that do not arrive, so no hand-off fails.
//
// Decode is called after prefill has answered: if prefill fails, an earlier call would wait 30 s for blocks
// (_LOAD_TIMEOUT_S in p2p/session/client.py).
//
// Block sizes and releases must be equal, as with [NIXLPush]. No call frees the blocks: the tier is not notified of a
// request that decode refuses.
type Offload struct{ NIXLPush }

var _ Connector = Offload{}

const (
	// offloadLease is how long prefill's engine keeps blocks that no decode engine requests
	// (unbound_store_timeout_s).
	offloadLease = 60 * time.Second
	// offloadPort is where rank 0 listens by default, each further one at the next port (VLLM_P2P_SIDE_CHANNEL_PORT).
	offloadPort = 5710
)

// Plan edits the body into the two legs, or the decode leg of staged KV.
func (Offload) Plan(r Round) (Plan, error) {
	plan, err := vllmPlan(r, fmt.Appendf(nil, `{"remote_decoder":{"kv_request_id":%q}}`, transferID(r)))
	plan.Once = true // fetched blocks are gone from the tier
	return plan, err
}

// OnPrefill hands over the address of prefill's engine and the round's id, which the answer does not contain.
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
func (Offload) Bind(d *http1.Leg, kv prefill.KV) { NIXL{}.Bind(d, kv) }
