package engine

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/zeebo/xxh3"
)

// sideRoutes is prefill's bootstrap server, which describes prefill to decode engines before their first transfer.
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
			"attn_tp_size": 1, "attn_cp_size": 1, "dp_size": 1, "pp_size": 1, "page_size": s.cfg.BlockSize, "kv_cache_dtype": "auto",
			"follow_bootstrap_room": true,
		})
	})
}

// serverInfo is the public part of the server's arguments, and the endpoint of its KV events. The scheduler answers a
// part of it, between two steps.
func (d *sglang) serverInfo(w http.ResponseWriter, r *http.Request) {
	if !d.s.awaitScheduler(r.Context()) {
		return
	}
	c := d.s.cfg
	info := map[string]any{
		"model_path": c.Model, "served_model_name": c.Model, "version": c.EngineVersion, "random_seed": xxh3.HashString(c.Incarnation) >> 34,
		// Every rank that can be chosen is one of dp_size × attn_dp_size (srt/runtime_context.py, num_dp_ranks_of), a
		// block of events one page on each of dcp_size devices (srt/arg_groups/overrides.py, kv_event_block_size_of).
		"tp_size": 1, "dp_size": 1, "attn_dp_size": 1, "enable_dp_attention": false, "dcp_size": 1, "pp_size": 1,
		"page_size": c.BlockSize, "context_length": c.ContextLength,
		"max_total_num_tokens": c.TotalKVBlocks * c.BlockSize, "max_running_requests": c.MaxNumSeqs,
		"chunked_prefill_size": c.MaxNumBatchedTokens,
		"max_queued_requests":  nil, "completion_template": nil, "disaggregation_mode": d.mode(), "disaggregation_bootstrap_port": c.TransferPort,
		"disaggregation_transfer_backend":          "mooncake",
		"disaggregation_decode_enable_radix_cache": c.DecodeRadixCache,
		"enable_cache_report":                      !c.NoCacheReport, "enable_priority_scheduling": false, "kv_events": nil,
		"internal_states": []map[string]any{{"effective_max_running_requests_per_dp": c.MaxNumSeqs}},
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
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": d.modelList()})
}

func (d *sglang) modelList() (all []map[string]any) {
	for _, m := range d.s.modelList("sglang").Data {
		one := map[string]any{"id": m.ID, "object": "model", "created": m.Created, "owned_by": m.OwnedBy, "root": m.ID, "parent": nil,
			"max_model_len": m.MaxModelLen}
		if m.Parent != "" {
			one["parent"], one["max_model_len"] = m.Parent, nil
		}
		all = append(all, one)
	}
	return all
}

func (d *sglang) model(w http.ResponseWriter, r *http.Request) {
	for _, m := range d.modelList() {
		if m["id"] == r.PathValue("id") {
			writeJSON(w, http.StatusOK, m)
			return
		}
	}
	writeJSON(w, http.StatusNotFound, map[string]any{"error": map[string]any{"message": "The model '" + r.PathValue("id") + "' does not exist",
		"type": "invalid_request_error", "param": "model", "code": "model_not_found"}})
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
	m.gauge("sglang:num_used_tokens", "Tokens whose KV is in use.",
		func(c *Core) float64 { return float64(c.cache.active() * c.cfg.BlockSize) })
	m.gauge("sglang:token_usage", "Share of the KV cache in use, from 0 to 1.",
		func(c *Core) float64 { return float64(c.cache.active()) / float64(c.cfg.TotalKVBlocks) })
	m.gauge("sglang:cache_hit_rate", "Share of the prompt tokens found in the prefix cache.",
		func(c *Core) float64 { return float64(c.stats.PrefixHits) / float64(max(1, c.stats.PrefixQueries)) })
	if d.mode() == "prefill" {
		m.gauge("sglang:num_prefill_bootstrap_queue_reqs", "Prefills that wait for their decode worker.",
			func(c *Core) float64 { return float64(len(c.expecting)) })
		m.gauge("sglang:num_prefill_inflight_queue_reqs", "Prefills whose blocks are being sent.",
			func(c *Core) float64 { return float64(len(c.pins)) })
	}
	if d.mode() == "decode" {
		m.gauge("sglang:num_decode_prealloc_queue_reqs", "Requests that wait for blocks.", func(c *Core) float64 { return float64(c.waiting.n) })
		m.gauge("sglang:num_decode_transfer_queue_reqs", "Requests whose blocks are on the way.",
			func(c *Core) float64 { return float64(len(c.fetching)) })
		m.counter("sglang:num_transfer_failed_reqs_total", "Requests whose blocks never came.", func(s Stats) uint64 { return s.FailedLoads })
	} else {
		m.counter("sglang:num_bootstrap_failed_reqs_total", "Requests whose decode worker never came.",
			func(s Stats) uint64 { return s.FailedLoads })
	}
	m.counter("sglang:prompt_tokens_total", "Prompt tokens of sequences that got their first token.",
		func(s Stats) uint64 { return s.PromptTokens })
	m.counter("sglang:generation_tokens_total", "Generated tokens.", func(s Stats) uint64 { return s.GenerationTokens })
	m.counter("sglang:cached_tokens_total", "Prompt tokens found in the prefix cache.", func(s Stats) uint64 { return s.PrefixHits })
	m.ttft = m.own.Histogram("sglang:time_to_first_token_seconds", "From a request's arrival to its first token.",
		[]float64{.1, .2, .4, .6, .8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400}).WithLabelValues()
	m.itl = m.own.Histogram("sglang:inter_token_latency_seconds", "Between two tokens of a sequence.",
		[]float64{.002, .004, .006, .008, .01, .015, .02, .025, .03, .035, .04, .06, .08, .1, .2, .4, .6, .8, 1, 2, 4, 6, 8}).WithLabelValues()
	m.plain.Gauge("process_start_time_seconds", "When the engine began, in Unix time.").WithLabelValues().Set(float64(began.UnixMilli()) / 1e3)
	return m
}
