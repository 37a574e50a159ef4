package connector

import (
	"fmt"
	"net"
	"strconv"
	"time"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/upstream"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
)

// Mooncake is vLLM's MooncakeConnector: both legs are called at once with one transfer id. Decode asks prefill's
// bootstrap server where its engine is, and waits there until prefill has computed the prompt. Fields as in vLLM's
// examples/disaggregated/mooncake_connector/mooncake_connector_proxy.py.
//
// Engines hang rather than fail: a decode engine whose prefill ends otherwise than by length waits for
// VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT, 480 s, and so does a prefill engine for its decode. The flow ends both legs
// together, so that neither is left alone.
type Mooncake struct{}

var _ Connector = Mooncake{}

// Pairs reports different releases or block sizes, and a prefill worker of which decode could not know where it is.
func (Mooncake) Pairs(p, d *pools.Worker) error {
	return vllmConcurrent(p, d)
}

// vllmConcurrent reports what keeps two vLLM workers from being called at once: decode has to know prefill's engine
// before that answers.
func vllmConcurrent(p, d *pools.Worker) error {
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

// Plan edits the body into the two legs.
func (Mooncake) Plan(r Round) (Plan, error) {
	decode, err := leg(r, pools.Decode, func(e *openai.Edit) { e.Set("kv_transfer_params", mooncakeDecode(r)) })
	if err != nil {
		return Plan{}, err
	}
	params, _ := openai.NewEdit([]byte(`{"do_remote_decode":true,"do_remote_prefill":false}`))
	params.SetString("transfer_id", transferID(r))
	prefill, err := vllmPrefill(r, params.Bytes())
	return Plan{Order: Together, Prefill: prefill, Decode: decode}, err
}

// mooncakeDecode is the hand-off of a decode leg. [Mooncake.Pairs] has seen that the record has it all.
func mooncakeDecode(r Round) []byte {
	params, _ := openai.NewEdit([]byte(`{"do_remote_decode":false,"do_remote_prefill":true}`))
	params.SetString("transfer_id", transferID(r))
	params.SetString("remote_engine_id", r.P.TransferIDs[r.PRank])
	host, port := bootstrap(r.P)
	params.SetString("remote_bootstrap_addr", "http://"+net.JoinHostPort(host, strconv.Itoa(port)))
	return params.Bytes()
}

// transferID names the round to both engines. It is fresh in every round, and no client can guess it.
func transferID(r Round) string { return "xfer-" + strconv.FormatInt(r.TransferID, 10) }

// OnPrefill hands nothing over: decode has it already.
func (Mooncake) OnPrefill(_ Round, answer prefill.Answer, _ time.Time) (kv prefill.KV, whole bool, err error) {
	return kv, false, answered(answer)
}

// Bind changes nothing.
func (Mooncake) Bind(*upstream.Leg, prefill.KV) {}

// Abandon takes the KV over, through a request for one token whose answer is not read: no call releases it, and a
// decode worker that refuses a request leaves it where it is (vLLM #50425). While prefill runs there is nothing to
// release: the end of its call ends it.
func (Mooncake) Abandon(r Round, _ prefill.KV) []upstream.Leg {
	if !r.Held {
		return nil
	}
	d, err := leg(r, pools.Decode, func(e *openai.Edit) {
		firstToken(e, r.Request)
		e.Set("kv_transfer_params", mooncakeDecode(r))
	})
	if err != nil {
		return nil // the round's own leg was made of the same request
	}
	d.Purpose, d.RequestID, d.Stream = fault.Release, r.ID+"-release", false
	return []upstream.Leg{d}
}
