package connector

import (
	"time"

	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/upstream"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
)

// LMCache is vLLM's LMCacheConnectorV1 over a store that all workers share: prefill computes the prompt and one token,
// which puts the KV into the store; decode gets the request as it came and finds it there by the prompt's tokens. No
// field says so, and nothing is held for anyone: what the store has lost decode computes again. The same legs suit any
// other connector that finds KV by tokens (MooncakeStoreConnector, SharedStorageConnector).
//
// LMCache's own prefill-decode mode is not this connector: it hands the first token over and reports over ZeroMQ that
// its transfer is complete. vLLM 0.26.0 decodes wrongly in that mode (#52617).
type LMCache struct{}

var _ Connector = LMCache{}

// storedFor is how long a hand-off through a store counts: there is no lease, and no harm in asking late.
const storedFor = time.Hour

// Pairs is true of workers of one release: keys hold the layout of the KV.
func (LMCache) Pairs(p, d *pools.Worker) error { return sameRelease(p, d) }

// Plan edits the body into the two legs, or the decode leg of stored KV.
func (LMCache) Plan(r Round) (Plan, error) {
	decode, err := leg(r, pools.Decode, nil)
	if err != nil || r.P == nil {
		return Plan{Order: PrefillFirst, Decode: decode}, err
	}
	prefill, err := leg(r, pools.Prefill, func(e *openai.Edit) { firstToken(e, r.Request) })
	prefill.Stream = false
	return Plan{Order: PrefillFirst, Prefill: prefill, Decode: decode}, err
}

// OnPrefill hands nothing over but the time.
func (LMCache) OnPrefill(r Round, _ prefill.Answer, now time.Time) (kv prefill.KV, whole bool, err error) {
	return prefill.KV{Producer: r.P.ID, Incarnation: r.P.Incarnation, Expires: now.Add(storedFor)}, false, nil
}

// Bind changes nothing.
func (LMCache) Bind(*upstream.Leg, prefill.KV) {}

// Abandon has nothing to free.
func (LMCache) Abandon(Round, prefill.KV) []upstream.Leg { return nil }
