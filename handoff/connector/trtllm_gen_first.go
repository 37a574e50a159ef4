package connector

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/upstream"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
)

// TensorRTGenerationFirst is TensorRT-LLM's generation-first hand-off: the generation worker is called first, makes
// room and waits; the context worker sends the KV when it has computed it. They find each other by an id and by the
// context worker's information endpoint, which GET /server_info reports. Fields and order as in
// tensorrt_llm/serve/openai_disagg_service.py.
type TensorRTGenerationFirst struct{}

var _ Connector = TensorRTGenerationFirst{}

// Pairs reports what [TensorRT] does, and a context worker that does not report its information endpoint.
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
		rank, endpoint, _ := contextEndpoint(r.P) // Pairs has seen that there is one
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

// contextEndpoint is a context worker's information endpoint, and the data-parallel rank that it belongs to.
func contextEndpoint(w *pools.Worker) (rank int, endpoint string, ok bool) {
	for rank, endpoint := range w.TransferIDs {
		if endpoint != "" {
			return rank, endpoint, true
		}
	}
	return 0, "", false
}

// OnPrefill reads whether generation ended with the first token, which the generation worker cannot know.
// All else reaches it without the gateway.
func (TensorRTGenerationFirst) OnPrefill(_ Round, answer prefill.Answer, _ time.Time) (kv prefill.KV, whole bool, err error) {
	a, whole, err := readContext(answer.Body)
	if err == nil && !whole && !bytes.HasPrefix(a.Choices[0].Params, []byte{'{'}) {
		err = errors.New("prefill's answer has no disaggregated_params: the KV was not handed over")
	}
	return kv, whole, err
}

// Bind changes nothing: both legs carry what they need.
func (TensorRTGenerationFirst) Bind(*upstream.Leg, prefill.KV) {}

// Abandon has nothing to free: a context worker computes only after a generation worker has asked, and an abort before
// that frees both.
func (TensorRTGenerationFirst) Abandon(Round, prefill.KV) []upstream.Leg { return nil }
