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
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/internal/upstream"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/prefill"
)

// TensorRT is TensorRT-LLM's context-first hand-off: the context worker runs first and answers with its first token,
// the prompt's ids and an opaque state; the generation worker gets all three and pulls the KV. Fields and order as in
// tensorrt_llm/serve/openai_disagg_service.py.
type TensorRT struct{}

var _ Connector = TensorRT{}

const (
	// transferTimeout is how long a context worker keeps KV that no generation worker has asked for: the default of
	// cache_transceiver_config.kv_transfer_timeout_ms. Nothing ends the wait sooner but a generation worker that asks.
	transferTimeout = 60 * time.Second

	// attachLimit is how long a generation worker may take to ask for KV whose client has left. One that is busier
	// than that leaves the context worker to its time-out.
	attachLimit = 5 * time.Second

	// contextParting is how long the context worker's answer is awaited after the client has left. The server looks
	// for departed clients once a second (await_disconnected); an answer that is complete before names the KV, which
	// only a generation worker can have it let go.
	contextParting = 1250 * time.Millisecond

	// mostFirstTokens bounds the tokens that a context worker hands over: one, or with speculation a few.
	mostFirstTokens = 64
)

// generationFirst is the schedule style of [TensorRTGenerationFirst] (tensorrt_llm/disaggregated_params.py).
// Context-first is what an engine assumes; it is not written, for releases that do not know the field.
const generationFirst = 1

// Pairs reports different releases or block sizes: the transceivers of both sides exchange whole blocks.
func (TensorRT) Pairs(p, d *pools.Worker) error { return sameEngines(p, d) }

// sameEngines reports what two TensorRT-LLM workers must have in common and have not.
func sameEngines(p, d *pools.Worker) error {
	if p.BlockSize != d.BlockSize {
		return fmt.Errorf("%s has blocks of %d tokens and %s of %d: TensorRT-LLM takes the same tokens_per_block", p.ID, p.BlockSize, d.ID, d.BlockSize)
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

// tensorRTPriority gives the request's priority to an engine that schedules by it: a number from 0 to 1, the higher the
// sooner, and 0.5 for requests without one.
func tensorRTPriority(e *openai.Edit, r Round, w *pools.Worker) {
	if r.Priority == nil || !w.Prioritizes {
		return
	}
	p := float64(*r.Priority)
	e.Set("priority", strconv.AppendFloat(nil, 0.5+p/(2*(1+math.Abs(p))), 'f', -1, 64))
}

// contextLeg edits the body for the context worker: not streamed, all else as it came. The worker generates one token
// whatever max_tokens says, and by max_tokens it knows whether there is more to come.
func contextLeg(r Round, generatesFirst bool) (upstream.Leg, error) {
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
	if !generatesFirst { // else its answer names nothing that has to be released, and decode's refusal waits for its end
		l.Parting = contextParting
	}
	return l, err
}

// contextAnswer is what the gateway reads of a context worker's answer.
type contextAnswer struct {
	Choices []struct {
		FinishReason string          `json:"finish_reason"`
		Params       json.RawMessage `json:"disaggregated_params"`
	} `json:"choices"`
	Usage          json.RawMessage `json:"usage"`
	PromptTokenIDs json.RawMessage `json:"prompt_token_ids"`
}

// contextParams are the fields of disaggregated_params that are checked. The rest passes as it came.
type contextParams struct {
	FirstTokens   []json.Number   `json:"first_gen_tokens"`
	ContextID     *json.Number    `json:"ctx_request_id"`
	HandOffID     *json.Number    `json:"disagg_request_id"`
	OpaqueState   *string         `json:"encoded_opaque_state"`
	Endpoint      *string         `json:"ctx_info_endpoint"`
	ContextUsage  json.RawMessage `json:"ctx_usage"`
	ScheduleStyle json.RawMessage `json:"schedule_style"`
}

// OnPrefill takes the hand-off out of the context worker's answer: disaggregated_params of its one choice, the prompt's
// ids and its usage. A finish reason other than "length" and "not_finished" says that the first token ended the answer.
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
		kv.Params = handOff(params, nil) // the generation worker makes them again
	}
	if err = kv.Validate(); err != nil {
		kv.Params = nil
	}
	return kv, false, err
}

// readContext reads a context worker's answer; whole says that there is no more to come.
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

// generationParams checks what the context worker hands over and turns it into what the generation worker gets.
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
	if p.ContextUsage != nil && len(a.Usage) > 0 && a.Usage[0] == '{' { // the release knows the field
		e.Set("ctx_usage", a.Usage)
	}
	if p.Endpoint != nil {
		e.SetString("ctx_info_endpoint", reachableEndpoint(*p.Endpoint, r.P))
	}
	return e.Bytes(), nil
}

// releaseParams is a hand-off that is good for having the context worker let go, where the one that came cannot be
// bound: its state, and the id that the worker was given. nil if there is no state.
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

// check refuses what the generation worker would take and never finish.
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

// positive is n as an id.
func positive(n *json.Number) (int64, bool) {
	if n == nil {
		return 0, false
	}
	id, err := strconv.ParseInt(n.String(), 10, 64)
	return id, err == nil && id > 0
}

// reachableEndpoint is the context worker's information endpoint, tcp://HOST:PORT, with the worker's own host where
// the worker names one that means each machine itself.
func reachableEndpoint(endpoint string, w *pools.Worker) string {
	u, err := url.Parse(endpoint)
	if err != nil || u.Port() == "" || u.Hostname() != "*" && !loopback(u.Hostname()) {
		return endpoint
	}
	return u.Scheme + "://" + net.JoinHostPort(transferHost(w), u.Port())
}

// handOff is the members that the generation worker's body gets.
func handOff(params, ids []byte) []byte {
	out := append([]byte(`{"disaggregated_params":`), params...)
	if len(ids) > 0 && ids[0] == '[' {
		out = append(append(out, `,"prompt_token_ids":`...), ids...)
	}
	return append(out, '}')
}

// Bind puts the hand-off into the generation worker's body: the prompt's ids stand in a completion's prompt, and in
// addition to a chat's messages.
func (TensorRT) Bind(d *upstream.Leg, kv prefill.KV) {
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

// Abandon has a generation worker pull the KV for an answer of one token, which the hand-off holds already: once a
// context worker has computed, an abort does nothing, and only a transfer or kv_transfer_timeout_ms ends its hold.
func (TensorRT) Abandon(r Round, kv prefill.KV) []upstream.Leg {
	if kv.Params == nil {
		return nil
	}
	e, _ := openai.NewEdit([]byte(`{"prompt":"-","max_tokens":1}`))
	e.SetString("model", r.D.Model)
	d := upstream.Leg{
		Purpose: fault.Release, Worker: r.D.ID, Base: r.D.Address, Path: openai.Completions.Path(), RequestID: r.ID + "-release", Rank: -1,
	}
	d.Body, _ = e.AppendSegments(nil, nil)
	TensorRT{}.Bind(&d, kv)
	return []upstream.Leg{d}
}
