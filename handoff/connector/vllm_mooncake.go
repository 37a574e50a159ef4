package connector

import (
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
)

// Mooncake is vLLM's MooncakeConnector: both legs have one transfer id. Decode looks up prefill's engine at its
// bootstrap server and requests the blocks from it. Fields as in vLLM's
// examples/disaggregated/mooncake_connector/mooncake_connector_proxy.py, which calls both legs at once.
//
// Here decode is called after prefill has answered, because engines hang rather than fail. If prefill ends otherwise
// than by length, a waiting decode engine keeps its blocks for VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT, 480 s, even after
// the request has ended (finish_requests in v1/core/sched/scheduler.py). It occupies one of the 20 senders of
// prefill's engine (num_sender_tasks in mooncake_connector.py).
type Mooncake struct{}

var _ Connector = Mooncake{}

// mooncakeLease is how long prefill's engine holds the blocks for decode (VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT).
const mooncakeLease = 480 * time.Second

// Pairs requires equal releases and block sizes, and a prefill worker whose transfer endpoint and engine ids are
// known.
func (Mooncake) Pairs(p, d *pools.Worker) error {
	switch {
	case p.BlockSize != d.BlockSize:
		return fmt.Errorf("%s has blocks of %d tokens and %s of %d: want the same", p.ID, p.BlockSize, d.ID, d.BlockSize)
	case p.Transfer == "":
		return fmt.Errorf("%s has no transfer endpoint: set transfer=HOST:PORT", p.ID)
	case len(p.TransferIDs) < p.Ranks():
		return fmt.Errorf("%s reports the engine ids of %d of its %d ranks", p.ID, len(p.TransferIDs), p.Ranks())
	}
	return sameRelease(p, d)
}

// Plan edits the body into the two legs, or the decode leg of staged KV.
func (Mooncake) Plan(r Round) (Plan, error) {
	decode, err := leg(r, pools.Decode, nil)
	plan := Plan{Order: PrefillFirst, Decode: decode, Once: true}
	if err != nil || r.P == nil {
		return plan, err
	}
	params, _ := openai.NewEdit([]byte(`{"do_remote_decode":true,"do_remote_prefill":false}`))
	params.SetString("transfer_id", transferID(r))
	plan.Prefill, err = vllmPrefill(r, params.Bytes())
	return plan, err
}

// mooncakeDecode returns the params of a decode leg, whose parts [Mooncake.Pairs] has checked.
func mooncakeDecode(r Round) []byte {
	params, _ := openai.NewEdit([]byte(`{"do_remote_decode":false,"do_remote_prefill":true}`))
	params.SetString("transfer_id", transferID(r))
	params.SetString("remote_engine_id", r.P.TransferIDs[r.PRank])
	host, port := sideChannel(r.P, bootstrapPort)
	params.SetString("remote_bootstrap_addr", "http://"+net.JoinHostPort(host, strconv.Itoa(port)))
	return params.Bytes()
}

// transferID names the round for both engines. It is fresh in every round and unguessable.
func transferID(r Round) string { return "xfer-" + strconv.FormatInt(r.TransferID, 10) }

// OnPrefill hands over prefill's engine and the round's transfer id, which the answer does not contain.
func (Mooncake) OnPrefill(r Round, answer prefill.Answer, now time.Time) (kv prefill.KV, whole bool, err error) {
	if err := answered(answer); err != nil {
		return kv, false, err
	}
	return prefill.KV{
		Params: mooncakeDecode(r), Producer: r.P.ID, Incarnation: r.P.Incarnation, Expires: now.Add(mooncakeLease),
	}, false, nil
}

// Bind adds the metadata to the body.
func (Mooncake) Bind(d *http1.Leg, kv prefill.KV) { d.Body = withParams(d.Body, kv.Params) }

// Release frees prefill's blocks through a decode worker that refuses a request, as [NIXL.Release] does: its engine
// requests none of them (request_finished in mooncake_connector.py). Releases before vLLM #41269 keep them for 480 s
// (#50425).
func (Mooncake) Release(r Round, kv prefill.KV) []http1.Leg {
	d := vllmRelease(r)
	Mooncake{}.Bind(&d, kv)
	return []http1.Leg{d}
}
