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

	"github.com/tandem-pd/tandem/lab/replay"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
)

// Study is a plan with all that it varies.
type Study struct {
	Plan     Plan
	Variants []*Variant

	file string
}

// check refuses names that mean nothing.
func (s *Study) check(doc *document) error {
	names := map[string]bool{}
	for _, v := range s.Variants {
		if names[v.Name()] {
			return doc.Errorf("arms", "two arms are called %q", v.Name())
		}
		names[v.Name()] = true
	}
	arm := func(name string) bool {
		return slices.ContainsFunc(s.Variants, func(v *Variant) bool { return v.Arm == name || v.Name() == name })
	}
	if b := s.Plan.Baseline; b != "" && !arm(b) {
		return doc.Errorf("baseline", "there is no arm %q", b)
	}
	if c := s.Plan.Capacity; c != nil {
		if err := c.validate(doc); err != nil {
			return err
		}
	}
	return s.checkPublished(doc, arm)
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

// Run does all runs, one for each processor at a time, and reports the
// results. The report does not depend on the number of processors.
func (s *Study) Run(ctx context.Context, progress *Progress) (*Report, error) {
	progress.begin(s.Runs())
	traces, err := s.read()
	if err != nil {
		return nil, err
	}
	published, absent, err := s.published()
	if err != nil {
		return nil, err
	}
	report := &Report{
		Name: s.Plan.Name, About: s.Plan.About, SLO: s.Plan.SLO, Notes: slices.Concat(s.Plan.Notes, absent), Published: published,
	}
	if slices.ContainsFunc(s.Variants, func(v *Variant) bool { return v.plan.Workload.builtIn() }) {
		report.About = strings.TrimSpace(report.About + "\nThe plan names no workload: this is " + replay.BuiltInName + ".")
	}
	if c := s.Plan.Capacity; c != nil {
		filled := c.filled()
		report.Capacity = &filled
	}
	for _, m := range traces {
		report.Skipped += m.skipped
	}
	report.Arms = make([]ArmReport, len(s.Variants))
	for i, v := range s.Variants {
		report.Arms[i] = newArmReport(v, len(s.Plan.Seeds))
	}
	var mu sync.Mutex
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(runtime.GOMAXPROCS(0))
	for _, b := range s.batches() {
		group.Go(func() error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return s.runBatch(ctx, b, traces, func(variant, seed int, m *Measured) {
				mu.Lock()
				defer mu.Unlock()
				report.Arms[variant].put(seed, m)
				progress.end(s.Variants[variant].Name())
			})
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	report.finish(s.Plan.Baseline)
	return report, nil
}

// ran is one run of a variant at a speed.
func (v *Variant) ran(ctx context.Context, traces map[traceKey]*material, seed uint64, speed float64) (*ran, error) {
	stages := v.stages(traces, seed)
	if v.plan.Workload.made() {
		if err := v.holds(stages); err != nil {
			return nil, err
		}
	}
	q, err := v.queue()
	if err != nil {
		return nil, err
	}
	cfg := Config{
		Stages: stages, Fleet: v.fleet, Routers: seeded(v.routers, seed), Queue: q, ForecastScale: v.plan.Router.ForecastScale,
		Learns: v.plan.Router.Learns, Planner: v.plan.Planner, EventDelay: v.plan.Fleet.EventDelay,
		Replicas: v.replicas, SessionIDs: v.plan.Workload.SessionIDs,
		Speed: speed, Gaps: v.plan.SLO.TBT > 0, Readings: readings, Class: v.plan.Workload.class(seed),
		EventLoss: v.plan.Fleet.EventLoss, UnknownPrompts: v.plan.Router.UnknownPrompts, Seed: seed,
	}
	cfg.Replicas.Seed = seed
	out, err := Run(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return &ran{stages, out}, nil
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
		if v.plan.Workload.made() {
			continue
		}
		key := v.traceKey()
		m := traces[key]
		if m == nil {
			var err error
			if m, err = readMaterial(key, traces); err != nil {
				return nil, v.doc.Errorf("workload.trace", "%w", replay.Absent(key.file, err))
			}
			traces[key] = m
		}
		if err := v.holds(m.stages); err != nil {
			return nil, err
		}
	}
	return traces, nil
}

// readMaterial reads a trace, or takes the requests of one that was read for another block size.
func readMaterial(key traceKey, traces map[traceKey]*material) (*material, error) {
	made := func(name string, requests []replay.Request, skipped int) *material {
		return &material{[]Stage{{Name: name, Requests: requests, Chains: NewChains(requests, key.block)}}, skipped}
	}
	for other, m := range traces {
		if other.block = key.block; other == key {
			return made(m.stages[0].Name, m.stages[0].Requests, 0), nil
		}
	}
	if key.file == "" {
		w := replay.BuiltIn(key.limit)
		return made(w.Name, w.Requests, 0), nil
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
	return made(w.Name, w.Requests, skipped), nil
}

// holds refuses a fleet that could not hold the longest request.
func (v *Variant) holds(stages []Stage) error {
	for _, s := range stages {
		for i := range s.Requests {
			q := &s.Requests[i]
			where := fmt.Sprintf("stage %s", s.Name)
			if !v.plan.Workload.made() {
				where = fmt.Sprintf("%s, line %d,", s.Name, i+1)
			}
			if err := v.fits(where, q.InputTokens(), q.OutputTokens); err != nil {
				return err
			}
		}
	}
	return nil
}
