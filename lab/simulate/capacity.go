package simulate

import (
	"context"
	"fmt"
	"math"
	"strings"
)

// CapacityPlan has each arm searched for the highest speed of the workload at
// which enough requests are good, in place of being run at one speed.
type CapacityPlan struct {
	// Share of requests that must be within the SLO, 0.9 by default.
	Share float64 `yaml:"share"`
	// From and To are the speeds to search between, 0.25 and 8 by default; Step is the factor between two speeds that
	// are tried, 1.05 by default. Between the two speeds where goodput crosses the share, the line that joins them is
	// followed.
	From float64 `yaml:"from"`
	To   float64 `yaml:"to"`
	Step float64 `yaml:"step"`
}

// filled is the plan with its defaults.
func (c CapacityPlan) filled() CapacityPlan {
	for _, f := range []struct {
		to   *float64
		unit float64
	}{{&c.Share, enough}, {&c.From, 0.25}, {&c.To, 8}, {&c.Step, 1.05}} {
		if *f.to == 0 {
			*f.to = f.unit
		}
	}
	return c
}

// validate rejects what cannot be searched.
func (c CapacityPlan) validate(doc *document) error {
	c = c.filled()
	switch {
	case !(c.Share > 0 && c.Share <= 1):
		return doc.Errorf("capacity.share", "%v is not above 0 and at most 1", c.Share)
	case !(c.From > 0 && c.From < c.To && c.To <= 1e4):
		return doc.Errorf("capacity", "it cannot be searched from %v to %v", c.From, c.To)
	case !(c.Step >= 1.001 && c.Step <= 4):
		return doc.Errorf("capacity.step", "%v is not between 1.001 and 4", c.Step)
	}
	return nil
}

// steps is how many speeds there are.
func (c CapacityPlan) steps() int { return int(math.Floor(math.Log(c.To/c.From)/math.Log(c.Step))) + 1 }

// speed is the speed number k. It is multiplied up, since math.Pow may differ
// in its last bit from one machine to another.
func (c CapacityPlan) speed(k int) float64 {
	s := c.From
	for range k {
		s *= c.Step
	}
	return s
}

// batch is variants that one job runs: those of an arm that differ in nothing but the SLO, which a run does not depend
// on, when a capacity is searched; else one.
type batch struct {
	variants []int // of the study
	seeds    []int // of the plan's
}

// batches are the study's jobs.
func (s *Study) batches() []batch {
	var all []batch
	if s.Plan.Capacity == nil {
		for i := range s.Variants {
			for n := range s.Plan.Seeds {
				all = append(all, batch{[]int{i}, []int{n}})
			}
		}
		return all
	}
	seeds := make([]int, len(s.Plan.Seeds))
	for n := range seeds {
		seeds[n] = n
	}
	at := map[string]int{}
	for i, v := range s.Variants {
		key := v.Arm
		for _, p := range v.Point {
			if !strings.HasPrefix(p.Path, "slo.") {
				key += "\x00" + p.Path + "=" + p.Text
			}
		}
		n, ok := at[key]
		if !ok {
			n = len(all)
			at[key] = n
			all = append(all, batch{nil, seeds})
		}
		all[n].variants = append(all[n].variants, i)
	}
	return all
}

// runBatch runs a job and hands over each variant's figures for each seed.
func (s *Study) runBatch(ctx context.Context, b batch, traces map[traceKey]*material, put func(variant, seed int, m *Measured)) error {
	crossed := map[int]int{} // where each variant's last search ended: the next begins there
	for _, n := range b.seeds {
		seed := s.Plan.Seeds[n]
		known := map[float64]*ran{}
		for _, i := range b.variants {
			v := s.Variants[i]
			search := search{v: v, known: known, seed: seed, try: func(speed float64) (*ran, error) { return v.ran(ctx, traces, seed, speed) }}
			m, err := (*Measured)(nil), error(nil)
			if s.Plan.Capacity == nil {
				m, err = search.measured(v.plan.Workload.Speed)
			} else {
				before, follows := crossed[i]
				if !follows {
					before = -1
				}
				search.plan = s.Plan.Capacity.filled()
				m, crossed[i], err = search.all(before)
			}
			if err != nil {
				return fmt.Errorf("%s, seed %d: %w", v.Name(), seed, err)
			}
			put(i, n, m)
		}
	}
	return nil
}

// search looks for one variant's capacity with one seed.
type search struct {
	plan  CapacityPlan
	v     *Variant
	seed  uint64
	known map[float64]*ran // by their speed: siblings have the same runs
	try   func(speed float64) (*ran, error)
}

// all returns the measurement at the highest speed tried that is good enough (at the lowest where none is), with its
// capacity, and the number of that speed. It looks around a guess first, unless that is −1.
func (s *search) all(guess int) (*Measured, int, error) {
	below, above := -1, s.plan.steps() // the former is good enough, the latter not
	if guess >= 0 {
		for reach := 1; reach < above-below; reach *= 2 {
			k := min(max(guess, below+1), above-1)
			good, err := s.good(k)
			if err != nil {
				return nil, 0, err
			}
			if good {
				below, guess = k, k+reach
			} else {
				above, guess = k, k-reach
			}
			if below >= 0 && above < s.plan.steps() {
				break
			}
		}
	}
	for above-below > 1 {
		k := (below + above) / 2
		good, err := s.good(k)
		if err != nil {
			return nil, 0, err
		}
		if good {
			below = k
		} else {
			above = k
		}
	}
	m, err := s.measured(s.plan.speed(max(below, 0)))
	if err != nil {
		return nil, 0, err
	}
	switch {
	case below < 0:
		m.Metrics["capacity"] = 0
	case above == s.plan.steps():
		m.Metrics["capacity"] = s.plan.speed(below)
	default:
		worse, err := s.measured(s.plan.speed(above))
		if err != nil {
			return nil, 0, err
		}
		from, to := s.plan.speed(below), s.plan.speed(above)
		high, low := m.Metrics["goodput"], worse.Metrics["goodput"]
		m.Metrics["capacity"] = from + float64((to-from)*ratio(high-s.plan.Share, high-low))
	}
	return m, max(below, 0), nil
}

func (s *search) good(k int) (bool, error) {
	m, err := s.measured(s.plan.speed(k))
	return err == nil && m.Metrics["goodput"] >= s.plan.Share, err
}

// measured returns the result at a speed.
func (s *search) measured(speed float64) (*Measured, error) {
	r := s.known[speed]
	if r == nil {
		var err error
		if r, err = s.try(speed); err != nil {
			return nil, err
		}
		s.known[speed] = r
	}
	return measure(s.v, s.seed, r.stages, r.out), nil
}

// ran is a run that was made.
type ran struct {
	stages []Stage
	out    *Outcome
}

// bounds reports where a search ended at its own limits: by all of its seeds, or by some.
func (r *Report) bounds(a *ArmReport) string {
	c, top := a.Stats["capacity"], r.Capacity.speed(r.Capacity.steps()-1)
	switch {
	case c.Max == 0:
		return fmt.Sprintf("not even at %g", r.Capacity.From)
	case c.Min >= top:
		return "or more: that is as far as the search went"
	case c.Min == 0:
		return fmt.Sprintf("a seed not even at %g, counted as 0", r.Capacity.From)
	case c.Max >= top:
		return "a seed or more: that is as far as the search went"
	}
	return ""
}
