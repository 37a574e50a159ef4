package router

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/load"
)

// crowd returns n candidates with loads drawn from seed.
func crowd(n int, seed uint64) []candidate {
	rng := rand.New(rand.NewPCG(seed, 0))
	ws := make([]candidate, n)
	for i := range ws {
		ws[i] = candidate{
			Worker:  &pools.Worker{ID: fmt.Sprintf("w%d", i), BlockSize: 16},
			Overlap: rng.IntN(8),
			Load:    load.Account{ActiveBlocks: rng.IntN(100), PrefillTokens: rng.IntN(4) * 160, Requests: rng.IntN(9)},
		}
	}
	return ws
}

var ask = &query{Request: &Request{ID: "r", ISL: 160}, BlockSize: 16, Nth: 7}

// asked is q with the randomness of a choice and where it is explained.
func asked(q *query, rng *rand.Rand, why *Why) *query {
	full := *q
	full.rng, full.why = rng, why
	return &full
}

// choice is what a policy picks, and at which cost.
func choice(p policy, q *query, ws []candidate) string {
	i, cost, _ := p(asked(q, rand.New(rand.NewPCG(1, 1)), &Why{}), ws)
	return fmt.Sprintf("%d at %.6g", i, cost)
}

// TestRegistry holds every policy to the rules of its interface: a new file is tested by existing.
func TestRegistry(t *testing.T) {
	for _, p := range (Config{}).Choices("") {
		t.Run(p.Name, func(t *testing.T) {
			_, err := os.Stat("policy_" + strings.ReplaceAll(p.Name, "-", "_") + ".go")
			assert.NoError(t, err, "the policy is not in the file named for it")
			assert.True(t, p.Help != "" && !strings.Contains(p.Help, "\n"), "help %q is not one line", p.Help)
			for _, temperature := range []float64{0, 0.5} {
				cfg := DefaultConfig()
				cfg.Mode, cfg.Temperature = strings.ReplaceAll(p.Name, "-", "_"), temperature
				policy := mustPolicy(t, cfg)
				_, _, ok := policy(asked(ask, rand.New(rand.NewPCG(1, 1)), &Why{}), nil)
				assert.False(t, ok, "picks one of no candidates")
				for seed := range uint64(200) {
					ws := crowd(1+int(seed%17), seed)
					before := slices.Clone(ws)
					why := Why{Explain: true}
					i, cost, ok := policy(asked(ask, rand.New(rand.NewPCG(seed, 1)), &why), ws)
					require.True(t, ok && i >= 0 && i < len(ws) && !math.IsNaN(cost),
						"seed %d: index %d of %d, cost %v, ok %v", seed, i, len(ws), cost, ok)
					require.Equal(t, before, ws, "seed %d: the candidates were changed", seed)
					again, _, _ := policy(asked(ask, rand.New(rand.NewPCG(seed, 1)), &Why{}), ws)
					require.Equal(t, i, again, "seed %d: picks X, then", seed)
					require.True(t, len(why.Terms) == len(ws) && why.Terms[i].Cost == cost,
						"seed %d: %d terms for %d candidates, cost %v", seed, len(why.Terms), len(ws), cost)
				}
			}
		})
	}
}

// TestFormula checks the cost and its log line against the documents' formula,
// worked out by hand. The first row is their example, but for its sum.
func TestFormula(t *testing.T) {
	prefill, decode := DefaultConfig().For(pools.Prefill), DefaultConfig().For(pools.Decode)
	both, untracked, heavy := DefaultConfig(), DefaultConfig(), DefaultConfig()
	untracked.TrackPrefillTokens = false
	heavy.OverlapWeight = 1.5
	for _, c := range []struct {
		name string
		cfg  Config
		isl  int
		cand candidate
		want string
	}{
		// 15 of 20 blocks cached leave 80 tokens; 1,528 booked: 1,608 / 16.
		{"the documents' example", both, 320, candidate{Overlap: 15, Load: load.Account{PrefillTokens: 1528, ActiveBlocks: 5}},
			"Formula for worker_1: 125.5 = 1.0 * 100.5 + 25.0 (cached_blocks: 15)"},
		{"the last block counts in part to compute, and whole to hold", both, 8, candidate{},
			"Formula for worker_1: 1.5 = 1.0 * 0.5 + 1.0 (cached_blocks: 0)"},
		{"a weight", heavy, 160, candidate{Overlap: 2, Load: load.Account{ActiveBlocks: 3}},
			"Formula for worker_1: 25.0 = 1.5 * 8.0 + 13.0 (cached_blocks: 2)"},
		{"others' prefill tokens not tracked", untracked, 160, candidate{Overlap: 2, Load: load.Account{PrefillTokens: 999}},
			"Formula for worker_1: 18.0 = 1.0 * 8.0 + 10.0 (cached_blocks: 2)"},
		{"a prefill pool holds no blocks", prefill, 160, candidate{Overlap: 4, Load: load.Account{PrefillTokens: 64, ActiveBlocks: 9}},
			"Formula for worker_1: 10.0 = 1.0 * 10.0 + 0.0 (cached_blocks: 4)"},
		{"all cached", prefill, 160, candidate{Overlap: 10},
			"Formula for worker_1: 0.0 = 1.0 * 0.0 + 0.0 (cached_blocks: 10)"},
		{"a decode pool counts blocks alone", decode, 160, candidate{Overlap: 4, Load: load.Account{PrefillTokens: 64, ActiveBlocks: 15}},
			"Formula for worker_1: 25.0 = 0.0 * 6.0 + 25.0 (cached_blocks: 4)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			policy := mustPolicy(t, c.cfg)
			c.cand.Worker = &pools.Worker{ID: "worker_1"}
			why := Why{Explain: true}
			_, cost, _ := policy(&query{Request: &Request{ISL: c.isl}, BlockSize: 16, rng: rand.New(rand.NewPCG(1, 1)), why: &why},
				[]candidate{c.cand})
			assert.Equal(t, c.want, why.Terms[0].String())
			assert.Equal(t, why.Terms[0].Cost, cost, "cost, its term says")
		})
	}
}

// spread picks n times with different seeds and returns how often each candidate was picked.
func spread(policy policy, ws []candidate, n int) []int {
	counts := make([]int, len(ws))
	pcg := rand.NewPCG(0, 0)
	rng := rand.New(pcg)
	for i := range n {
		pcg.Seed(uint64(i), 99)
		picked, _, _ := policy(asked(ask, rng, &Why{}), ws)
		counts[picked]++
	}
	return counts
}

// chiSquare is Pearson's statistic of counts against expected shares.
func chiSquare(counts []int, shares []float64) float64 {
	n := 0
	for _, c := range counts {
		n += c
	}
	var x float64
	for i, c := range counts {
		if want := shares[i] * float64(n); want > 0 || c > 0 {
			x += (float64(c) - want) * (float64(c) - want) / want
		}
	}
	return x
}

// TestPowerOfTwo: of 8 equally likely pairs' lower ends, the most loaded of all
// is never picked, and the least loaded whenever it is drawn: in 2 of n draws.
func TestPowerOfTwo(t *testing.T) {
	ws := crowd(8, 1)
	for i := range ws {
		ws[i].Load = load.Account{Requests: i}
	}
	counts := spread(mustPolicy(t, inMode("power_of_two")), ws, 10_000)
	want := make([]float64, 7) // of n candidates the i-th least loaded wins n-1-i of n(n-1)/2 pairs
	for i := range want {
		want[i] = float64(7-i) / 28
	}
	assert.Zero(t, counts[7], "the most loaded was picked N times")
	if x := chiSquare(counts[:7], want); x > 22.46 { // 99.9th percentile at six degrees of freedom
		t.Errorf("%v, chi-square %.1f", counts, x)
	}
}

// TestDeviceAwareWeighted compares the choice with Dynamo's group budget (router-semantics and clients.md §6.1): CPUs take a
// request while their load is below floor(accelerators' load · CPUs / (8 · accelerators)).
func TestDeviceAwareWeighted(t *testing.T) {
	policy := mustPolicy(t, inMode("device-aware-weighted"))
	for _, c := range []struct {
		cpus, gpus []int // requests in flight
		want       []int // of the workers, CPUs first, those that may be chosen
	}{
		{[]int{0}, []int{0}, []int{1}}, // an idle pool
		{[]int{0}, []int{1}, []int{1}},
		{[]int{0}, []int{8}, []int{0}},
		{[]int{1}, []int{15}, []int{1}},
		{[]int{1}, []int{16}, []int{0}},
		{[]int{0}, []int{1, 1, 1, 1, 1, 1, 1, 1}, []int{1, 2, 3, 4, 5, 6, 7, 8}}, // 8·1/(8·8) = 0
		{[]int{0}, []int{8, 8, 8, 8, 9, 7, 8, 8}, []int{0}},                      // 64·1/(8·8) = 1
		{[]int{1}, []int{8, 8, 8, 8, 9, 7, 8, 8}, []int{6}},
		{[]int{1, 0, 0}, []int{9, 8}, []int{1, 2}}, // 17·3/(8·2) = 3
		{[]int{1, 1, 1}, []int{9, 8}, []int{4}},
		{[]int{3, 2}, nil, []int{1}}, // only one group
		{nil, []int{9, 8}, []int{1}},
	} {
		ws := crowd(len(c.cpus)+len(c.gpus), 1)
		for i, n := range append(slices.Clone(c.cpus), c.gpus...) {
			ws[i].Load = load.Account{Requests: n}
			if i < len(c.cpus) {
				cpu := *ws[i].Worker
				cpu.DeviceClass = "CPU"
				ws[i].Worker = &cpu
			}
		}
		chosen := 0
		for _, i := range c.want {
			n := spread(policy, ws, 400)[i]
			assert.NotZero(t, n, "CPUs %v, GPUs %v: worker %d", c.cpus, c.gpus, i)
			chosen += n
		}
		assert.Equal(t, 400, chosen, "CPUs %v, GPUs %v", c.cpus, c.gpus)
	}
}

// TestInputsAreLoad: each input of a batch counts as a request, up to half of what a worker runs; none holds blocks, so
// that no batch is too big.
func TestInputsAreLoad(t *testing.T) {
	r := newRouter(t, inMode("least-loaded"), index.New(index.Config{}))
	pool := poolOf(pools.Both, worker("a", 10, 64, 1<<20), worker("b", 10, 64, 1<<20))
	reserve := func(id string, inputs int) *Lease {
		l, err := r.Reserve(pool, Request{ID: id, ISL: 100_000, Inputs: inputs}, noon)
		require.NoError(t, err)
		return l
	}
	batch := reserve("batch", 1000)
	var others []*Lease
	for i := range 32 {
		l := reserve(fmt.Sprint(i), 1)
		assert.NotEqual(t, batch.Worker.ID, l.Worker.ID, "request %d goes to the batch's worker", i)
		others = append(others, l)
	}
	loads := r.Loads(pool)
	for _, l := range loads {
		assert.Equal(t, []int{32, 0}, []int{l.Requests, l.ActiveBlocks}, l.Worker)
	}
	for _, l := range append(others, batch) {
		l.Release(noon)
	}
	for _, l := range r.Loads(pool) {
		assert.Zero(t, l.Requests+l.PrefillTokens)
	}
}

// TestSoftmax compares picks at a temperature with the softmax over range-normalised costs. The bound is chi-square's
// 99.9th percentile at three degrees of freedom; the seeds are fixed.
func TestSoftmax(t *testing.T) {
	for _, c := range []struct {
		temperature float64
		costs       [4]float64
	}{
		{0.2, [4]float64{10, 20, 30, 40}}, {0.5, [4]float64{10, 20, 30, 40}}, {2, [4]float64{10, 20, 30, 40}},
		{1e-6, [4]float64{10, 11, 12, 13}}, {math.SmallestNonzeroFloat64, [4]float64{10, 11, 12, 13}}, // the cheapest alone
		{math.MaxFloat64, [4]float64{10, 11, 12, 13}}, {0.5, [4]float64{}}, // uniform
	} {
		ws := crowd(4, 1)
		for i := range ws {
			ws[i].Overlap, ws[i].Load = 0, load.Account{ActiveBlocks: int(c.costs[i])}
		}
		cfg := DefaultConfig()
		cfg.Temperature = c.temperature
		policy := mustPolicy(t, cfg)
		shares, sum := make([]float64, 4), 0.0
		for i, cost := range c.costs {
			shares[i] = math.Exp(-(cost - c.costs[0]) / max(1, c.costs[3]-c.costs[0]) / c.temperature)
			sum += shares[i]
		}
		for i := range shares {
			shares[i] /= sum
		}
		counts := spread(policy, ws, 20_000)
		assert.LessOrEqual(t, chiSquare(counts, shares), 16.27, "%+v: picks %v, want shares %.3f, chi-squ", c, counts, shares)
	}
}

func TestRoundRobinTakesTurns(t *testing.T) {
	ws := crowd(3, 1)
	for turn, want := range []int{0, 1, 2, 0, 1, 2} {
		i, _, _ := roundRobin(&query{Nth: uint64(turn), why: &Why{}}, ws)
		assert.Equal(t, want, i, "turn %d", turn)
	}
}

func TestConfigValidate(t *testing.T) {
	for _, c := range []struct {
		name string
		edit func(*Config)
		want string // in the error; empty: none
	}{
		{"defaults", func(c *Config) {}, ""},
		{"other spelling", func(c *Config) { c.Mode = "round_robin" }, ""},
		{"threshold off", func(c *Config) { c.QueueThreshold = -1 }, ""},
		{"unknown mode", func(c *Config) { c.Mode = "best" },
			`router-mode: "best" is not one of ` + strings.Join(slices.Sorted(maps.Keys(policies)), ", ")},
		{"weight below 0", func(c *Config) { c.OverlapWeight = -1 }, "router-kv-overlap-score-weight"},
		{"weight not a number", func(c *Config) { c.OverlapWeight = math.NaN() }, "router-kv-overlap-score-weight"},
		{"temperature endless", func(c *Config) { c.Temperature = math.Inf(1) }, "router-temperature"},
		{"a cost that is none", func(c *Config) { c.Cost = "dear" }, `router-cost: "dear" is not one of classic, credit`},
		{"a weight of credit", func(c *Config) { c.Credit.Disk = -1 }, "router-disk-cache-hit-weight"},
		{"a decay that is none", func(c *Config) { c.Credit.Decay = math.Inf(1) }, "router-kv-overlap-score-credit-decay"},
		{"aic", func(c *Config) { c.PrefillLoad = "aic" }, "router-prefill-load-model: aic is Dynamo's"},
		{"a load model that is none", func(c *Config) { c.PrefillLoad = "oracle" },
			`router-prefill-load-model: "oracle" is none of none, online`},
		{"a share above 1", func(c *Config) { c.Thresholds.DecodeBlocks = 1.1 }, "active-decode-blocks-threshold"},
		{"tokens below 0", func(c *Config) { c.Thresholds.PrefillTokens = -1 }, "active-prefill-tokens-threshold"},
		{"threshold not a number", func(c *Config) { c.QueueThreshold = math.NaN() }, "router-queue-threshold"},
	} {
		cfg := DefaultConfig()
		c.edit(&cfg)
		got := fmt.Sprint(cfg.Validate())
		if c.want == "" {
			c.want = "<nil>"
		}
		assert.Contains(t, got, c.want, "%s", c.name)
	}
}

// A decode worker that fetches only the rest of a prompt is the better one by the blocks that it has, whatever the
// mode's cost: SGLang's prefill sends what is behind decode_prefix_len, and decode allocates room for that
// (pop_preallocated in 0.5.23's srt/disaggregation/decode.py). Load above that outweighs the cache, and caches of other
// workers do not count.
func TestDecodeFetchesTheRest(t *testing.T) {
	prompt := chain(1, 8)
	for _, c := range []struct {
		name          string
		cost          string
		weight        float64
		rest          bool
		held          int // leading blocks that a has
		booked        int // blocks of others on a
		want          string
		overlap       int
		blocks, other float64 // the costs of a and b
	}{
		{"it has all", Classic, 1, true, 8, 0, "a", 8, 0, 8},
		{"the credit's cost", Credited, 1, true, 8, 0, "a", 8, 0, 8},
		{"and others", Classic, 1, true, 6, 5, "a", 6, 7, 8},
		{"more others than it has", Classic, 1, true, 6, 7, "b", 0, 9, 8},
		{"it fetches all", Classic, 1, false, 8, 1, "b", 0, 9, 8},
		{"overlaps are ignored", Classic, 0, true, 8, 1, "b", 0, 9, 8},
	} {
		cfg := DefaultConfig()
		cfg.Cost, cfg.OverlapWeight = c.cost, c.weight
		idx := index.New(index.Config{})
		a, b := worker("a", 0, 0, 0), worker("b", 0, 0, 0)
		a.FetchesRest, b.FetchesRest = c.rest, c.rest
		idx.Store(idx.Owner("a", 0), index.Device, prompt[:c.held])
		r, p := newRouter(t, cfg.For(pools.Decode), idx), poolOf(pools.Decode, a, b)
		if c.booked > 0 {
			reserve(t, r, poolOf(pools.Decode, a), Request{ID: "others", ISL: c.booked * 16, Hashes: chain(2, c.booked)}, noon)
		}
		why := pick(t, r, p, Request{ID: "r", ISL: 8 * 16, Hashes: prompt, Explain: true}, noon)
		costs := map[string]float64{}
		for _, term := range why.Terms {
			costs[term.Worker] = term.Cost
		}
		assert.True(t, why.Worker.ID == c.want && why.Overlap == c.overlap && costs["a"] == c.blocks && costs["b"] == c.other,
			"%s: %s for an overlap of %d, at %v", c.name, why.Worker.ID, why.Overlap, costs)
	}
}

// TestLMetric: the product decides, and a worker that serves no request is weighed by its tokens alone.
func TestLMetric(t *testing.T) {
	req := &query{Request: &Request{ISL: 160}, BlockSize: 16}
	ws := []candidate{
		{Overlap: 8, Load: load.Account{PrefillTokens: 100, Requests: 4}}, // 132 · 5
		{Overlap: 0, Load: load.Account{PrefillTokens: 0, Requests: 2}},   // 160 · 3
		{Overlap: 2, Load: load.Account{PrefillTokens: 400, Requests: 0}}, // 528 · 1
	}
	for i := range ws {
		ws[i].Worker = &pools.Worker{ID: fmt.Sprint(i)}
	}
	assert.Equal(t, "1 at 480", choice(byCost(lmetric), req, ws))
}

// TestMinTTFT: the earliest first token wins; a worker of which nothing is known counts as the mean of the others.
func TestMinTTFT(t *testing.T) {
	req := &query{Request: &Request{ISL: 1600}, BlockSize: 16}
	ws := []candidate{
		{Worker: &pools.Worker{ID: "slow"}, Overlap: 50},                                             // 800 tokens at 1 ms
		{Worker: &pools.Worker{ID: "fast"}, Load: load.Account{PrefillTokens: 1400}},                 // 3000 at 0.25 ms
		{Worker: &pools.Worker{ID: "new"}, Overlap: 25, Load: load.Account{PrefillTokens: 100}},      // 1300 at the mean: 1.55 s / 3800
		{Worker: &pools.Worker{ID: "fast"}, Overlap: 100, Load: load.Account{PrefillTokens: 10_000}}, // 10,000 at 0.25 ms
	}
	rates := map[string]time.Duration{"slow": time.Millisecond, "fast": 250 * time.Microsecond}
	forecast := func(w *pools.Worker, booked, uncached, cached int) (time.Duration, bool) {
		each, ok := rates[w.ID]
		assert.Equal(t, req.ISL, cached+uncached, "%d cached and %d uncached tokens of", cached, uncached)
		return time.Duration(booked+uncached) * each, ok
	}
	assert.Equal(t, "1 at 0.75", choice(minTTFT(forecast), req, ws[:2]), "seconds")
	assert.Equal(t, fmt.Sprintf("2 at %.6g", 1300*1.55/3800), choice(minTTFT(forecast), req, ws[:3]), "seconds")
	assert.Equal(t, "0 at 800", choice(minTTFT(nil), req, ws), "without rates the fewest tokens")
	full := []candidate{{Worker: &pools.Worker{}, Load: load.Account{ActiveBlocks: 9}},
		{Worker: &pools.Worker{}, Load: load.Account{PrefillTokens: 999}}}
	assert.Equal(t, "1 at 100", choice(mustPolicy(t, inMode("min-ttft").For(pools.Decode)), req, full),
		"in a decode pool blocks held and the request's own")
}

// TestSharedBlocksCountOnce: a worker that holds the prompt for another request
// has room for it where it would not have for both.
func TestSharedBlocksCountOnce(t *testing.T) {
	r := newRouter(t, DefaultConfig().For(pools.Decode), nil)
	p := poolOf(pools.Decode, worker("a", 15, 0, 0), worker("b", 15, 0, 0))
	hashes := chain(1, 10)
	first := reserve(t, r, p, Request{ID: "1", ISL: 165, Hashes: hashes}, noon)
	other := map[string]string{"a": "b", "b": "a"}[first.Worker.ID]
	second := reserve(t, r, p, Request{ID: "2", ISL: 165, Hashes: hashes, Exclude: []string{other}}, noon)
	assert.True(t, second.Worker == first.Worker && second.Cost == 12,
		"the second is on %s at %v, want %s at 11 blocks held and one more", second.Worker.ID, second.Cost, first.Worker.ID)
	for _, l := range r.Loads(p) {
		assert.Equal(t, map[bool]int{true: 12, false: 0}[l.Worker == first.Worker.ID], l.ActiveBlocks,
			"%s active blocks", l.Worker)
	}
	first.Release(noon)
	second.Release(noon)
	for _, l := range r.Loads(p) {
		assert.Zero(t, l.ActiveBlocks, "%s active blocks are left", l.Worker)
	}
}
