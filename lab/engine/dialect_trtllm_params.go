package engine

import (
	"encoding/base64"
	"encoding/json"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/tandem-pd/tandem/internal/openai"
)

// tensorRTParams is disaggregated_params.
type tensorRTParams struct {
	RequestType      string          `json:"request_type"`
	FirstGenTokens   []uint32        `json:"first_gen_tokens"`
	FirstGenLogProbs json.RawMessage `json:"first_gen_log_probs"`
	FirstGenLogits   json.RawMessage `json:"first_gen_logits"`
	CtxRequestID     *int64          `json:"ctx_request_id"`
	OpaqueState      *string         `json:"encoded_opaque_state"`
	DraftTokens      []uint32        `json:"draft_tokens"`
	DisaggRequestID  *int64          `json:"disagg_request_id"`

	*tensorRTNewParams
}

// tensorRTNewParams are the fields of disaggregated_params from 1.3.0 on.
type tensorRTNewParams struct {
	CtxDPRank        *int          `json:"ctx_dp_rank"`
	CtxInfoEndpoint  *string       `json:"ctx_info_endpoint"`
	ScheduleStyle    *int          `json:"schedule_style"`
	CtxUsage         *openai.Usage `json:"ctx_usage"`
	ReturnB64        bool          `json:"return_prompt_token_ids_b64"`
	ResolvedThinking *bool         `json:"resolved_thinking"`
}

// handOff reads disaggregated_params.
func (d *tensorRT) handOff(c *call, _ *http.Request, f *fields) *apiError {
	raw := f.get("disaggregated_params")
	if raw == nil {
		return nil
	}
	known, p := tensorRTOldParams, &tensorRTParams{tensorRTNewParams: &tensorRTNewParams{}}
	if !d.s.cfg.Before("1.3.0") {
		known = slices.Concat(known, tensorRTNewer)
	}
	if failure := forbid(raw, known, "disaggregated_params"); failure != nil {
		return failure
	}
	if err := json.Unmarshal(raw, p); err != nil {
		return invalid("disaggregated_params", "Input should be a valid dictionary or instance of DisaggregatedParams")
	}
	c.tensorRT.params = p
	switch p.RequestType {
	case "context_only":
		return d.context(c, p)
	case "generation_only":
		return d.generation(c, p)
	}
	return exception("Unknown request type: %.100s. Must be context_only, generation_only or context_and_generation", p.RequestType)
}

// leastID is the first id that is no worker's own (MIN_GLOBAL_ID).
func (d *tensorRT) leastID() int64 {
	if d.s.cfg.Before("1.3.0") {
		return 1 << 42
	}
	return 1 << 40
}

// context has the prompt computed and kept for a generation worker: for the transfer's time-out, even if both
// callers leave.
func (d *tensorRT) context(c *call, p *tensorRTParams) *apiError {
	if p.DisaggRequestID == nil || *p.DisaggRequestID < d.leastID() {
		return exception("disagg_request_id must be a global id, from %d on", d.leastID())
	}
	c.request.Pin = true
	c.request.Hold = Hold{Shared: strconv.FormatInt(*p.DisaggRequestID, 10), For: d.s.cfg.AbortTimeout, Deaf: true}
	if p.generatesFirst() {
		c.request.Hold.GuestFirst = d.s.cfg.AbortTimeout
	}
	return nil
}

func (p *tensorRTParams) generatesFirst() bool {
	return p.ScheduleStyle != nil && *p.ScheduleStyle == 1
}

// opaqueState is a context worker's state for the generation worker.
type opaqueState struct {
	Engine string `json:"engine"`
	Host   string `json:"host"`
	Port   int    `json:"port"`
}

// generation has the prompt's KV fetched: from the worker that the opaque state names, or, generation-first, from the
// one at the information endpoint.
func (d *tensorRT) generation(c *call, p *tensorRTParams) *apiError {
	if p.CtxRequestID == nil || p.DisaggRequestID != nil && *p.DisaggRequestID < d.leastID() {
		return exception("ctx_request_id must be set, and disagg_request_id a global id, from %d on", d.leastID())
	}
	id := *p.CtxRequestID
	if p.DisaggRequestID != nil {
		id = *p.DisaggRequestID
	}
	remote := &Remote{RequestID: strconv.FormatInt(id, 10), Shared: true, Silent: true, Patience: d.s.cfg.AbortTimeout}
	switch {
	case p.generatesFirst() && p.CtxInfoEndpoint != nil:
		u, err := url.Parse(*p.CtxInfoEndpoint)
		if err != nil || u.Scheme != "tcp" {
			return exception("ctx_info_endpoint is no endpoint")
		}
		remote.Host = u.Hostname()
		if remote.Port, err = strconv.Atoi(u.Port()); err != nil {
			return exception("ctx_info_endpoint is no endpoint")
		}
	case p.OpaqueState == nil || len(p.FirstGenTokens) == 0:
		return exception("a generation-only request needs first_gen_tokens and encoded_opaque_state")
	default:
		var state opaqueState
		decoded, err := base64.StdEncoding.DecodeString(*p.OpaqueState)
		if err == nil {
			err = json.Unmarshal(decoded, &state)
		}
		if err != nil || state.Host == "" || state.Port < 1 || state.Port > math.MaxUint16 {
			return exception("encoded_opaque_state cannot be decoded")
		}
		remote.EngineID, remote.Host, remote.Port = state.Engine, state.Host, state.Port
		for _, token := range p.FirstGenTokens {
			if int(token) >= d.s.tokenizer.Tokenizer().VocabSize() {
				return exception("first_gen_tokens holds what is no token")
			}
		}
		c.request.First = p.FirstGenTokens
	}
	c.request.Remote = remote
	return nil
}

// handedOver returns a context worker's hand-off, and sets why it ended.
func (d *tensorRT) handedOver(c *call, ch *choice) any {
	p := *c.tensorRT.params
	id := *p.DisaggRequestID
	p.CtxRequestID = &id
	p.FirstGenTokens = ch.ids
	switch {
	case ch.pinned == nil:
	case ch.finish == Stopped.String(): // by a stop string
		d.s.mu.Lock()
		d.s.core.Release(ch.pinned.RequestID)
		d.s.mu.Unlock()
		d.s.awake()
	default:
		if c.tensorRT.limit != 1 {
			ch.finish = "not_finished"
		}
		raw, _ := json.Marshal(opaqueState{Engine: d.s.cfg.EngineID(), Host: d.s.cfg.TransferHost, Port: d.s.cfg.TransferPort}) // cannot fail
		state := base64.StdEncoding.EncodeToString(raw)
		p.OpaqueState = &state
	}
	rank, endpoint := 0, d.s.cfg.ContextEndpoint()
	p.tensorRTNewParams = &tensorRTNewParams{CtxDPRank: &rank, CtxInfoEndpoint: &endpoint, ScheduleStyle: p.ScheduleStyle}
	if c.tensorRT.thinking {
		p.ResolvedThinking = &c.tensorRT.thinking
	}
	return d.shown(&p)
}

// shown is params with the fields that the release has.
func (d *tensorRT) shown(p *tensorRTParams) any {
	all := *p
	if d.s.cfg.Before("1.3.0") {
		all.tensorRTNewParams = nil
	}
	return all
}
