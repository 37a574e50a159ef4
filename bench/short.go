package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"time"

	"github.com/tandem-pd/tandem/lab/replay"
	"github.com/tandem-pd/tandem/lab/testkit"
)

// latency is the open loop: each rate, each round, each arm in turn.
func (m *meter) latency(ctx context.Context) error {
	for round := range m.Rounds {
		for i, r := range m.Rates {
			m.round++
			for _, a := range turns(m.armsNow(), round+i) {
				m.step("round %d of %d: %s at %g/s", round+1, m.Rounds, a.name, r.PerSecond)
				jobs, _, err := m.send(ctx, a, r)
				if err != nil {
					return err
				}
				m.report.arm(a).answered(r.PerSecond, jobs)
			}
		}
	}
	return nil
}

// answered takes a round's answers in.
func (f *figures) answered(perSecond float64, jobs []job) {
	ttft, late := make([]time.Duration, len(jobs)), make([]time.Duration, len(jobs))
	for i := range jobs {
		ttft[i], late[i] = jobs[i].ttft, jobs[i].late
	}
	f.add(at("ttft_p50_us", perSecond), micros(replay.NearestRank(ttft, 0.50)))
	f.add(at("ttft_p99_us", perSecond), micros(replay.NearestRank(ttft, 0.99)))
	f.add(at("late_p99_us", perSecond), micros(replay.NearestRank(late, 0.99)))
}

// short is the CPU time of short requests whose answers arrive in one piece: at a steady rate, and in a saturating
// closed loop.
func (m *meter) short(ctx context.Context) error {
	m.fleet.setPace(0)
	defer m.fleet.setPace(m.Pace)
	for round := range m.Rounds {
		m.round++
		for _, a := range turns(m.armsNow(), round) {
			if a.process != nil {
				m.step("round %d of %d: %s at %g/s, answers in one piece", round+1, m.Rounds, a.name, m.AtOnce.PerSecond)
				jobs, u, err := m.send(ctx, a, m.AtOnce)
				if err != nil {
					return err
				}
				m.report.arm(a).cost("short", u, len(jobs))
			}
			m.step("round %d of %d: %s with %d connections", round+1, m.Rounds, a.name, m.Connections)
			if err := m.saturate(ctx, a); err != nil {
				return err
			}
		}
	}
	return nil
}

// distinct is how many prompts a closed loop has; a faster arm repeats them.
const distinct = 20_000

// saturate runs the closed loop once.
func (m *meter) saturate(ctx context.Context, a *arm) error {
	jobs := m.prompts.short(a, distinct, m.Chunks)
	runtime.GC()
	if _, err := a.client.loop(ctx, m.Connections, m.WarmUp, jobs[:distinct/4]); err != nil {
		return m.explain(a, err)
	}
	own, err := cpuTime(os.Getpid())
	if err != nil {
		return err
	}
	n := 0
	u, took, err := m.watch(a, func() (err error) {
		n, err = a.client.loop(ctx, m.Connections, m.Saturation, jobs[distinct/4:])
		return err
	})
	if err != nil {
		return err
	}
	ours, err := cpuTime(os.Getpid())
	if err != nil {
		return err
	}
	f := m.report.arm(a)
	f.add("saturated_per_second", float64(n)/took.Seconds())
	f.add("saturated_rig_core_share", (ours-own).Seconds()/took.Seconds())
	if a.process != nil {
		f.add("saturated_core_share", u.cpu.Seconds()/took.Seconds())
		f.cost("saturated", u, n)
	}
	return nil
}

// longPrompts is the CPU time of requests with long prompts.
func (m *meter) longPrompts(ctx context.Context) error {
	m.fleet.setPace(0)
	defer m.fleet.setPace(m.Pace)
	for round := range m.Rounds {
		for _, step := range m.Prompts {
			n := max(conversations, int(step.Rate.PerSecond*step.Rate.For.Seconds()))
			for _, a := range turns(m.measured(), round) {
				for _, k := range promptKinds() {
					m.step("round %d of %d: %s, %s", round+1, m.Rounds, a.name, k.label(step))
					warm, jobs := k.jobs(m.prompts, a, step.Bytes, n, m.Chunks)
					u, err := m.play(ctx, a, evenly(warm, step.Rate.PerSecond), evenly(jobs, step.Rate.PerSecond))
					if err != nil {
						return err
					}
					m.report.arm(a).cost(k.key(step), u, n)
				}
			}
		}
	}
	return nil
}

// promptKind is a gateway's knowledge of a prompt.
type promptKind struct {
	name, model string
	seen        bool
}

func (k promptKind) label(s promptStep) string {
	return fmt.Sprintf("prompt of %d kB, %s", s.Bytes/1000, k.name)
}

func (k promptKind) key(s promptStep) string {
	return fmt.Sprintf("prompt_%dkB_%s", s.Bytes/1000, k.name)
}

func (k promptKind) jobs(p *prompts, a *arm, bytes, n, chunks int) (warm, jobs []job) {
	if k.seen {
		return p.grown(a, k.model, bytes, n, chunks)
	}
	return p.long(a, k.model, bytes, 2, chunks), p.long(a, k.model, bytes, n, chunks)
}

// promptKinds are the kinds of prompts for a gateway.
func promptKinds() []promptKind {
	return []promptKind{
		{"new", testkit.InstantModel, false}, {"seen", testkit.InstantModel, true},
		{"new_no_tokenizer", testkit.TextModel, false}, {"seen_no_tokenizer", testkit.TextModel, true},
	}
}
