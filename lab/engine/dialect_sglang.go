package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/zeebo/xxh3"

	"github.com/tandem-pd/tandem/internal/openai"
)

// sglangRelease is the release that is imitated unless another is named.
const sglangRelease = "0.5.23"

// SGLang's defaults.
const (
	// sglangTimeout is SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT and
	// SGLANG_DISAGGREGATION_WAITING_TIMEOUT: how long one leg of a pair waits for the other.
	sglangTimeout = 300 * time.Second
	// sglangNotice is SGLANG_REQUEST_STATE_WAIT_TIMEOUT: how often a waiting
	// request looks whether its caller is still there.
	sglangNotice = 4 * time.Second
	// fakeBootstrapHost asks for a hand-off that moves nothing, as health probes do.
	fakeBootstrapHost = "2.2.2.2"
)

// sglang speaks as SGLang does, in its three modes: prefill and decode, which take
// only requests that name a room where their legs meet, and the plain one, which takes
// no notice of rooms.
type sglang struct{ s *Server }

var _ dialect = (*sglang)(nil)

// mode is --disaggregation-mode.
func (d *sglang) mode() string {
	if d.s.cfg.Role == "both" {
		return "null"
	}
	return d.s.cfg.Role
}

func (d *sglang) routes(mux *http.ServeMux) {
	s := d.s
	mux.HandleFunc("POST /v1/completions", s.answer(completionForm))
	mux.HandleFunc("POST /v1/chat/completions", s.answer(chatForm))
	for _, path := range []string{"/tokenize", "/v1/tokenize"} {
		mux.HandleFunc("POST "+path, s.tokenize)
	}
	mux.HandleFunc("POST /abort_request", d.abortRequest)
	mux.HandleFunc("POST /flush_cache", d.flushCache)
	mux.HandleFunc("GET /flush_cache", d.flushCache)
	for _, path := range []string{"/health", "/health_generate"} {
		mux.HandleFunc("GET "+path, s.health)
	}
	for _, path := range []string{"/server_info", "/get_server_info"} {
		mux.HandleFunc("GET "+path, d.serverInfo)
	}
	for _, path := range []string{"/model_info", "/get_model_info"} {
		mux.HandleFunc("GET "+path, d.modelInfo)
	}
	mux.HandleFunc("GET /v1/models", d.models)
	mux.HandleFunc("GET /v1/loads", d.loads)
	mux.Handle("GET /metrics", s.metricsHandler())
}

// sideRoutes is prefill's bootstrap server, where decode engines learn what
// prefill is like before they first meet it.
func (d *sglang) sideRoutes(mux *http.ServeMux) {
	if d.mode() != "prefill" {
		return
	}
	mux.HandleFunc("GET /health", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("OK")) })
	mux.HandleFunc("GET /route", func(w http.ResponseWriter, _ *http.Request) {
		s := d.s
		s.mu.Lock()
		registered := s.running
		s.mu.Unlock()
		if !registered {
			http.Error(w, "prefill is not fully registered", http.StatusServiceUnavailable)
			return
		}
		writeJSON(w, http.StatusOK, map[string]any{
			"attn_tp_size": 1, "attn_cp_size": 1, "dp_size": 1, "pp_size": 1, "page_size": s.cfg.BlockSize, "kv_cache_dtype": "auto", "follow_bootstrap_room": true,
		})
	})
}

// serverInfo is the server's arguments, as far as anyone may ask for them, and
// where it publishes KV events.
func (d *sglang) serverInfo(w http.ResponseWriter, _ *http.Request) {
	c := d.s.cfg
	info := map[string]any{
		"model_path": c.Model, "served_model_name": c.Model, "version": c.EngineVersion, "random_seed": xxh3.HashString(c.Incarnation) >> 34,
		"tp_size": 1, "dp_size": 1, "pp_size": 1, "page_size": c.BlockSize, "context_length": c.ContextLength,
		"max_total_num_tokens": c.TotalKVBlocks * c.BlockSize, "max_running_requests": c.MaxNumSeqs, "chunked_prefill_size": c.MaxNumBatchedTokens,
		"max_queued_requests": nil, "disaggregation_mode": d.mode(), "disaggregation_bootstrap_port": c.TransferPort, "disaggregation_transfer_backend": "mooncake",
		"enable_cache_report": !c.NoCacheReport, "enable_priority_scheduling": false, "kv_events": nil,
	}
	if c.MaxQueued > 0 {
		info["max_queued_requests"] = c.MaxQueued
	}
	if source, ok := c.EventSources["0"]; ok {
		info["kv_events"] = kvEventsInfo(source, c.BlockSize)
	}
	writeJSON(w, http.StatusOK, info)
}

// kvEventsInfo is SGLang's form of a publisher's address.
func kvEventsInfo(source EventSource, pageSize int) map[string]any {
	info := map[string]any{"publisher": source.Publisher, "topic": source.Topic, "block_size": pageSize, "dp_size": 1}
	info["endpoint_host"], info["endpoint_port_base"] = hostAndPort(source.Endpoint)
	if replay, ok := source.Replay.(string); ok {
		_, info["replay_endpoint_port_base"] = hostAndPort(replay)
	}
	return info
}

func hostAndPort(endpoint string) (host string, port int) {
	endpoint = strings.TrimPrefix(endpoint, "tcp://")
	at := strings.LastIndexByte(endpoint, ':')
	port, _ = strconv.Atoi(endpoint[at+1:]) // the publisher listens there
	return endpoint[:at], port
}

func (d *sglang) modelInfo(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{"model_path": d.s.cfg.Model, "tokenizer_path": d.s.cfg.Model, "is_generation": true})
}

func (d *sglang) models(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, openai.ModelList{Object: "list", Data: []openai.Model{
		{ID: d.s.cfg.Model, Object: "model", OwnedBy: "sglang", MaxModelLen: d.s.cfg.ContextLength},
	}})
}

// loads is GET /v1/loads, one entry a rank.
func (d *sglang) loads(w http.ResponseWriter, _ *http.Request) {
	s := d.s
	s.mu.Lock()
	g := s.core.Gauges()
	s.mu.Unlock()
	writeJSON(w, http.StatusOK, map[string]any{"loads": []map[string]any{{
		"dp_rank": 0, "num_running_reqs": g.Running, "num_waiting_reqs": g.Waiting,
		"num_used_tokens": g.ActiveBlocks * s.cfg.BlockSize, "max_total_num_tokens": g.TotalBlocks * s.cfg.BlockSize,
	}}})
}

// abortRequest ends every request whose id begins with the one named, which has to be a
// request's id itself; an id that is none does nothing.
func (d *sglang) abortRequest(w http.ResponseWriter, r *http.Request) {
	f, failure := readFields(w, r)
	if failure != nil {
		d.s.writeError(w, failure)
		return
	}
	rid, all := f.text("rid"), f.flag("abort_all")
	if f.err != nil {
		d.s.writeError(w, f.err)
		return
	}
	d.s.abortCalls(rid, all)
	w.WriteHeader(http.StatusOK)
}

func (d *sglang) flushCache(w http.ResponseWriter, r *http.Request) { d.s.resetPrefixCache(w, r) }

// callID is the request's rid, which names it in aborts.
func (d *sglang) callID(_ *call, _ *http.Request, f *fields) string {
	if rid := f.text("rid"); rid != "" {
		return rid
	}
	return newID()
}

// vllmFields are those of vLLM's that SGLang does not know, and so ignores.
var vllmFields = []string{"truncate_prompt_tokens", "truncation_side", "include_stop_str_in_output", "kv_transfer_params", "vllm_xargs"}

// handOff reads the room where the request's two legs meet. In the plain mode the
// fields are ignored.
func (d *sglang) handOff(c *call, r *http.Request, f *fields) *apiError {
	for _, name := range vllmFields {
		delete(f.raw, name)
	}
	if options, ok := f.raw["stream_options"]; ok && !f.flag("stream") && len(options) > 0 {
		delete(f.raw, "stream_options") // without a stream it says nothing
	}
	if rank := r.Header.Get("X-Data-Parallel-Rank"); rank != "" && rank != "0" {
		return newError(http.StatusBadRequest, "", "routed_dp_rank=%.20s out of range [0, 1)", rank)
	}
	f.integer("routed_dp_rank", 0, 0, 0)
	f.integer("disagg_prefill_dp_rank", 0, 0, math.MaxInt32)
	if f.err != nil || d.mode() == "null" {
		return f.err
	}
	room, named, err := bootstrapRoom(f.get("bootstrap_room"))
	if err != nil {
		return newError(http.StatusBadRequest, "bootstrap_room", "%v", err)
	}
	if !named {
		return newError(http.StatusBadRequest, "", "Invalid request: Disaggregated request received without bootstrap room id. req.rid=%q", c.id)
	}
	host, port := f.text("bootstrap_host"), f.integer("bootstrap_port", d.s.cfg.TransferPort, 1, math.MaxUint16)
	shared := strconv.FormatInt(room, 10)
	if room == 0 { // the health probes' room, in which nobody meets anybody
		shared = "probe-" + newID()
	}
	switch {
	case f.err != nil, host == fakeBootstrapHost:
	case d.mode() == "prefill":
		c.request.Pin = true
		c.request.Hold = Hold{Shared: shared, For: d.s.cfg.AbortTimeout, GuestFirst: d.s.cfg.AbortTimeout, HandFirst: true}
	default:
		if host == "" {
			host = "127.0.0.1" // its own machine, where no bootstrap server is
		}
		c.request.Remote = &Remote{RequestID: shared, Host: host, Port: port, Shared: true, PageTokens: d.s.cfg.BlockSize, Patience: d.s.cfg.AbortTimeout}
	}
	return f.err
}

// bootstrapRoom reads a whole number from 0 to 2^63−1. It is no float: two rooms that differ in the last digits are two.
func bootstrapRoom(raw json.RawMessage) (room int64, named bool, err error) {
	if raw == nil {
		return 0, false, nil
	}
	room, err = strconv.ParseInt(string(raw), 10, 64)
	if err != nil || room < 0 {
		return 0, true, errors.New("bootstrap_room must be a whole number from 0 to 9223372036854775807")
	}
	return room, true, nil
}

func (d *sglang) settings(c *call, f *fields) int {
	if _, adapter, ok := strings.Cut(f.text("model"), ":"); ok { // the name itself is not compared with anything
		f.fail("model", "LoRA adapter %.100q was requested, but LoRA is not enabled", adapter)
	}
	c.request.Salt = f.text("cache_salt")
	if c.endpoint == openai.Chat {
		c.sglang.read(f)
	}
	n := d.s.settings(c, f)
	for _, name := range []string{"return_token_ids", "return_prompt_token_ids"} {
		if c.endpoint == openai.Chat && c.stream && f.flag(name) {
			f.fail(name, "%s is not supported with stream=true", name)
		}
	}
	if d.mode() == "prefill" { // whatever the request asks for; decode has it too
		c.request.MaxTokens, c.request.MinTokens = 1, min(1, c.request.MinTokens)
	}
	return n
}

// prompts reads the prompt: input_ids in place of a chat's messages, which are read
// all the same. A chat that ends with the assistant's words is continued only if it asks
// for that; else they become the user's.
func (d *sglang) prompts(c *call, f *fields) [][]uint32 {
	if c.endpoint != openai.Chat {
		return d.s.prompts(f)
	}
	if !f.flag("continue_final_message") {
		f.raw["messages"] = endWithUser(f.get("messages"))
	}
	rendered := d.s.chatPrompt(f)
	if raw := f.get("input_ids"); raw != nil && f.err == nil {
		if raw[0] != '[' {
			f.fail("input_ids", "input_ids must be a list of token ids")
			return nil
		}
		ids, err := parseIDs(raw, d.s.tokenizer.Tokenizer().VocabSize())
		if err != nil {
			f.fail("input_ids", "input_ids: %v", err)
		}
		return [][]uint32{ids}
	}
	return [][]uint32{rendered}
}

// endWithUser gives a last message of the assistant's the user's role.
func endWithUser(raw json.RawMessage) json.RawMessage {
	var messages []map[string]json.RawMessage
	if json.Unmarshal(raw, &messages) != nil || len(messages) == 0 {
		return raw
	}
	last := messages[len(messages)-1]
	if !bytes.Equal(last["role"], []byte(`"assistant"`)) {
		return raw
	}
	last["role"] = json.RawMessage(`"user"`)
	changed, _ := json.Marshal(messages) // cannot fail: it was read from JSON
	return changed
}

// refused does nothing: a leg that is refused leaves the other one waiting.
func (d *sglang) refused(*call) {}

func (d *sglang) handOffFailed(err error) *apiError {
	leg := "Decode transfer"
	if d.mode() == "prefill" {
		leg = "Prefill bootstrap"
	}
	return newError(http.StatusInternalServerError, "", "%s failed: %v", leg, err)
}

// sglangError is an error as SGLang writes it: flat.
type sglangError struct {
	Object  string  `json:"object"`
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    int     `json:"code"`
}

func (d *sglang) failure(e *apiError) any {
	return sglangError{Object: "error", Message: e.Message, Type: e.Type, Param: e.Param, Code: e.Code}
}

// sglangAnswer is an answer, or a chunk of one, in either form.
type sglangAnswer struct {
	ID      string         `json:"id"`
	Object  string         `json:"object"`
	Created int64          `json:"created"`
	Model   string         `json:"model"`
	Choices []sglangChoice `json:"choices"`
	Usage   *sglangUsage   `json:"usage"`
}

// sglangUsage reports cached tokens only with --enable-cache-report.
type sglangUsage struct {
	PromptTokens        int                         `json:"prompt_tokens"`
	TotalTokens         int                         `json:"total_tokens"`
	CompletionTokens    int                         `json:"completion_tokens"`
	PromptTokensDetails *openai.PromptTokensDetails `json:"prompt_tokens_details"`
	ReasoningTokens     int                         `json:"reasoning_tokens"`
}

type sglangChoice struct {
	Index        int            `json:"index"`
	Text         *string        `json:"text,omitempty"`
	Message      *sglangMessage `json:"message,omitempty"`
	Delta        *sglangMessage `json:"delta,omitempty"`
	Logprobs     *struct{}      `json:"logprobs"`
	FinishReason *string        `json:"finish_reason"`
	MatchedStop  any            `json:"matched_stop"`
	TokenIDs     []uint32       `json:"token_ids,omitempty"`
}

// sglangMessage is a message, or what a chunk adds to one.
type sglangMessage struct {
	Role      *string          `json:"role"`
	Content   *string          `json:"content"`
	Reasoning *string          `json:"reasoning_content"`
	ToolCalls []map[string]any `json:"tool_calls"`
}

// sglangCall is what a chat's answer is parsed into.
type sglangCall struct {
	tool   string // the function that is called, empty for none
	thinks bool   // the answer begins with a thought
}

// thoughtTokens are the tokens of the simulated model's thought.
const thoughtTokens = 3

// read finds what the answer is to be: the call of a function that the request demands, a
// thought before it that the template asks for.
func (sc *sglangCall) read(f *fields) {
	var tools []struct {
		Function struct {
			Name string `json:"name"`
		} `json:"function"`
	}
	f.decode("tools", &tools, "a list of tools")
	demanded := &tools
	if raw := f.get("tool_choice"); raw != nil && raw[0] == '{' {
		one := tools[:0:0]
		var chosen struct {
			Function struct {
				Name string `json:"name"`
			} `json:"function"`
		}
		f.decode("tool_choice", &chosen, "a mode or a tool")
		for _, t := range tools {
			if t.Function.Name == chosen.Function.Name {
				one = append(one, t)
			}
		}
		demanded = &one
	} else if string(raw) != `"required"` {
		demanded = new(tools[:0:0])
	}
	if len(*demanded) > 0 {
		sc.tool = (*demanded)[0].Function.Name
	}
	var kwargs map[string]json.RawMessage
	f.decode("chat_template_kwargs", &kwargs, "an object")
	apart := string(f.get("separate_reasoning")) != "false"
	sc.thinks = apart && (string(kwargs["enable_thinking"]) == "true" || string(kwargs["thinking"]) == "true")
}

func (d *sglang) object(c *call, kind string) sglangAnswer {
	return sglangAnswer{ID: c.id, Object: kind, Created: c.created, Model: d.s.cfg.Model, Choices: []sglangChoice{}}
}

func (d *sglang) usage(c *call) *sglangUsage {
	u := c.total()
	out := &sglangUsage{PromptTokens: u.PromptTokens, TotalTokens: u.TotalTokens, CompletionTokens: u.CompletionTokens}
	if d.mode() == "decode" { // without a prefix cache it has none; that prefill had some, it does not know
		u.PromptTokensDetails.CachedTokens = 0
	}
	if !d.s.cfg.NoCacheReport {
		out.PromptTokensDetails = u.PromptTokensDetails
	}
	return out
}

// ended sets the finish_reason and matched_stop of a choice.
func (one *sglangChoice) ended(c *call, ch *choice) {
	reason := ch.finish
	if c.sglang.tool != "" && reason == Stopped.String() {
		reason = "tool_calls"
	}
	one.FinishReason, one.MatchedStop = &reason, ch.reason
}

// whole is every choice with its text, its thought and its call apart.
func (d *sglang) whole(c *call) any {
	a := d.object(c, c.object)
	a.Usage = d.usage(c)
	for i := range c.choices {
		ch := &c.choices[i]
		text := string(ch.text)
		one := sglangChoice{Index: i}
		one.ended(c, ch)
		if c.tokenIDs {
			one.TokenIDs = ch.ids
		}
		if c.endpoint != openai.Chat {
			one.Text = &text
			a.Choices = append(a.Choices, one)
			continue
		}
		one.Message = &sglangMessage{Role: new("assistant")}
		if c.sglang.thinks {
			thought := string(d.s.tokenizer.Tokenizer().Decode(nil, ch.ids[:min(thoughtTokens, len(ch.ids))]))
			thought = thought[:min(len(thought), len(text))]
			text, one.Message.Reasoning = text[len(thought):], &thought
		}
		if c.sglang.tool != "" {
			one.Message.ToolCalls = []map[string]any{toolDelta(c.sglang.tool, argumentsOf(text))}
		} else {
			one.Message.Content = &text
		}
		a.Choices = append(a.Choices, one)
	}
	return a
}

// toolDelta is a tool call; of one that has begun the name is empty.
func toolDelta(name, arguments string) map[string]any {
	function := map[string]any{"arguments": arguments}
	delta := map[string]any{"index": 0, "type": "function", "function": function}
	if name != "" {
		function["name"], delta["id"] = name, "call_"+newID()[:8]
	}
	return delta
}

// argumentsOf are the simulated model's arguments of every function.
func argumentsOf(text string) string {
	quoted, _ := json.Marshal(text) // cannot fail: a string
	return `{"text":` + string(quoted) + `}`
}

// appendChunk appends the events of one output: of a chat its role first, and its
// end in an event of its own.
func (d *sglang) appendChunk(out []byte, c *call, i int, text string, ids []uint32) []byte {
	ch := &c.choices[i]
	event := func(fill func(one *sglangChoice)) {
		a, one := d.object(c, c.chunk), sglangChoice{Index: i}
		fill(&one)
		a.Choices = append(a.Choices, one)
		out = appendJSON(out, a)
	}
	if c.endpoint != openai.Chat {
		event(func(one *sglangChoice) {
			one.Text = &text
			if c.tokenIDs {
				one.TokenIDs = ids
			}
			if ch.finish != "" {
				one.ended(c, ch)
			}
		})
		return out
	}
	delta := func(m sglangMessage) { event(func(one *sglangChoice) { one.Delta = &m }) }
	tool := c.sglang.tool
	if !ch.begun {
		ch.begun = true
		delta(sglangMessage{Role: new("assistant"), Content: new(string)})
		if tool != "" {
			delta(sglangMessage{ToolCalls: []map[string]any{toolDelta(tool, `{"text":"`)}})
		}
	}
	switch {
	case text == "":
	case c.sglang.thinks && ch.generated <= thoughtTokens:
		delta(sglangMessage{Reasoning: &text})
	case tool != "":
		quoted, _ := json.Marshal(text) // cannot fail: a string
		delta(sglangMessage{ToolCalls: []map[string]any{toolDelta("", string(quoted[1:len(quoted)-1]))}})
	default:
		delta(sglangMessage{Content: &text})
	}
	if ch.finish == "" {
		return out
	}
	if tool != "" {
		delta(sglangMessage{ToolCalls: []map[string]any{toolDelta("", `"}`)}})
	}
	event(func(one *sglangChoice) {
		one.Delta = &sglangMessage{}
		one.ended(c, ch)
	})
	return out
}

// appendEnd appends the usage, if it was asked for.
func (d *sglang) appendEnd(out []byte, c *call) []byte {
	if !c.usage {
		return out
	}
	a := d.object(c, c.chunk)
	a.Usage = d.usage(c)
	return appendJSON(out, a)
}

// engineType is how metrics call the mode.
func (d *sglang) engineType() string {
	if d.mode() == "null" {
		return "unified"
	}
	return d.mode()
}

// measure makes the metrics under SGLang's names.
func (d *sglang) measure(began time.Time) *counters {
	m := newCounters(d.s, prometheus.Labels{"model_name": d.s.cfg.Model, "engine_type": d.engineType(), "tp_rank": "0", "pp_rank": "0"})
	m.gauge("sglang:num_running_reqs", "Requests in the running batch.", func(c *Core) float64 { return float64(len(c.running)) })
	m.gauge("sglang:num_queue_reqs", "Requests that wait for their turn.", func(c *Core) float64 { return float64(c.waiting.n) })
	m.gauge("sglang:num_used_tokens", "Tokens whose KV is in use.", func(c *Core) float64 { return float64(c.cache.active() * c.cfg.BlockSize) })
	m.gauge("sglang:token_usage", "Share of the KV cache in use, from 0 to 1.", func(c *Core) float64 { return float64(c.cache.active()) / float64(c.cfg.TotalKVBlocks) })
	m.gauge("sglang:cache_hit_rate", "Share of the prompt tokens found in the prefix cache.",
		func(c *Core) float64 { return float64(c.stats.PrefixHits) / float64(max(1, c.stats.PrefixQueries)) })
	if d.mode() == "prefill" {
		m.gauge("sglang:num_prefill_bootstrap_queue_reqs", "Prefills that wait for their decode worker.", func(c *Core) float64 { return float64(len(c.expecting)) })
		m.gauge("sglang:num_prefill_inflight_queue_reqs", "Prefills whose blocks are being sent.", func(c *Core) float64 { return float64(len(c.pins)) })
	}
	if d.mode() == "decode" {
		m.gauge("sglang:num_decode_prealloc_queue_reqs", "Requests that wait for blocks.", func(c *Core) float64 { return float64(c.waiting.n) })
		m.gauge("sglang:num_decode_transfer_queue_reqs", "Requests whose blocks are on the way.", func(c *Core) float64 { return float64(len(c.fetching)) })
		m.counter("sglang:num_transfer_failed_reqs_total", "Requests whose blocks never came.", func(s Stats) uint64 { return s.FailedLoads })
	} else {
		m.counter("sglang:num_bootstrap_failed_reqs_total", "Requests whose decode worker never came.", func(s Stats) uint64 { return s.FailedLoads })
	}
	m.counter("sglang:prompt_tokens_total", "Prompt tokens of sequences that got their first token.", func(s Stats) uint64 { return s.PromptTokens })
	m.counter("sglang:generation_tokens_total", "Generated tokens.", func(s Stats) uint64 { return s.GenerationTokens })
	m.counter("sglang:cached_tokens_total", "Prompt tokens found in the prefix cache.", func(s Stats) uint64 { return s.PrefixHits })
	m.ttft = m.own.Histogram("sglang:time_to_first_token_seconds", "From a request's arrival to its first token.",
		[]float64{.1, .2, .4, .6, .8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400}).WithLabelValues()
	m.itl = m.own.Histogram("sglang:inter_token_latency_seconds", "Between two tokens of a sequence.",
		[]float64{.002, .004, .006, .008, .01, .015, .02, .025, .03, .035, .04, .06, .08, .1, .2, .4, .6, .8, 1, 2, 4, 6, 8}).WithLabelValues()
	m.plain.Gauge("process_start_time_seconds", "When the engine began, in Unix time.").WithLabelValues().Set(float64(began.UnixMilli()) / 1e3)
	return m
}
