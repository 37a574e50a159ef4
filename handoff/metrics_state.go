package handoff

import (
	"math"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router"
)

// state collects, at the scrape, what others keep: queues, bookings, workers.
// What it adds is how many workers that load asks for.
type state struct {
	flow *Flow

	mu       sync.Mutex // guards all below
	scalers  map[poolKey]*scaler
	arrivals map[string]*arrivals // by model
}

type poolKey struct {
	model string
	role  pools.Role
}

func newState(f *Flow) *state {
	return &state{flow: f, scalers: map[poolKey]*scaler{}, arrivals: map[string]*arrivals{}}
}

// descriptions are those of state, as desc adds them.
var descriptions []*prometheus.Desc

func desc(name, help string, labels ...string) *prometheus.Desc {
	d := prometheus.NewDesc(name, help, labels, nil)
	descriptions = append(descriptions, d)
	return d
}

// perWorker are the labels of what is told of each worker.
var perWorker = []string{"model", "role", "worker"}

var (
	queuePending = desc("frontend_router_queue_pending_requests", "Requests waiting for workers.", "model")
	queueTokens  = desc("frontend_router_queue_pending_isl_tokens", "Prompt tokens of the waiting requests.", "model")
	queueCached  = desc("frontend_router_queue_pending_cached_tokens", "Those of the waiting requests' prompt tokens that some worker has cached.", "model")
	queueBytes   = desc("frontend_router_queue_pending_bytes", "Bytes of the waiting requests' bodies.", "model")
	queueEnded   = desc("frontend_router_queue_ended_total", "Requests that left the queue, by how: granted, refused, expired, cancelled, failed.", "model", "result")

	activeBlocks = desc("frontend_worker_active_decode_blocks", "KV blocks booked on a worker.", perWorker...)
	prefillBook  = desc("frontend_worker_active_prefill_tokens", "Prefill tokens booked on a worker.", perWorker...)
	workerLoad   = desc("frontend_worker_requests", "Requests booked on a worker.", perWorker...)
	cachedBlocks = desc("frontend_worker_cached_blocks", "KV blocks that the index knows a worker to hold.", perWorker...)
	prefillRate  = desc("frontend_worker_prefill_tokens_per_second", "Observed speed of a prefill worker.", perWorker...)
	lastTTFT     = desc("frontend_worker_last_time_to_first_token_seconds", "TTFT of the latest request whose prompt the worker computed.", perWorker...)
	lastISL      = desc("frontend_worker_last_input_sequence_tokens", "Prompt tokens of that request.", perWorker...)
	lastITL      = desc("frontend_worker_last_inter_token_latency_seconds", "Latest time between two tokens of a worker.", perWorker...)

	workerState = desc("frontend_router_worker_state", "1 for the state that a worker is in, 0 for the others.", "model", "role", "worker", "state")
	workerCount = desc("frontend_router_workers", "Workers of a pool, by state.", "model", "role", "state")
	registered  = desc("component_router_worker_registered", "1 for each rank of a worker that the router knows.", "model", "role", "worker", "rank")

	totalBlocks   = desc("frontend_model_total_kv_blocks", "KV blocks of a worker, over its ranks; absent where unknown.", perWorker...)
	maxSeqs       = desc("frontend_model_max_num_seqs", "Requests that a worker runs at a time, over its ranks; absent where unknown.", perWorker...)
	maxBatched    = desc("frontend_model_max_num_batched_tokens", "Token budget of one engine step; absent where unknown.", perWorker...)
	contextLength = desc("frontend_model_context_length", "Longest prompt and answer together, in tokens; absent where unknown.", perWorker...)
	kvBlockSize   = desc("frontend_model_kv_cache_block_size", "Tokens in a KV block.", perWorker...)
	migrations    = desc("frontend_model_migration_limit", "Times that a request may be tried again elsewhere.", "model")

	retrying       = desc("frontend_retrying_requests", "Requests in the gateway that are on a retry.")
	retryLimit     = desc("frontend_retry_limit", "Requests that may be on a retry at this moment.")
	retriesRefused = desc("frontend_retries_refused_total", "Retries that the retry budget did not grant.")

	desiredWorkers = desc("desired_workers", "Workers that the present load asks for.", "model", "role")
)

// Describe implements prometheus.Collector.
func (s *state) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range descriptions {
		ch <- d
	}
}

// emit sends one value to a scrape.
type emit func(d *prometheus.Desc, v float64, labels ...string)

// Collect implements prometheus.Collector.
func (s *state) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	counter := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	now, waiting, all := time.Now(), s.flow.Waiting(), s.flow.rooms.Roster.Pools()
	s.flow.metrics.forget(all)
	for model, q := range waiting {
		queueState(model, q, gauge, counter)
	}
	for _, p := range all {
		s.pool(p, waiting[p.Model], gauge, now)
		s.overlaps(p, gauge, counter)
	}
	for _, model := range s.flow.rooms.Roster.Models() {
		gauge(migrations, MaxAttempts-1, model)
	}
	b := s.flow.budget.Stats()
	gauge(retrying, float64(b.Retrying))
	gauge(retryLimit, float64(b.Limit))
	counter(retriesRefused, float64(b.Refused))
}

func queueState(model string, q queue.Stats, gauge, counter emit) {
	gauge(queuePending, float64(q.Waiting), model)
	gauge(queueTokens, float64(q.WaitingTokens), model)
	gauge(queueCached, float64(q.WaitingTokens-q.WaitingUncachedTokens), model)
	gauge(queueBytes, float64(q.WaitingBytes), model)
	for result, n := range map[string]uint64{
		"granted": q.GrantedTotal, "refused": q.RefusedTotal, "expired": q.ExpiredTotal, "cancelled": q.CancelledTotal, "failed": q.FailedTotal,
	} {
		counter(queueEnded, float64(n), model, result)
	}
}

// probation is the state of a worker that was down and may be tried again.
const probation = "probation"

// standing is a member's state in a word.
func standing(m *pools.Member, now time.Time) string {
	if m.Status == pools.Down && m.Eligible(now) {
		return probation
	}
	return m.Status.String()
}

// standings lists every word of standing.
func standings() []string {
	words := []string{probation}
	for s := pools.Up; s.String() != "unknown"; s++ {
		words = append(words, s.String())
	}
	return words
}

// pool tells of one pool and its workers.
func (s *state) pool(p *pools.Pool, q queue.Stats, gauge emit, now time.Time) {
	role, loads := string(p.Role), s.flow.loads(p)
	count := map[string]int{}
	for i := range p.Members {
		m := &p.Members[i]
		is := standing(m, now)
		count[is]++
		for _, word := range standings() {
			in := 0.
			if word == is {
				in = 1
			}
			gauge(workerState, in, p.Model, role, m.Worker.ID, word)
		}
		s.worker(p, m.Worker, loads[i], gauge)
	}
	for _, word := range standings() {
		gauge(workerCount, float64(count[word]), p.Model, role, word)
	}
	gauge(desiredWorkers, float64(s.desired(p, loads, q, now)), p.Model, role)
}

// worker tells of one worker: what it has, what is booked, what was last seen.
func (s *state) worker(p *pools.Pool, w *pools.Worker, l router.WorkerLoad, gauge emit) {
	labels := []string{p.Model, string(p.Role), w.ID}
	known := func(d *prometheus.Desc, v float64) {
		if v > 0 {
			gauge(d, v, labels...)
		}
	}
	gauge(activeBlocks, float64(l.ActiveBlocks), labels...)
	gauge(prefillBook, float64(l.PrefillTokens), labels...)
	gauge(workerLoad, float64(l.Requests), labels...)
	gauge(cachedBlocks, float64(l.CachedBlocks), labels...)
	gauge(sentBlocks, float64(l.SentBlocks), labels...)
	known(totalBlocks, float64(w.TotalKVBlocks*w.Ranks()))
	known(maxSeqs, float64(w.MaxNumSeqs*w.Ranks()))
	known(maxBatched, float64(w.MaxNumBatchedTokens))
	known(contextLength, float64(w.ContextLength))
	known(kvBlockSize, float64(w.BlockSize))
	if p.Role == pools.Prefill {
		known(prefillRate, s.flow.rooms.Prefill.Rate(w.ID))
	}
	seen := s.flow.metrics.worker(w.ID)
	known(lastTTFT, math.Float64frombits(seen.ttft.Load()))
	known(lastISL, float64(seen.isl.Load()))
	known(lastITL, math.Float64frombits(seen.gap.Load()))
	for rank := range w.Ranks() {
		gauge(registered, 1, append(labels, strconv.Itoa(rank))...)
	}
}

// desired is how many workers the pool's load asks for at this moment.
func (s *state) desired(p *pools.Pool, loads []router.WorkerLoad, q queue.Stats, now time.Time) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := poolKey{p.Model, p.Role}
	if s.scalers[key] == nil {
		s.scalers[key] = &scaler{}
	}
	utilization := s.flow.cfg.Utilization
	if utilization == 0 {
		utilization = DefaultUtilization
	}
	return s.scalers[key].read(s.load(p, loads, q, now), utilization, now)
}

// load puts together what a pool is asked for. A capacity is the mean over the
// workers that have one. The waiting will generate on the decode pool, where
// there is one, else on that of role both.
func (s *state) load(p *pools.Pool, loads []router.WorkerLoad, q queue.Stats, now time.Time) poolLoad {
	var l poolLoad
	var blocks, seqs, rate mean
	size := 1
	for i, m := range p.Members {
		if m.Status != pools.Draining {
			l.Present++
		}
		w := m.Worker
		size = max(1, w.BlockSize)
		if p.Role == pools.Prefill {
			l.BacklogTokens += float64(loads[i].PrefillTokens)
			rate.add(s.flow.rooms.Prefill.Rate(w.ID))
			continue
		}
		l.Blocks += float64(loads[i].ActiveBlocks)
		l.Requests += float64(loads[i].Requests)
		blocks.add(float64(w.TotalKVBlocks * w.Ranks()))
		seqs.add(float64(w.MaxNumSeqs * w.Ranks()))
	}
	if p.Role == pools.Prefill {
		l.TokensPerSecond = rate.value()
		l.BacklogTokens += float64(q.WaitingUncachedTokens)
		if s.arrivals[p.Model] == nil {
			s.arrivals[p.Model] = &arrivals{}
		}
		l.ArrivalTokens = s.arrivals[p.Model].read(float64(s.flow.metrics.model(p.Model).uncached.Load()), now)
		return l
	}
	l.WorkerBlocks, l.WorkerSeqs = blocks.value(), seqs.value()
	if p.Role == pools.Decode || len(s.flow.rooms.Decode.Pool(p.Model, pools.Decode).Members) == 0 {
		l.Requests += float64(q.Waiting)
		l.Blocks += float64(q.WaitingTokens)/float64(size) + float64(q.Waiting) // each rounds up
	}
	return l
}

// mean is the mean of what is known.
type mean struct{ sum, n float64 }

func (m *mean) add(v float64) {
	if v > 0 {
		m.sum, m.n = m.sum+v, m.n+1
	}
}

// value is 0 while nothing is known.
func (m *mean) value() float64 { return m.sum / max(1, m.n) }

// loads reads a pool's bookings off its router.
func (f *Flow) loads(p *pools.Pool) []router.WorkerLoad { return f.routerOf(p).Loads(p) }

// routerOf is a pool's router.
func (f *Flow) routerOf(p *pools.Pool) *router.Router {
	if p.Role == pools.Prefill {
		return f.rooms.Prefill.Router(p.Model)
	}
	return f.rooms.Decode.Router(p.Model, p.Role)
}
