package engine

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/internal/openai"
)

// tensorRTRelease is the release that is imitated unless another is named. From 1.3.0
// on hand-offs have ctx_usage, schedule_style and what generation-first needs.
const tensorRTRelease = "1.3.0"

// tensorRT speaks as TensorRT-LLM's trtllm-serve does (tensorrt_llm/serve/openai_server.py
// and openai_protocol.py): every model forbids unknown fields, and every exception is a 400.
type tensorRT struct {
	s *Server

	reported Stats // when /metrics was read last; under the server's mutex
}

var _ dialect = (*tensorRT)(nil)

// tensorRTCall is what this dialect knows of a call.
type tensorRTCall struct {
	params   *tensorRTParams
	limit    int  // max_tokens as the client set it, 0 without
	thinking bool // the first token is reasoning
}

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

// Fields of the requests (openai_protocol.py), by model.
var (
	tensorRTCommon = `model best_of frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop stream stream_options ` +
		`temperature top_p user lora_request prompt_ignore_length use_beam_search top_k top_p_min min_p repetition_penalty ` +
		`length_penalty early_stopping stop_token_ids include_stop_str_in_output ignore_eos min_tokens skip_special_tokens ` +
		`spaces_between_special_tokens truncate_prompt_tokens thinking_token_budget add_special_tokens response_format echo ` +
		`disaggregated_params priority conversation_params`
	tensorRTCompletion = strings.Fields(tensorRTCommon + ` prompt suffix return_context_logits detokenize`)
	tensorRTChat       = strings.Fields(tensorRTCommon + ` messages prompt_token_ids prompt_token_ids_b64 top_logprobs max_completion_tokens tools ` +
		`tool_choice parallel_tool_calls reasoning_effort thinking add_generation_prompt documents chat_template chat_template_kwargs ` +
		`injected_chat_template_kwargs media_io_kwargs cache_salt agent_hierarchy mm_processor_kwargs`)
	tensorRTOldParams = strings.Fields(`request_type first_gen_tokens first_gen_log_probs first_gen_logits ctx_request_id encoded_opaque_state ` +
		`draft_tokens disagg_request_id`)
	tensorRTNewer    = strings.Fields(`ctx_dp_rank ctx_info_endpoint schedule_style ctx_usage return_prompt_token_ids_b64 resolved_thinking`)
	tensorRTFunction = strings.Fields(`name description parameters strict`)
)

func (d *tensorRT) routes(mux *http.ServeMux) {
	s := d.s
	mux.HandleFunc("POST /v1/completions", s.answer(completionForm))
	mux.HandleFunc("POST /v1/chat/completions", s.answer(chatForm))
	mux.HandleFunc("GET /v1/models", d.models)
	mux.HandleFunc("GET /version", d.version)
	mux.HandleFunc("GET /server_info", d.serverInfo)
	// It stays 200 while transfers hang and requests are stuck (TensorRT-LLM #13713).
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /metrics", d.iterationStats)
	mux.HandleFunc("POST /kv_cache_events", func(w http.ResponseWriter, _ *http.Request) {
		writeJSON(w, http.StatusOK, []any{}) // as in streaming mode
	})
	mux.Handle("GET /prometheus/metrics", s.metricsHandler())
}

func (d *tensorRT) sideRoutes(*http.ServeMux) {}

// models lists the one model by its id alone.
func (d *tensorRT) models(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, openai.ModelList{Object: "list", Data: []openai.Model{{ID: d.s.cfg.Model, Object: "model", OwnedBy: "tensorrt_llm"}}})
}

func (d *tensorRT) version(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]string{"version": d.s.cfg.EngineVersion})
}

// serverInfo reports where generation workers ask about contexts.
func (d *tensorRT) serverInfo(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{"disaggregated_params": map[string]any{
		"ctx_dp_rank": 0, "ctx_info_endpoint": []string{d.s.cfg.ContextEndpoint()},
	}})
}

// ContextEndpoint is where the engine's context phases are asked for, as
// TensorRT-LLM reports it (ctx_info_endpoint).
func (c Config) ContextEndpoint() string {
	return "tcp://" + net.JoinHostPort(c.TransferHost, strconv.Itoa(c.TransferPort))
}

// iterationStats are the engine's state if anything was computed since the last
// reader, who has taken what came before.
func (d *tensorRT) iterationStats(w http.ResponseWriter, _ *http.Request) {
	d.s.mu.Lock()
	c := d.s.core
	stats := []map[string]any{}
	if d.reported != c.stats {
		d.reported = c.stats
		stats = append(stats, map[string]any{
			"numActiveRequests": len(c.running) + len(c.fetching), "numQueuedRequests": c.waiting.n,
			"kvCacheStats": map[string]any{"maxNumBlocks": len(c.cache.blocks), "usedNumBlocks": c.cache.active(), "tokensPerBlock": c.cfg.BlockSize},
		})
	}
	d.s.mu.Unlock()
	writeJSON(w, http.StatusOK, stats)
}

func (d *tensorRT) callID(c *call, r *http.Request, _ *fields) string {
	c.tensorRT = &tensorRTCall{}
	return c.prefix + requestID(r)
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

// context has the prompt computed and kept for a generation worker: for the transfer's time-out, whoever leaves.
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

// opaqueState is what a context worker has a generation worker know of it.
type opaqueState struct {
	Engine string `json:"engine"`
	Host   string `json:"host"`
	Port   int    `json:"port"`
}

// generation has the prompt's KV fetched: from the worker that the opaque state names, or, generation-first, from the one
// at the information endpoint.
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

// settings refuses what the request's model forbids, and reads the rest.
func (d *tensorRT) settings(c *call, f *fields) int {
	d.check(c, f)
	if f.err != nil {
		return 0
	}
	n := d.s.settings(c, f)
	t := c.tensorRT
	if f.get("max_tokens") != nil {
		t.limit = c.request.MaxTokens
	}
	if c.request.Pin {
		c.request.MaxTokens = 1
		if n > 1 {
			f.fail("n", "a context-only request has one answer")
		}
	}
	if f.get("stream_options") != nil {
		options := &fields{}
		f.decode("stream_options", &options.raw, "an object")
		c.usage = options.get("include_usage") == nil || c.usage // true by default
	}
	c.tokenIDs = false
	switch {
	case t.params != nil && t.params.ResolvedThinking != nil: // generation sees ids only
		t.thinking = *t.params.ResolvedThinking
	case c.endpoint == openai.Chat:
		var kwargs struct {
			Thinking bool `json:"enable_thinking"`
		}
		f.decode("chat_template_kwargs", &kwargs, "a dictionary")
		t.thinking = kwargs.Thinking
	}
	return n
}

// check is the validation of the request's model.
func (d *tensorRT) check(c *call, f *fields) {
	known := tensorRTCompletion
	if c.endpoint == openai.Chat {
		known = tensorRTChat
		if _, ok := f.raw["max_tokens"]; ok { // an alias of the other, which then is one too many
			known = slices.DeleteFunc(slices.Clone(known), func(name string) bool { return name == "max_completion_tokens" })
		}
	}
	if f.err = forbidden(f.raw, known); f.err != nil {
		return
	}
	if _, ok := f.raw["model"]; !ok {
		f.err = invalid("model", "Field required")
		return
	}
	f.number("priority", 0.5, 0, 1)
	f.integer("truncate_prompt_tokens", 1, 1, math.MaxInt32)
	if f.get("cache_salt") != nil && strings.TrimSpace(f.text("cache_salt")) == "" {
		f.fail("cache_salt", "Parameter 'cache_salt' must be a non-empty string if provided.")
	}
	if f.get("stream_options") != nil && !f.flag("stream") {
		f.fail("stream_options", "stream_options can only be set if stream is true")
	}
	if c.endpoint == openai.Completions {
		return
	}
	var tools []struct {
		Function json.RawMessage `json:"function"`
	}
	f.decode("tools", &tools, "a list of tools")
	for i, tool := range tools {
		if failure := forbid(tool.Function, tensorRTFunction, fmt.Sprintf("tools', %d, 'function", i)); failure != nil && f.err == nil {
			f.err = failure
		}
	}
	if choice := string(f.get("tool_choice")); choice != "" && choice != `"none"` && choice != `"auto"` && len(tools) == 0 {
		f.fail("tool_choice", "When using `tool_choice`, `tools` must be set.")
	}
	if f.get("top_logprobs") != nil && !f.flag("logprobs") {
		f.fail("top_logprobs", "logprobs must be true when using top_logprobs")
	}
}

// forbid refuses an object's unknown members.
func forbid(raw json.RawMessage, known []string, place string) *apiError {
	var members map[string]json.RawMessage
	if json.Unmarshal(raw, &members) != nil {
		return invalid(place, "Input should be a valid dictionary")
	}
	if failure := forbidden(members, known); failure != nil {
		return invalid(place+"', '"+*failure.Param, failure.Message)
	}
	return nil
}

// forbidden refuses the first unknown member, by name.
func forbidden(members map[string]json.RawMessage, known []string) *apiError {
	var extra []string
	for name := range members {
		if !slices.Contains(known, name) {
			extra = append(extra, name)
		}
	}
	if len(extra) == 0 {
		return nil
	}
	return invalid(slices.Min(extra), "Extra inputs are not permitted")
}

// invalid is pydantic's refusal of a field.
func invalid(place, message string) *apiError {
	return newError(http.StatusBadRequest, place, "%s", message)
}

// exception is one of the server's own: each is a 400.
func exception(format string, args ...any) *apiError {
	return newError(http.StatusBadRequest, "", format, args...)
}

// prompts reads the prompt, which on chat may come as ids in addition to the messages.
func (d *tensorRT) prompts(c *call, f *fields) [][]uint32 {
	if c.endpoint == openai.Completions {
		return d.s.prompts(f)
	}
	vocab := d.s.tokenizer.Tokenizer().VocabSize()
	if raw := f.get("prompt_token_ids"); raw != nil {
		ids, err := parseIDs(raw, vocab)
		if err != nil {
			f.fail("prompt_token_ids", "%v", err)
		}
		return [][]uint32{ids}
	}
	if text := f.text("prompt_token_ids_b64"); text != "" {
		packed, err := base64.StdEncoding.DecodeString(text)
		if err != nil || len(packed)%4 != 0 {
			f.fail("prompt_token_ids_b64", "prompt_token_ids_b64 is no buffer of int32")
			return nil
		}
		ids := make([]uint32, 0, len(packed)/4)
		for ; len(packed) > 0; packed = packed[4:] {
			ids = append(ids, min(binary.LittleEndian.Uint32(packed), uint32(vocab-1)))
		}
		return [][]uint32{ids}
	}
	return [][]uint32{d.s.chatPrompt(f)}
}

// refused frees nothing: a context worker keeps its KV until it is fetched, or for the time-out.
func (d *tensorRT) refused(*call) {}

func (d *tensorRT) handOffFailed(error) *apiError {
	return exception("Error in kv cache transfer for generation requests")
}

// failure is an error in one of the server's two forms: its validation's, which is text, and its own.
func (d *tensorRT) failure(e *apiError) any {
	if e.Param != nil {
		return map[string]string{"error": fmt.Sprintf("1 validation error:\n  {'type': 'value_error', 'loc': ('body', '%s'), 'msg': '%s'}\n", *e.Param, e.Message)}
	}
	return map[string]any{"object": "error", "message": e.Message, "type": e.Type, "param": nil, "code": e.Code}
}

// tensorRTAnswer is a whole answer or a chunk: unset fields are null, not absent.
type tensorRTAnswer struct {
	ID             string           `json:"id"`
	Object         string           `json:"object"`
	Created        int64            `json:"created"`
	Model          string           `json:"model"`
	Choices        []tensorRTChoice `json:"choices"`
	Usage          *openai.Usage    `json:"usage"`
	PromptTokenIDs []uint32         `json:"prompt_token_ids"`
}

type tensorRTChoice struct {
	Index        int              `json:"index"`
	Text         *string          `json:"text,omitempty"`
	Message      *tensorRTMessage `json:"message,omitempty"`
	Delta        *tensorRTMessage `json:"delta,omitempty"`
	Logprobs     *struct{}        `json:"logprobs"`
	FinishReason *string          `json:"finish_reason"`
	StopReason   any              `json:"stop_reason"`
	Params       any              `json:"disaggregated_params,omitempty"`
}

// tensorRTMessage has its reasoning under both names.
type tensorRTMessage struct {
	Role             string  `json:"role,omitempty"`
	Content          *string `json:"content"`
	ReasoningContent *string `json:"reasoning_content"`
	Reasoning        *string `json:"reasoning"`
	ToolCalls        []any   `json:"tool_calls"`
}

func (d *tensorRT) answer(c *call, kind string) tensorRTAnswer {
	return tensorRTAnswer{ID: c.id, Object: kind, Created: c.created, Model: d.s.cfg.Model, Choices: []tensorRTChoice{}}
}

// whole is the answer; a context worker's has the hand-off, and a generation worker's shows the one it was given.
func (d *tensorRT) whole(c *call) any {
	a := d.answer(c, c.object)
	a.Usage = c.total()
	for i := range c.choices {
		ch := &c.choices[i]
		one := tensorRTChoice{Index: i, FinishReason: &ch.finish, StopReason: ch.reason}
		text := string(ch.text)
		if c.endpoint == openai.Chat {
			one.Message = &tensorRTMessage{Role: "assistant", Content: &text, ToolCalls: []any{}}
			if word, rest := cutWord(text); c.tensorRT.thinking {
				one.Message.Content, one.Message.Reasoning, one.Message.ReasoningContent = &rest, &word, &word
			}
		} else {
			one.Text = &text
		}
		if p := c.tensorRT.params; p != nil {
			one.Params = d.shown(p)
			if p.RequestType == "context_only" {
				one.Params = d.handedOver(c, ch)
				a.PromptTokenIDs = ch.request.Prompt
			}
		}
		a.Choices = append(a.Choices, one)
	}
	return a
}

// handedOver is what a context worker hands over, and sets why it ended.
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

// cutWord splits a text before its second word: the model's words begin with a blank.
func cutWord(text string) (first, rest string) {
	if at := strings.IndexByte(text[min(1, len(text)):], ' '); at >= 0 {
		return text[:at+1], text[at+1:]
	}
	return text, ""
}

// appendChunk appends an output's event: of a chat, its role first.
func (d *tensorRT) appendChunk(out []byte, c *call, i int, text string, _ []uint32) []byte {
	ch := &c.choices[i]
	a := d.answer(c, c.chunk)
	one := tensorRTChoice{Index: i}
	if c.endpoint == openai.Chat {
		if !ch.begun {
			one.Delta = &tensorRTMessage{Role: "assistant", Content: new(string)}
			a.Choices = []tensorRTChoice{one}
			out = appendJSON(out, a)
		}
		one.Delta = &tensorRTMessage{Content: &text}
		if c.tensorRT.thinking && !ch.begun {
			one.Delta.Content, one.Delta.Reasoning, one.Delta.ReasoningContent = nil, &text, &text
		}
	} else {
		one.Text = &text
	}
	ch.begun = true
	if ch.finish != "" {
		one.FinishReason, one.StopReason = &ch.finish, ch.reason
	}
	a.Choices = []tensorRTChoice{one}
	return appendJSON(out, a)
}

func (d *tensorRT) appendEnd(out []byte, c *call) []byte {
	if !c.usage {
		return out
	}
	a := d.answer(c, c.chunk)
	a.Usage = c.total()
	return appendJSON(out, a)
}

// measure makes the metrics under TensorRT-LLM's names.
func (d *tensorRT) measure(time.Time) *counters {
	m := newCounters(d.s, prometheus.Labels{"model_name": d.s.cfg.Model, "engine_type": "pytorch"})
	m.gauge("trtllm_kv_cache_utilization", "Share of the KV blocks in use, from 0 to 1.",
		func(c *Core) float64 { return float64(c.cache.active()) / float64(c.cfg.TotalKVBlocks) })
	m.gauge("trtllm_kv_cache_hit_rate", "Share of the prompt tokens that were found in the prefix cache.",
		func(c *Core) float64 { return float64(c.stats.PrefixHits) / float64(max(1, c.stats.PrefixQueries)) })
	m.ttft = m.own.Histogram("trtllm_time_to_first_token_seconds", "From a request's arrival to its first token.",
		[]float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10}).WithLabelValues()
	m.itl = m.own.Histogram("trtllm_time_per_output_token_seconds", "Between two tokens of a sequence.",
		[]float64{.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5}).WithLabelValues()
	return m
}
