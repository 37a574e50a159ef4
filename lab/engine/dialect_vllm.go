package engine

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/internal/openai"
)

// vllmRelease is the release that is imitated unless another is named.
const vllmRelease = "0.33.0"

// vllm speaks as vLLM does, with its NixlConnector. If it is not strict it
// answers with an error where vLLM hangs or dies.
type vllm struct {
	s         *Server
	connector vllmConnector
	strict    bool
}

// newVLLM makes the dialect of a validated configuration.
func newVLLM(s *Server, strict bool) *vllm {
	return &vllm{s: s, strict: strict, connector: vllmConnectors[cmp.Or(s.cfg.Connector, "vllm-nixl")]}
}

var _ dialect = (*vllm)(nil)

func (d *vllm) routes(mux *http.ServeMux) {
	s := d.s
	mux.HandleFunc("POST /v1/completions", s.answer(completionForm))
	mux.HandleFunc("POST /v1/chat/completions", s.answer(chatForm))
	mux.HandleFunc("POST /tokenize", s.tokenize)
	s.inputRoutes(mux)
	mux.HandleFunc("POST /reset_prefix_cache", s.resetPrefixCache)
	mux.HandleFunc("GET /v1/models", d.models)
	s.adapterRoutes(mux, "/v1")
	mux.HandleFunc("GET /health", s.health)
	mux.HandleFunc("GET /version", d.version)
	if s.cfg.EventSources != nil && !s.cfg.Before("0.31.0") {
		mux.HandleFunc("GET /kv_event_sources", func(w http.ResponseWriter, _ *http.Request) {
			writeJSON(w, http.StatusOK, s.cfg.EventSources)
		})
	}
	mux.Handle("GET /metrics", s.metricsHandler())
}

// sideRoutes adds Mooncake's bootstrap server.
func (d *vllm) sideRoutes(mux *http.ServeMux) {
	if d.s.cfg.Connector == "vllm-mooncake" {
		mux.HandleFunc("GET /query", d.query)
	}
}

func (d *vllm) models(w http.ResponseWriter, _ *http.Request) {
	owner := "tandem"
	if d.strict {
		owner = "vllm"
	}
	list := d.s.modelList(owner)
	if !d.strict {
		writeJSON(w, http.StatusOK, list)
		return
	}
	var all []map[string]any
	for _, m := range list.Data {
		one := map[string]any{"id": m.ID, "object": "model", "created": m.Created, "owned_by": owner, "root": m.ID, "parent": nil,
			"max_model_len": m.MaxModelLen,
			"permission": []map[string]any{{"id": "modelperm-0", "object": "model_permission", "created": m.Created, "allow_create_engine": false,
				"allow_sampling": true, "allow_logprobs": true, "allow_search_indices": false, "allow_view": true, "allow_fine_tuning": false,
				"organization": "*", "group": nil, "is_blocking": false}}}
		if m.Parent != "" {
			one["parent"], one["max_model_len"] = m.Parent, nil
		}
		all = append(all, one)
	}
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": all})
}

// version is vLLM's release, or which engine this is instead.
func (d *vllm) version(w http.ResponseWriter, _ *http.Request) {
	v := "tandem-sim"
	if d.strict {
		v = d.s.cfg.EngineVersion
	}
	writeJSON(w, http.StatusOK, struct {
		Version string `json:"version"`
	}{v})
}

func (d *vllm) callID(c *call, r *http.Request, _ *fields) string { return c.prefix + requestID(r) }

func (d *vllm) settings(c *call, f *fields) int {
	switch model := f.text("model"); {
	case model == "", model == d.s.cfg.Model, f.err != nil:
	case d.s.loaded(model):
		c.request.LoRA = model
	default:
		f.err = newError(http.StatusNotFound, "model", "the model %.100q does not exist", model)
		return 0
	}
	c.request.Salt = f.text("cache_salt")
	if c.endpoint == openai.Chat {
		if raw := f.get("tools"); raw != nil && firstOf(raw) == ']' && d.strict {
			f.fail("tools", "tools must not be an empty list")
		}
		c.parsed.read(f)
		if effort := f.text("reasoning_effort"); effort != "" && !bytes.Contains(f.get("chat_template_kwargs"), []byte(`"enable_thinking"`)) {
			c.parsed.thinks = effort != "none" || c.parsed.thinks // build_chat_params of 0.32.0's chat_completion/protocol.py
		}
		c.parsed.hidden = f.get("include_reasoning") != nil && !f.flag("include_reasoning")
	}
	n := d.s.settings(c, f)
	if d.strict {
		d.check(c, f, n)
	}
	if logprobs := f.get("logprobs"); logprobs == nil || string(logprobs) == "false" { // check_logprobs of 0.32.0's protocol.py, both of them
		if ids := f.get("logprob_token_ids"); ids != nil && firstOf(ids) != ']' {
			f.fail("logprob_token_ids", "when using `logprob_token_ids`, `logprobs` must be set")
		}
		if c.endpoint == openai.Chat && f.integer("top_logprobs", 0, -1, math.MaxInt32) != 0 {
			f.fail("top_logprobs", "when using `top_logprobs`, `logprobs` must be set to true")
		}
	}
	if string(f.get("tool_choice")) == `"required"` && c.request.MaxTokens == 1 {
		f.fail("tool_choice", "the answer is not a tool call") // as releases of vLLM answer for one token
	}
	if so := f.get("structured_outputs"); d.strict && f.err == nil && bytes.Contains(so, []byte(`"root ::= root"`)) {
		// It does not compile; real 0.32.0 answers so (_raise_if_error of entrypoints/generate/base/serving.py).
		f.err = newError(http.StatusInternalServerError, "", "Internal server error")
	}
	if f.get("vllm_xargs") != nil {
		x := &fields{}
		f.decode("vllm_xargs", &x.raw, "an object")
		var mode string // a value of another type asks for nothing that is known here
		_ = json.Unmarshal(x.get("kv_cache_report_mode"), &mode)
		c.request.Reannounce = mode == "full"
	}
	return n
}

func (d *vllm) prompts(c *call, f *fields) [][]uint32 {
	if c.endpoint != openai.Chat {
		return d.s.prompts(f)
	}
	if d.s.cfg.ExcludeTools && f.text("tool_choice") == "none" { // vllm-0.32.0/vllm/renderers/online_renderer.py, render_chat
		delete(f.raw, "tools")
	}
	rendered := d.s.chatPrompt(f) // which checks the messages, too
	if pinned := d.pinned(f); pinned != nil {
		if n := len(rendered); len(pinned) > n && slices.Equal(pinned[:n], rendered) {
			c.parsed.before = len(pinned) - n // a parser finds its place by the ids (V:/parser/abstract_parser.py)
		}
		return [][]uint32{pinned}
	}
	return [][]uint32{rendered}
}

// pinned is the ids that a chat brings along (kv_transfer_params.prompt_token_ids), from 0.27.0 on: the messages are
// then neither rendered nor tokenized. nil where it brings none.
func (d *vllm) pinned(f *fields) []uint32 {
	var params struct {
		IDs json.RawMessage `json:"prompt_token_ids"`
	}
	raw := f.get("kv_transfer_params")
	if raw == nil || json.Unmarshal(raw, &params) != nil || len(params.IDs) == 0 || d.s.cfg.Before("0.27.0") {
		return nil
	}
	if params.IDs[0] != '[' {
		f.fail("kv_transfer_params", "prompt_token_ids must be a list of token ids")
		return nil
	}
	ids, err := parseIDs(params.IDs, d.s.tokenizer.Tokenizer().VocabSize())
	if err != nil || len(ids) == 0 {
		f.fail("kv_transfer_params", "prompt_token_ids: %v", err)
		return nil
	}
	return ids
}

// refused has the prefill's blocks freed, as vLLM does when it rejects a request
// that carries a hand-off: they would stay pinned without a reader.
func (d *vllm) refused(c *call) {
	if c.remote != nil {
		d.s.release(c.remote)
	}
}

func (d *vllm) handOffFailed(err error) *apiError {
	return newError(http.StatusInternalServerError, "", "KV cache load failed: %v", err)
}

// unplaced are the fields whose values SamplingParams checks, without naming them, and invalid prompts.
var unplaced = []string{"n", "top_k", "min_p", "min_tokens", "presence_penalty", "frequency_penalty", "repetition_penalty", "messages"}

// failure has the types and places of vLLM 0.32.0 (testdata of cmd/gateway/e2e/conformance); the words are this
// engine's.
func (d *vllm) failure(e *apiError) any {
	shown := *e
	switch {
	case !d.strict:
	case e.place != "":
		shown.Type, shown.Param = "Bad Request", &shown.place
		shown.Message = fmt.Sprintf("1 validation error:\n  {'type': 'value_error', 'loc': '%s', 'msg': '%s'}", e.place, e.Message)
	case e.Param != nil && slices.Contains(unplaced, *e.Param):
		shown.Param = nil
	}
	return map[string]*apiError{"error": &shown}
}

// check returns what vLLM 0.32.0 rejects (the protocol.py of chats and completions, sampling_params.py).
func (d *vllm) check(c *call, f *fields, n int) {
	if n > 1 && f.get("temperature") != nil && f.number("temperature", 1, 0, math.MaxFloat64) == 0 {
		f.fail("n", "n must be 1 when using greedy sampling, got %d.", n)
	}
	c.promptText = c.endpoint == openai.Chat && f.flag("return_prompt_text") && d.pinned(f) == nil
	f.number("priority", 0, math.MinInt32, math.MaxInt32)
	if f.get("prompt_logprobs") != nil && c.stream {
		f.fail("prompt_logprobs", "`prompt_logprobs` are not available when `stream=True`. (parameter=prompt_logprobs)")
	}
	if c.endpoint == openai.Chat && f.get("tool_choice") != nil && string(f.get("tool_choice")) != `"none"` && f.get("tools") == nil {
		f.fail("tool_choice", "When using `tool_choice`, `tools` must be set. (parameter=tool_choice)")
	}
	var bias map[string]json.RawMessage
	f.decode("logit_bias", &bias, "an object")
	for key := range bias {
		if _, err := strconv.Atoi(key); err != nil {
			f.fail("logit_bias", "logit_bias contains key(s) that cannot be converted to integer token IDs: ['%s'] (parameter=logit_bias, value=['%s'])", key, key)
		}
	}
	if format := f.formatOf(); f.get("response_format") != nil && !slices.Contains(formats, format) {
		f.wrong("response_format.type", "Input should be 'text', 'json_object', 'json_schema' or 'structural_tag'")
	}
}

// formats are the types of response_format.
var formats = []string{"text", "json_object", "json_schema", "structural_tag"}

// formatOf is the type of response_format.
func (f *fields) formatOf() string {
	format := &fields{}
	f.decode("response_format", &format.raw, "an object")
	return format.text("type")
}

// measure makes the metrics under vLLM's names.
func (d *vllm) measure(began time.Time) *counters {
	m := newCounters(d.s, prometheus.Labels{"engine": "0", "model_name": d.s.cfg.Model})
	m.gauge("vllm:num_requests_running", "Sequences in the running batch.",
		func(c *Core) float64 { return float64(len(c.running)) })
	m.gauge("vllm:num_requests_waiting", "Sequences that wait for their turn or for remote blocks.",
		func(c *Core) float64 { return float64(c.waiting.n + len(c.fetching)) })
	m.gauge("vllm:kv_cache_usage_perc", "Share of the KV blocks in use, from 0 to 1.",
		func(c *Core) float64 { return float64(c.cache.active()) / float64(c.cfg.TotalKVBlocks) })
	m.counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
		func(s Stats) uint64 { return s.PrefixQueries })
	m.counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.",
		func(s Stats) uint64 { return s.PrefixHits })
	m.counter("vllm:external_prefix_cache_hits_total", "Prompt tokens whose KV came from another engine or a store.",
		func(s Stats) uint64 { return s.ExternalHits })
	m.counter("vllm:num_preemptions_total", "Sequences preempted for lack of blocks.",
		func(s Stats) uint64 { return s.Preemptions })
	m.counter("vllm:prompt_tokens_total", "Prompt tokens of sequences that got their first token.",
		func(s Stats) uint64 { return s.PromptTokens })
	m.counter("vllm:generation_tokens_total", "Generated tokens.",
		func(s Stats) uint64 { return s.GenerationTokens })
	m.counter("vllm:nixl_num_kv_expired_reqs_total", "Finished prefills whose lease ended before they were pulled.",
		func(s Stats) uint64 { return s.LapsedLeases })
	m.counter("vllm:nixl_num_failed_transfers_total", "Remote blocks that could not be pulled.",
		func(s Stats) uint64 { return s.FailedLoads })
	m.ttft = m.own.Histogram("vllm:time_to_first_token_seconds", "From a request's arrival to its first token.",
		[]float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160}).WithLabelValues()
	m.itl = m.own.Histogram("vllm:inter_token_latency_seconds", "Between two tokens of a sequence.",
		[]float64{.001, .0025, .005, .01, .015, .02, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10}).WithLabelValues()
	// One sample a data-parallel rank, all alike: the blocks are the ranks' sum, the tokens one rank's
	// (v1/engine/core_client.py).
	size, blocks := d.s.cfg.BlockSize, d.s.cfg.TotalKVBlocks
	m.plain.Gauge("vllm:cache_config_info", "The KV cache's geometry, as labels.",
		"engine", "block_size", "effective_attention_block_size", "kv_cache_size_tokens", "num_gpu_blocks", "enable_prefix_caching").
		WithLabelValues("0", strconv.Itoa(size), strconv.Itoa(size), strconv.Itoa(size*blocks), strconv.Itoa(blocks), "True").Set(1)
	m.plain.Gauge("process_start_time_seconds", "When the engine began, in Unix time.").WithLabelValues().Set(float64(began.UnixMilli()) / 1e3)
	return m
}
