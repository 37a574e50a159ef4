package simulate

import (
	"context"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/tandem-pd/tandem/internal/replay"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
)

// Study is a plan with all that it varies.
type Study struct {
	Plan     Plan
	Variants []*Variant

	file string
}

// Progress is told after each run how far a study is.
type Progress func(done, all int, what string)

// check refuses names that mean nothing.
func (s *Study) check(doc *document) error {
	names := map[string]bool{}
	for _, v := range s.Variants {
		if names[v.Name()] {
			return doc.problem("arms", "two arms are called %q", v.Name())
		}
		names[v.Name()] = true
	}
	arm := func(name string) bool {
		return slices.ContainsFunc(s.Variants, func(v *Variant) bool { return v.Arm == name || v.Name() == name })
	}
	if b := s.Plan.Baseline; b != "" && !arm(b) {
		return doc.problem("baseline", "there is no arm %q", b)
	}
	for _, p := range s.Plan.Published {
		switch {
		case !arm(p.Arm):
			return doc.problem("published", "there is no arm %q", p.Arm)
		case !knownMetric(p.Metric):
			return doc.problem("published", "%q is no metric of the report; there are %s", p.Metric, strings.Join(metricNames(), ", "))
		}
	}
	return nil
}

// UseSeeds has every arm run with the seeds 1 to n.
func (s *Study) UseSeeds(n int) {
	s.Plan.Seeds = nil
	for seed := range uint64(n) {
		s.Plan.Seeds = append(s.Plan.Seeds, seed+1)
	}
}

// Runs is how many runs a study has.
func (s *Study) Runs() int { return len(s.Variants) * len(s.Plan.Seeds) }

// Run does all runs, as many at once as there are processors, and says what came
// of them. The report is the same whatever the number of processors.
func (s *Study) Run(ctx context.Context, progress Progress) (*Report, error) {
	traces, err := s.read()
	if err != nil {
		return nil, err
	}
	report := &Report{Name: s.Plan.Name, About: s.Plan.About, SLO: s.Plan.SLO, Notes: s.Plan.Notes, Published: s.Plan.Published}
	for _, m := range traces {
		report.Skipped += m.skipped
	}
	report.Arms = make([]ArmReport, len(s.Variants))
	for i, v := range s.Variants {
		report.Arms[i] = newArmReport(v, len(s.Plan.Seeds))
	}
	var mu sync.Mutex
	done := 0
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for i, v := range s.Variants {
		for n, seed := range s.Plan.Seeds {
			group.Go(func() error {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				one, err := v.run(ctx, traces, seed)
				if err != nil {
					return fmt.Errorf("%s, seed %d: %w", v.Name(), seed, err)
				}
				mu.Lock()
				defer mu.Unlock()
				report.Arms[i].put(n, one)
				done++
				if progress != nil {
					progress(done, s.Runs(), v.Name())
				}
				return nil
			})
		}
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	report.finish(s.Plan.Baseline)
	return report, nil
}

// run is one run of a variant, measured.
func (v *Variant) run(ctx context.Context, traces map[traceKey]*material, seed uint64) (*Measured, error) {
	stages := v.stages(traces, seed)
	if v.plan.Workload.Trace == "" {
		if err := v.holds(stages); err != nil {
			return nil, err
		}
	}
	q, err := v.queue()
	if err != nil {
		return nil, err
	}
	cfg := Config{
		Stages: stages, Fleet: v.fleet, Routers: seeded(v.routers, seed), Queue: q, EventDelay: v.plan.Fleet.EventDelay,
		Speed: v.plan.Workload.Speed, Gaps: v.plan.SLO.TBT > 0, Readings: readings,
	}
	out, err := Run(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return measure(v, seed, stages, out), nil
}

// readings is how many readings of the fleet's state a run takes.
const readings = 240

// seeded gives every pool's draws the run's seed.
func seeded(configs map[pools.Role]router.Config, seed uint64) map[pools.Role]router.Config {
	out := maps.Clone(configs)
	for role, c := range out {
		c.Seed = seed
		out[role] = c
	}
	return out
}

// read reads every trace that a variant names, once for each block size.
func (s *Study) read() (map[traceKey]*material, error) {
	traces := map[traceKey]*material{}
	for _, v := range s.Variants {
		if v.plan.Workload.Trace == "" {
			continue
		}
		key := v.traceKey()
		m := traces[key]
		if m == nil {
			var err error
			if m, err = readMaterial(key, traces); err != nil {
				return nil, v.doc.problem("workload.trace", "%w", err)
			}
			traces[key] = m
		}
		if err := v.holds(m.stages); err != nil {
			return nil, err
		}
	}
	return traces, nil
}

// readMaterial reads a trace, or takes the requests of one that was read for
// another block size.
func readMaterial(key traceKey, traces map[traceKey]*material) (*material, error) {
	for other, m := range traces {
		if other.block = key.block; other == key {
			requests := m.stages[0].Requests
			return &material{stages: []Stage{{Name: m.stages[0].Name, Requests: requests, Chains: NewChains(requests, key.block)}}}, nil
		}
	}
	f, err := os.Open(key.file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	w, skipped, err := replay.Read(f, key.file, replay.Reading{BlockTokens: key.traceBlock, Limit: key.limit, Lenient: key.lenient})
	if err != nil {
		return nil, err
	}
	return &material{stages: []Stage{{Name: w.Name, Requests: w.Requests, Chains: NewChains(w.Requests, key.block)}}, skipped: skipped}, nil
}

// holds refuses a fleet that could not hold the longest request.
func (v *Variant) holds(stages []Stage) error {
	for _, s := range stages {
		for i := range s.Requests {
			q := &s.Requests[i]
			where := fmt.Sprintf("stage %s", s.Name)
			if v.plan.Workload.Trace != "" {
				where = fmt.Sprintf("%s, line %d,", v.plan.Workload.Trace, i+1)
			}
			if err := v.fits(where, q.InputTokens(), q.OutputTokens); err != nil {
				return err
			}
		}
	}
	return nil
}
