package connector

import (
	"time"

	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
)

// LMCache is vLLM's LMCacheConnectorV1 over a shared store: prefill computes the prompt and one token, which stores
// the KV; decode gets the unchanged request and finds the KV by the prompt's tokens, or computes what the store has
// lost. The same legs suit other connectors that find KV by tokens (MooncakeStoreConnector, SharedStorageConnector).
//
// LMCache's own prefill-decode mode is different: it hands over the first token and reports complete transfers over
// ZeroMQ. vLLM 0.26.0 decodes wrongly in that mode (#52617).
type LMCache struct{}

var _ Connector = LMCache{}

// storedFor is how long a hand-off through a store is valid: there is no lease, and late requests do no harm.
const storedFor = time.Hour

// Pairs requires the same release: keys include the layout of the KV.
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

// OnPrefill hands over no metadata.
func (LMCache) OnPrefill(r Round, _ prefill.Answer, now time.Time) (kv prefill.KV, whole bool, err error) {
	return prefill.KV{Producer: r.P.ID, Incarnation: r.P.Incarnation, Expires: now.Add(storedFor)}, false, nil
}

// Bind changes nothing.
func (LMCache) Bind(*http1.Leg, prefill.KV) {}

// Release has nothing to free.
func (LMCache) Release(Round, prefill.KV) []http1.Leg { return nil }
