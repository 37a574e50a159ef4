package simulate

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tandem-pd/tandem/lab/replay"
)

// material is a workload that was read or made up, hashed once for each block
// size and shared by all runs that ask the same.
type material struct {
	stages  []Stage
	skipped int // bad rows
}

// made reports whether requests are made up.
func (w *WorkloadPlan) made() bool {
	return len(w.Stages) > 0 || w.InputTokens != 0 || w.OutputTokens != 0 || w.SharedTokens != 0 || w.Groups != 0 || w.Prompts != 0 ||
		w.Turns != 0 || w.Trace == "" && len(w.Families) > 0
}

// builtIn reports whether the trace inside the program is used: where a plan names none and makes nothing up.
func (w *WorkloadPlan) builtIn() bool { return w.Trace == "" && !w.made() }

// make generates requests: Poisson arrivals of one shape, stage by stage. A stage depends only on the seed.
func (w *WorkloadPlan) make(seed uint64) []Stage {
	var stages []Stage
	serial := 0
	groups, prompts := max(1, w.Groups), max(1, w.Prompts)
	order := rand.New(rand.NewPCG(seed, math.MaxUint64)).Perm(groups * prompts)
	for n, s := range w.Stages {
		rng := rand.New(rand.NewPCG(seed, uint64(n)))
		stage := Stage{Name: s.name(), Warm: s.Warm}
		var clock float64 // seconds
		for i := 0; s.Requests == 0 || i < s.Requests; i++ {
			clock += -math.Log1p(-rng.Float64()) / s.Rate
			due := time.Duration(math.Round(float64(clock * 1e9)))
			if s.Duration > 0 && due >= s.Duration {
				break
			}
			// Every prompt comes once in each pass, in one shuffled order: how
			// inference-perf's shared-prefix generator is read.
			at := serial % len(order)
			serial++
			w.session(&stage, rng, due, serial, order[at]%groups, order[at]/groups)
		}
		stages = append(stages, stage)
	}
	return stages
}

// name returns a stage's name: its rate.
func (s StagePlan) name() string { return fmt.Sprintf("%g/s", s.Rate) }

// session adds a request, or all turns of a session.
func (w *WorkloadPlan) session(stage *Stage, rng *rand.Rand, due time.Duration, serial, group, prompt int) {
	var spans []replay.Span
	if w.SharedTokens > 0 {
		spans = append(spans, replay.Span{ID: spanID(1, group), Tokens: w.SharedTokens})
	}
	own := spanID(2, serial)
	if w.Prompts > 0 {
		own = spanID(3, group*max(1, w.Prompts)+prompt)
	}
	session := ""
	if w.Turns > 1 {
		session = fmt.Sprint(serial)
	}
	for turn := range max(1, w.Turns) {
		spans = append(spans[:len(spans):len(spans)], replay.Span{ID: own + uint64(turn)<<48, Tokens: w.input(rng)})
		r := replay.Request{Index: len(stage.Requests), At: due, Session: session, Spans: spans, OutputTokens: w.OutputTokens}
		if turn > 0 {
			r.Delay = w.Pause
		}
		stage.Requests = append(stage.Requests, r)
		// The next turn repeats the answer, whose tokens the engine's cache does not share: it is prompt of its own.
		spans = append(spans[:len(spans):len(spans)], replay.Span{ID: own + uint64(turn)<<48 + 1<<47, Tokens: w.OutputTokens})
	}
}

// input draws how many tokens a prompt has of its own: the mean, or lognormal about it.
func (w *WorkloadPlan) input(rng *rand.Rand) int {
	if w.InputSigma == 0 {
		return w.InputTokens
	}
	log := float64(w.InputSigma*rng.NormFloat64()) - float64(w.InputSigma*w.InputSigma)/2
	return max(1, int(math.Round(float64(float64(w.InputTokens)*math.Exp(log)))))
}

// spanID keeps kinds of spans apart.
func spanID(kind, n int) uint64 { return uint64(kind)<<60 | uint64(n) }

// shuffled draws the order of requests that have the same time, and how much later each comes, unless the plan leaves
// them the file's. Sessions stay in theirs.
func (w *WorkloadPlan) shuffled(stages []Stage, seed uint64) []Stage {
	if !w.Shuffle && w.Jitter == 0 {
		return stages
	}
	out := slices.Clone(stages)
	for n := range out {
		s := &out[n]
		s.Requests = slices.Clone(s.Requests)
		chains := &Chains{BlockTokens: s.Chains.BlockTokens, of: slices.Clone(s.Chains.of)}
		s.Chains = chains
		rng := rand.New(rand.NewPCG(seed, math.MaxUint64-1))
		for i := range s.Requests {
			if q := &s.Requests[i]; w.Jitter > 0 && q.Session == "" {
				q.At += time.Duration(rng.Int64N(int64(w.Jitter)))
			}
		}
		for from := 0; w.Shuffle && from < len(s.Requests); {
			to := from + 1
			for to < len(s.Requests) && s.Requests[to].At == s.Requests[from].At && s.Requests[to].Session == "" && s.Requests[from].Session == "" {
				to++
			}
			rng.Shuffle(to-from, func(i, j int) {
				i, j = from+i, from+j
				s.Requests[i], s.Requests[j] = s.Requests[j], s.Requests[i]
				chains.of[i], chains.of[j] = chains.of[j], chains.of[i]
			})
			from = to
		}
	}
	return out
}

// stages gives the variant's workload for a seed. A trace is the same for all,
// but for the order of simultaneous requests.
func (v *Variant) stages(traces map[traceKey]*material, seed uint64) []Stage {
	w := &v.plan.Workload
	var stages []Stage
	switch {
	case w.made() && len(w.Families) == 0:
		stages = w.make(seed)
	case w.made():
		stages = []Stage{{Name: "families", Requests: w.withFamilies(nil, seed)}}
	default:
		stages = w.shuffled(traces[v.traceKey()].stages, seed)
		if len(w.Families) == 0 {
			return stages
		}
		stages = slices.Clone(stages)
		stages[0].Requests = w.withFamilies(stages[0].Requests, seed)
	}
	for i := range stages {
		stages[i].Chains = NewChains(stages[i].Requests, v.blockTokens())
	}
	return stages
}

// traceKey is the key of a trace's material.
type traceKey struct {
	file              string // empty: the one inside the program
	traceBlock, limit int
	lenient           bool
	block             int
}

func (v *Variant) traceKey() traceKey {
	w := &v.plan.Workload
	return traceKey{
		locate(v.doc.File, w.Trace), cmp.Or(w.BlockTokens, replay.MooncakeBlockTokens), w.Limit, w.Lenient, v.blockTokens(),
	}
}
