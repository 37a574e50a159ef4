package connector

import (
	"time"

	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
)

// Local is one leg: decode computes the prompt itself. It suits every engine of OpenAI's API.
type Local struct{}

var _ Connector = Local{}

// Plan edits the body into the decode leg.
func (Local) Plan(r Round) (Plan, error) {
	decode, err := leg(r, pools.Decode, nil)
	return Plan{Order: Alone, Decode: decode}, err
}

// Pairs accepts any two workers.
func (Local) Pairs(_, _ *pools.Worker) error { return nil }

// OnPrefill hands nothing over.
func (Local) OnPrefill(Round, prefill.Answer, time.Time) (kv prefill.KV, whole bool, err error) {
	return kv, false, nil
}

// Bind changes nothing.
func (Local) Bind(*http1.Leg, prefill.KV) {}

// Release has nothing to free.
func (Local) Release(Round, prefill.KV) []http1.Leg { return nil }
