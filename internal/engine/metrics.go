package engine

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are the engine's, under the names that vLLM gives them, in a registry
// of their own: several engines may live in one process.
type metrics struct {
	registry *prometheus.Registry
	ttft     prometheus.Histogram
	itl      prometheus.Histogram
}

func newMetrics(s *Server, began time.Time) *metrics {
	m := &metrics{registry: prometheus.NewRegistry()}
	labels := prometheus.Labels{"model_name": s.cfg.Model, "engine": "0"}
	read := func(get func(*Core) float64) func() float64 {
		return func() float64 {
			s.mu.Lock()
			defer s.mu.Unlock()
			return get(s.core)
		}
	}
	gauge := func(name, help string, get func(*Core) float64) {
		m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help, ConstLabels: labels}, read(get)))
	}
	counter := func(name, help string, get func(Stats) uint64) {
		m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels},
			read(func(c *Core) float64 { return float64(get(c.stats)) })))
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets, ConstLabels: labels})
		m.registry.MustRegister(h)
		return h
	}
	gauge("vllm:num_requests_running", "Sequences in the running batch.",
		func(c *Core) float64 { return float64(len(c.running)) })
	gauge("vllm:num_requests_waiting", "Sequences that wait for their turn or for remote blocks.",
		func(c *Core) float64 { return float64(c.waiting.n + len(c.fetching)) })
	gauge("vllm:kv_cache_usage_perc", "Share of the KV blocks in use, from 0 to 1.",
		func(c *Core) float64 { return float64(c.cache.active()) / float64(c.cfg.TotalKVBlocks) })
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "vllm:cache_config_info", Help: "The KV cache's geometry, as labels.",
		ConstLabels: prometheus.Labels{
			"engine": "0", "block_size": strconv.Itoa(s.cfg.BlockSize), "num_gpu_blocks": strconv.Itoa(s.cfg.TotalKVBlocks),
		},
	}, func() float64 { return 1 }))
	m.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "process_start_time_seconds", Help: "When the engine began, in Unix time.",
	}, func() float64 { return float64(began.UnixMilli()) / 1e3 }))
	counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the prefix cache.",
		func(s Stats) uint64 { return s.PrefixQueries })
	counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.",
		func(s Stats) uint64 { return s.PrefixHits })
	counter("vllm:num_preemptions_total", "Sequences preempted for lack of blocks.",
		func(s Stats) uint64 { return s.Preemptions })
	counter("vllm:prompt_tokens_total", "Prompt tokens of sequences that got their first token.",
		func(s Stats) uint64 { return s.PromptTokens })
	counter("vllm:generation_tokens_total", "Generated tokens.",
		func(s Stats) uint64 { return s.GenerationTokens })
	counter("vllm:nixl_num_kv_expired_reqs_total", "Finished prefills whose lease ended before they were pulled.",
		func(s Stats) uint64 { return s.LapsedLeases })
	counter("vllm:nixl_num_failed_transfers_total", "Remote blocks that could not be had.",
		func(s Stats) uint64 { return s.FailedLoads })
	m.ttft = histogram("vllm:time_to_first_token_seconds", "From a request's arrival to its first token.",
		[]float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160})
	m.itl = histogram("vllm:inter_token_latency_seconds", "Between two tokens of a sequence.",
		[]float64{.001, .0025, .005, .01, .015, .02, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10})
	return m
}

// observe times a token.
func (m *metrics) observe(t *ticket, o *Output, now time.Time) {
	switch {
	case o.Reason == Aborted || o.Reason == LoadFailed:
	case o.Generated == 1:
		m.ttft.Observe(now.Sub(t.arrival).Seconds())
	default:
		m.itl.Observe(now.Sub(t.last).Seconds())
	}
}
