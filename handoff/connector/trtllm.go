package connector

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net"
	"net/url"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
)

// TensorRT is TensorRT-LLM's context-first hand-off: the context worker answers with its first token, the prompt's
// ids and an opaque state; the generation worker gets all three and pulls the KV. Fields and order as in
// tensorrt_llm/serve/openai_disagg_service.py.
type TensorRT struct{}

var _ Connector = TensorRT{}

const (
	// transferTimeout is how long a context worker keeps KV that no generation worker requests: the default of
	// cache_transceiver_config.kv_transfer_timeout_ms. Only such a request ends it sooner.
	transferTimeout = 60 * time.Second

	// attachLimit is how long a generation worker may take to request KV whose client has left. A busier one leaves
	// it to the context worker's time-out.
	attachLimit = 5 * time.Second

	// contextParting is how long the context worker's answer is awaited after the client has left. The server checks
	// for departed clients once a second (await_disconnected); a complete answer names KV that only a generation
	// worker can release.
	contextParting = 1250 * time.Millisecond

	// mostFirstTokens bounds the tokens that a context worker hands over: one, or a few with speculation.
	mostFirstTokens = 64
)

// generationFirst is the schedule style of [TensorRTGenerationFirst] (tensorrt_llm/disaggregated_params.py).
// Context-first is the default and not written, for releases without the field.
const generationFirst = 1

// Pairs requires equal releases and block sizes: the transceivers exchange whole blocks.
func (TensorRT) Pairs(p, d *pools.Worker) error { return sameEngines(p, d) }

// sameEngines checks what two TensorRT-LLM workers must have in common.
func sameEngines(p, d *pools.Worker) error {
	if p.BlockSize != d.BlockSize {
		return fmt.Errorf("%s has blocks of %d tokens and %s of %d: TensorRT-LLM takes the same tokens_per_block",
			p.ID, p.BlockSize, d.ID, d.BlockSize)
	}
	return sameRelease(p, d)
}

// Plan edits the body into the two legs, or the decode leg of staged KV.
func (TensorRT) Plan(r Round) (Plan, error) {
	decode, err := leg(r, pools.Decode, func(e *openai.Edit) { tensorRTPriority(e, r, r.D) })
	plan := Plan{Order: PrefillFirst, Decode: decode, Attach: attachLimit}
	if err == nil && r.P != nil {
		plan.Prefill, err = contextLeg(r, false)
	}
	return plan, err
}

// tensorRTPriority maps the request's priority to a number from 0 to 1, the higher the sooner, for an engine that
// schedules by it; 0.5 is neutral.
func tensorRTPriority(e *openai.Edit, r Round, w *pools.Worker) {
	if r.Priority == nil || !w.Prioritizes {
		return
	}
	p := float64(*r.Priority)
	e.Set("priority", strconv.AppendFloat(nil, 0.5+p/(2*(1+math.Abs(p))), 'f', -1, 64))
}

// contextLeg edits the body for the context worker, not streamed. The worker generates one token whatever max_tokens
// is, and learns from max_tokens whether more follows.
func contextLeg(r Round, generatesFirst bool) (http1.Leg, error) {
	l, err := leg(r, pools.Prefill, func(e *openai.Edit) {
		tensorRTPriority(e, r, r.P)
		e.Set("stream", []byte("false"))
		e.Delete("stream_options")
		params, _ := openai.NewEdit([]byte(`{"request_type":"context_only"}`))
		params.SetInt("disagg_request_id", r.TransferID)
		if generatesFirst {
			params.SetInt("schedule_style", generationFirst)
		}
		e.Set("disaggregated_params", params.Bytes())
	})
	l.Stream = false
	if !generatesFirst { // else its answer holds nothing to release, and decode's refusal waits for its end
		l.Parting = contextParting
	}
	return l, err
}

// contextAnswer is the part of a context worker's answer that the gateway reads.
type contextAnswer struct {
	Choices []struct {
		FinishReason string          `json:"finish_reason"`
		Params       json.RawMessage `json:"disaggregated_params"`
	} `json:"choices"`
	Usage          json.RawMessage `json:"usage"`
	PromptTokenIDs json.RawMessage `json:"prompt_token_ids"`
}

// contextParams are the checked fields of disaggregated_params. The rest passes unchanged.
type contextParams struct {
	FirstTokens   []json.Number   `json:"first_gen_tokens"`
	ContextID     *json.Number    `json:"ctx_request_id"`
	HandOffID     *json.Number    `json:"disagg_request_id"`
	OpaqueState   *string         `json:"encoded_opaque_state"`
	Endpoint      *string         `json:"ctx_info_endpoint"`
	ContextUsage  json.RawMessage `json:"ctx_usage"`
	ScheduleStyle json.RawMessage `json:"schedule_style"`
}

// OnPrefill reads the hand-off from the context worker's answer: disaggregated_params of its one choice, the prompt's
// ids and its usage. A finish reason other than "length" and "not_finished" means that the first token ended the
// answer.
func (TensorRT) OnPrefill(r Round, answer prefill.Answer, now time.Time) (kv prefill.KV, whole bool, err error) {
	a, whole, err := readContext(answer.Body)
	if err != nil || whole {
		return kv, whole, err
	}
	kv = prefill.KV{Producer: r.P.ID, Incarnation: r.P.Incarnation, Expires: now.Add(transferTimeout)}
	params, err := generationParams(r, a)
	if err != nil {
		if kv.Params = releaseParams(r, a); kv.Validate() != nil {
			kv.Params = nil
		}
		return kv, false, fmt.Errorf("disaggregated_params: %w", err)
	}
	kv.Params = handOff(params, a.PromptTokenIDs)
	if len(kv.Params) > prefill.MaxKVBytes && len(params) < prefill.MaxKVBytes {
		kv.Params = handOff(params, nil) // the generation worker tokenizes again
	}
	if err = kv.Validate(); err != nil {
		kv.Params = nil
	}
	return kv, false, err
}

// readContext reads a context worker's answer; whole reports that no more follows.
func readContext(answer []byte) (a contextAnswer, whole bool, err error) {
	switch err := json.Unmarshal(answer, &a); {
	case err != nil:
		return a, false, errors.New("prefill's answer is none of TensorRT-LLM's")
	case len(a.Choices) != 1:
		return a, false, fmt.Errorf("prefill's answer has %d choices instead of one", len(a.Choices))
	}
	switch a.Choices[0].FinishReason {
	case "length", "not_finished":
		return a, false, nil
	case "":
		return a, false, errors.New("prefill's answer has no finish_reason")
	}
	return a, true, nil
}

// generationParams checks the context worker's hand-off and returns the generation worker's params.
func generationParams(r Round, a contextAnswer) ([]byte, error) {
	raw := a.Choices[0].Params
	e, object := openai.NewEdit(raw)
	if !object || !utf8.Valid(raw) {
		return nil, errors.New("missing")
	}
	var p contextParams
	if err := json.Unmarshal(raw, &p); err != nil {
		return nil, errors.New("a field of another type")
	}
	if err := p.check(r.TransferID); err != nil {
		return nil, err
	}
	e.SetString("request_type", "generation_only")
	if p.ContextUsage != nil && len(a.Usage) > 0 && a.Usage[0] == '{' { // the release has the field
		e.Set("ctx_usage", a.Usage)
	}
	if p.Endpoint != nil {
		e.SetString("ctx_info_endpoint", reachableEndpoint(*p.Endpoint, r.P))
	}
	return e.Bytes(), nil
}

// releaseParams returns params that only release the context worker's KV, for a hand-off that cannot be bound: its
// state and the request's id. nil without a state.
func releaseParams(r Round, a contextAnswer) []byte {
	var p struct {
		State string `json:"encoded_opaque_state"`
	}
	if raw := a.Choices[0].Params; !utf8.Valid(raw) || json.Unmarshal(raw, &p) != nil || p.State == "" {
		return nil
	}
	e, _ := openai.NewEdit([]byte(`{"request_type":"generation_only","first_gen_tokens":[0]}`))
	e.SetInt("ctx_request_id", r.TransferID)
	e.SetInt("disagg_request_id", r.TransferID)
	e.SetString("encoded_opaque_state", p.State)
	return handOff(e.Bytes(), a.PromptTokenIDs)
}

// check refuses params that the generation worker would accept and never finish.
func (p *contextParams) check(id int64) error {
	switch own, ok := positive(p.HandOffID); {
	case !ok:
		return errors.New("disagg_request_id is missing or no id")
	case own != id:
		return errors.New("disagg_request_id is that of another request")
	}
	if _, ok := positive(p.ContextID); !ok {
		return errors.New("ctx_request_id is missing or no id")
	}
	if n := len(p.FirstTokens); n < 1 || n > mostFirstTokens {
		return fmt.Errorf("first_gen_tokens has %d tokens, want 1 to %d", n, mostFirstTokens)
	}
	for _, token := range p.FirstTokens {
		if _, err := strconv.ParseUint(token.String(), 10, 31); err != nil {
			return errors.New("first_gen_tokens holds what is no token")
		}
	}
	return nil
}

// positive parses n as an id.
func positive(n *json.Number) (int64, bool) {
	if n == nil {
		return 0, false
	}
	id, err := strconv.ParseInt(n.String(), 10, 64)
	return id, err == nil && id > 0
}

// reachableEndpoint returns the context worker's information endpoint, tcp://HOST:PORT, with a wildcard or loopback
// host replaced by the worker's.
func reachableEndpoint(endpoint string, w *pools.Worker) string {
	u, err := url.Parse(endpoint)
	if err != nil || u.Port() == "" || u.Hostname() != "*" && !loopback(u.Hostname()) {
		return endpoint
	}
	return u.Scheme + "://" + net.JoinHostPort(transferHost(w), u.Port())
}

// handOff returns the members to add to the generation worker's body.
func handOff(params, ids []byte) []byte {
	out := append([]byte(`{"disaggregated_params":`), params...)
	if len(ids) > 0 && ids[0] == '[' {
		out = append(append(out, `,"prompt_token_ids":`...), ids...)
	}
	return append(out, '}')
}

// Bind adds the hand-off to the generation worker's body: the prompt's ids replace a completion's prompt, and are
// added to a chat's messages.
func (TensorRT) Bind(d *http1.Leg, kv prefill.KV) {
	var handed struct {
		Params json.RawMessage `json:"disaggregated_params"`
		IDs    json.RawMessage `json:"prompt_token_ids"`
	}
	_ = json.Unmarshal(kv.Params, &handed) // as OnPrefill made it
	e, ok := openai.NewEdit(bytes.Join(d.Body, nil))
	if !ok {
		return // Plan makes objects
	}
	e.Set("disaggregated_params", handed.Params)
	switch {
	case handed.IDs == nil:
	case d.Path == openai.Completions.Path():
		e.Set("prompt", handed.IDs)
	default:
		e.Set("prompt_token_ids", handed.IDs)
	}
	d.Body, _ = e.AppendSegments(nil, nil)
}

// Release makes a generation worker pull the KV for one token, which the hand-off already holds: after a context
// worker has computed, an abort has no effect, and only a transfer or kv_transfer_timeout_ms frees the KV.
func (TensorRT) Release(r Round, kv prefill.KV) []http1.Leg {
	if kv.Params == nil {
		return nil
	}
	e, _ := openai.NewEdit([]byte(`{"prompt":"-","max_tokens":1}`))
	e.SetString("model", r.D.Model)
	d := http1.Leg{
		Purpose: fault.Release, Worker: r.D.ID, Base: r.D.Address, Path: openai.Completions.Path(), RequestID: r.ID + "-release", Rank: -1,
	}
	d.Body, _ = e.AppendSegments(nil, nil)
	TensorRT{}.Bind(&d, kv)
	return []http1.Leg{d}
}
