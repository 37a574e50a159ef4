package engine

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/tandem-pd/tandem/internal/metrics"
)

// counters are the engine's metrics, under vLLM's names, in a registry of their own:
// several engines may run in one process.
type counters struct {
	registry  *prometheus.Registry
	ttft, itl prometheus.Observer
}

func newMetrics(s *Server, began time.Time) *counters {
	m := &counters{registry: prometheus.NewRegistry()}
	own := metrics.In(prometheus.WrapRegistererWith(prometheus.Labels{"engine": "0", "model_name": s.cfg.Model}, m.registry))
	scrape := own.Snapshot()
	var reads []func(*Core)
	gauge := func(name, help string, get func(*Core) float64) {
		v := scrape.Gauge(name, help)
		reads = append(reads, func(c *Core) { v.Set(get(c)) })
	}
	counter := func(name, help string, get func(Stats) uint64) {
		v := scrape.Counter(name, help)
		reads = append(reads, func(c *Core) { v.Set(float64(get(c.stats))) })
	}
	gauge("vllm:num_requests_running", "Sequences in the running batch.",
		func(c *Core) float64 { return float64(len(c.running)) })
	gauge("vllm:num_requests_waiting", "Sequences that wait for their turn or for remote blocks.",
		func(c *Core) float64 { return float64(c.waiting.n + len(c.fetching)) })
	gauge("vllm:kv_cache_usage_perc", "Share of the KV blocks in use, from 0 to 1.",
		func(c *Core) float64 { return float64(c.cache.active()) / float64(c.cfg.TotalKVBlocks) })
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
	counter("vllm:nixl_num_failed_transfers_total", "Remote blocks that could not be pulled.",
		func(s Stats) uint64 { return s.FailedLoads })
	scrape.Read(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, read := range reads {
			read(s.core)
		}
	})
	m.ttft = own.Histogram("vllm:time_to_first_token_seconds", "From a request's arrival to its first token.",
		[]float64{.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160}).WithLabelValues()
	m.itl = own.Histogram("vllm:inter_token_latency_seconds", "Between two tokens of a sequence.",
		[]float64{.001, .0025, .005, .01, .015, .02, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10}).WithLabelValues()
	plain := metrics.In(m.registry)
	plain.Gauge("vllm:cache_config_info", "The KV cache's geometry, as labels.", "engine", "block_size", "num_gpu_blocks").
		WithLabelValues("0", strconv.Itoa(s.cfg.BlockSize), strconv.Itoa(s.cfg.TotalKVBlocks)).Set(1)
	plain.Gauge("process_start_time_seconds", "When the engine began, in Unix time.").WithLabelValues().Set(float64(began.UnixMilli()) / 1e3)
	return m
}

// observe times a token.
func (m *counters) observe(t *ticket, o *Output, now time.Time) {
	switch {
	case o.Reason == Aborted || o.Reason == LoadFailed:
	case o.Generated == 1:
		m.ttft.Observe(now.Sub(t.arrival).Seconds())
	default:
		m.itl.Observe(now.Sub(t.last).Seconds())
	}
}
