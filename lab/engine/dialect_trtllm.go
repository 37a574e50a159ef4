package engine

import (
	"encoding/base64"
	"encoding/binary"
	"net"
	"net/http"
	"strconv"
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

// tensorRTCall is this dialect's state of a call.
type tensorRTCall struct {
	params   *tensorRTParams
	limit    int  // max_tokens as the client set it, 0 without
	thinking bool // the first token is reasoning
}

func (d *tensorRT) routes(mux *http.ServeMux) {
	s := d.s
	mux.HandleFunc("POST /v1/completions", s.answer(completionForm))
	mux.HandleFunc("POST /v1/chat/completions", s.answer(chatForm))
	s.inputRoutes(mux)
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
	writeJSON(w, http.StatusOK, openai.ModelList{Object: "list",
		Data: []openai.Model{{ID: d.s.cfg.Model, Object: "model", OwnedBy: "tensorrt_llm"}}})
}

func (d *tensorRT) version(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]string{"version": d.s.cfg.EngineVersion})
}

// serverInfo reports the address of the context side channel.
func (d *tensorRT) serverInfo(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{"disaggregated_params": map[string]any{
		"ctx_dp_rank": 0, "ctx_info_endpoint": []string{d.s.cfg.ContextEndpoint()},
	}})
}

// ContextEndpoint is the address for the engine's context phases, as TensorRT-LLM reports it (ctx_info_endpoint).
func (c Config) ContextEndpoint() string {
	return "tcp://" + net.JoinHostPort(c.TransferHost, strconv.Itoa(c.TransferPort))
}

// iterationStats returns the engine's state if anything was computed since the last call.
func (d *tensorRT) iterationStats(w http.ResponseWriter, _ *http.Request) {
	d.s.mu.Lock()
	c := d.s.core
	stats := []map[string]any{}
	if d.reported != c.stats {
		d.reported = c.stats
		stats = append(stats, map[string]any{
			"numActiveRequests": len(c.running) + len(c.fetching), "numQueuedRequests": c.waiting.n,
			"kvCacheStats": map[string]any{"maxNumBlocks": len(c.cache.blocks), "usedNumBlocks": c.cache.active(),
				"tokensPerBlock": c.cfg.BlockSize},
		})
	}
	d.s.mu.Unlock()
	writeJSON(w, http.StatusOK, stats)
}

func (d *tensorRT) callID(c *call, r *http.Request, _ *fields) string {
	c.tensorRT = &tensorRTCall{}
	return c.prefix + requestID(r)
}

// settings rejects fields that the request's model forbids, and reads the rest.
func (d *tensorRT) settings(c *call, f *fields) int {
	d.check(c, f)
	if f.err != nil {
		return 0
	}
	if c.endpoint == openai.Chat {
		c.parsed.read(f)
		c.parsed.thinks = false // its thoughts have one token
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
	if t.thinking {
		c.parsed.lead = 1
	}
	return n
}

// prompts reads the prompt, which on chat may be ids in addition to the messages.
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
		return map[string]string{"error": "1 validation error:\n  " + validation(e) + "\n"}
	}
	return map[string]any{"object": "error", "message": e.Message, "type": e.Type, "param": nil, "code": e.Code}
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
