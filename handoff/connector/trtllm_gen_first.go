package connector

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
)

// TensorRTGenerationFirst is TensorRT-LLM's generation-first hand-off: the generation worker allocates and waits; the
// context worker sends the KV once computed. They find each other by an id and the context worker's information
// endpoint from GET /server_info. Fields and order as in tensorrt_llm/serve/openai_disagg_service.py.
type TensorRTGenerationFirst struct{}

var _ Connector = TensorRTGenerationFirst{}

// Pairs requires what [TensorRT] does, and the context worker's information endpoint.
func (TensorRTGenerationFirst) Pairs(p, d *pools.Worker) error {
	if _, _, ok := contextEndpoint(p); !ok {
		return fmt.Errorf("%s does not report disaggregated_params.ctx_info_endpoint in /server_info", p.ID)
	}
	return sameEngines(p, d)
}

// Plan edits the body into the two legs.
func (TensorRTGenerationFirst) Plan(r Round) (Plan, error) {
	prefill, err := contextLeg(r, true)
	if err != nil {
		return Plan{}, err
	}
	decode, err := leg(r, pools.Decode, func(e *openai.Edit) {
		tensorRTPriority(e, r, r.D)
		rank, endpoint, _ := contextEndpoint(r.P) // Pairs checks that there is one
		params, _ := openai.NewEdit([]byte(`{"request_type":"generation_only"}`))
		params.SetInt("ctx_request_id", r.TransferID)
		params.SetInt("disagg_request_id", r.TransferID)
		params.SetInt("ctx_dp_rank", int64(rank))
		params.SetString("ctx_info_endpoint", reachableEndpoint(endpoint, r.P))
		params.SetInt("schedule_style", generationFirst)
		e.Set("disaggregated_params", params.Bytes())
	})
	return Plan{Order: DecodeFirst, Prefill: prefill, Decode: decode}, err
}

// contextEndpoint returns a context worker's information endpoint and its data-parallel rank.
func contextEndpoint(w *pools.Worker) (rank int, endpoint string, ok bool) {
	for rank, endpoint := range w.TransferIDs {
		if endpoint != "" {
			return rank, endpoint, true
		}
	}
	return 0, "", false
}

// OnPrefill reads whether the first token ended the answer, which the generation worker cannot detect. Everything
// else bypasses the gateway.
func (TensorRTGenerationFirst) OnPrefill(_ Round, answer prefill.Answer, _ time.Time) (kv prefill.KV, whole bool, err error) {
	a, whole, err := readContext(answer.Body)
	if err == nil && !whole && !bytes.HasPrefix(a.Choices[0].Params, []byte{'{'}) {
		err = errors.New("prefill's answer has no disaggregated_params: the KV was not handed over")
	}
	return kv, whole, err
}

// Bind changes nothing: both legs carry what they need.
func (TensorRTGenerationFirst) Bind(*http1.Leg, prefill.KV) {}

// Release has nothing to free: a context worker computes only once a generation worker waits, and an abort before
// that frees both.
func (TensorRTGenerationFirst) Release(Round, prefill.KV) []http1.Leg { return nil }
