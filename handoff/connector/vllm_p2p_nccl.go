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

// P2PNCCL is vLLM's P2pNcclConnector: prefill's engine pushes the KV into a buffer of decode's, layer by layer while it
// computes, and answers when all of it is there. Which decode that is, and under which name the KV lies there, both
// engines read out of the request's id; no field says it. As in vLLM's
// distributed/kv_transfer/kv_connector/v1/p2p/p2p_nccl_connector.py (parse_request_id) and p2p_nccl_engine.py, with
// send_type PUT or PUT_ASYNC.
//
// Decode's engine waits without limit for the KV of every request that it gets, so that its workers serve in pairs only
// ([pools.Worker.ServesAlone]), and what lies in its buffer goes with a request of that id and in no other way.
type P2PNCCL struct{}

var _ Connector = P2PNCCL{}

// Pairs reports what the protocol cannot do: it takes one rank, and the same parallelism on both sides.
func (P2PNCCL) Pairs(p, d *pools.Worker) error {
	for _, w := range []*pools.Worker{p, d} {
		switch {
		case w.Transfer == "":
			return fmt.Errorf("%s has no transfer endpoint: set transfer=HOST:PORT, with the kv_port of its engine", w.ID)
		case w.Ranks() > 1:
			return fmt.Errorf("%s has %d data-parallel ranks, and P2pNcclConnector hands over between engines of one", w.ID, w.Ranks())
		}
	}
	switch {
	case p.BlockSize != d.BlockSize:
		return fmt.Errorf("%s has blocks of %d tokens and %s of %d: want the same", p.ID, p.BlockSize, d.ID, d.BlockSize)
	case max(1, p.TensorParallel) != max(1, d.TensorParallel), max(1, p.PipelineParallel) != max(1, d.PipelineParallel):
		return fmt.Errorf("%s and %s differ in tensor or pipeline parallelism: each rank of prefill pushes to the same rank of decode", p.ID, d.ID)
	}
	return sameRelease(p, d)
}

// Plan edits the body into the two legs, of which both have one id.
func (c P2PNCCL) Plan(r Round) (Plan, error) {
	if r.P == nil {
		return Plan{}, openai.BadRequest("", "decode workers of P2pNcclConnector take no prompt without a prefill worker's")
	}
	plan, err := LMCache{}.Plan(r)
	plan.Decode.RequestID = c.requestID(r)
	plan.Prefill.RequestID = plan.Decode.RequestID
	plan.Pushed, plan.Attach = true, attachLimit // a call that is cut before may leave the KV in decode's buffer
	return plan, err
}

// requestID names both engines, and the KV in decode's buffer. It is fresh in every round, and no client can guess it.
func (P2PNCCL) requestID(r Round) string {
	at := func(w *pools.Worker) string {
		host, port := bootstrap(w)
		return net.JoinHostPort(host, strconv.Itoa(port))
	}
	return "___prefill_addr_" + at(r.P) + "___decode_addr_" + at(r.D) + "_" + secret(r, "kv")
}

// OnPrefill says that the KV is in decode's buffer, where it stays.
func (P2PNCCL) OnPrefill(r Round, answer prefill.Answer, now time.Time) (kv prefill.KV, whole bool, err error) {
	if err := answered(answer); err != nil {
		return kv, false, err
	}
	return prefill.KV{Producer: r.D.ID, Incarnation: r.D.Incarnation, Expires: now.Add(storedFor)}, false, nil
}

// Bind changes nothing.
func (P2PNCCL) Bind(*upstream.Leg, prefill.KV) {}

// Abandon takes the KV out of decode's buffer, through a request for one token under the same id whose answer is not
// read. No other worker can do that, and would wait for ever.
func (c P2PNCCL) Abandon(r Round, kv prefill.KV) []upstream.Leg {
	if kv.Producer != r.D.ID || kv.Incarnation != r.D.Incarnation {
		return nil
	}
	d, err := leg(r, pools.Decode, func(e *openai.Edit) { firstToken(e, r.Request) })
	if err != nil {
		return nil // the round's own leg was made of the same request
	}
	d.Purpose, d.RequestID, d.Stream = fault.Release, c.requestID(r), false
	return []upstream.Leg{d}
}
