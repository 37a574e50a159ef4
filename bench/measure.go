package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"time"
)

// meter is a measurement under way.
type meter struct {
	options
	fleet   *fleet
	prompts *prompts
	report  *report
	bar     *progress
	round   uint64 // counts rounds of any kind, for their arrivals

	begun  time.Time     // when the fleet was ready
	others time.Duration // the other processes' time on the cores until then
}

// measure runs the whole plan.
func measure(ctx context.Context, o options, stderr io.Writer) (*report, error) {
	if runtime.GOOS != "linux" {
		return nil, errors.New("the bench reads /proc and needs Linux")
	}
	binary := findNginx(o.nginx)
	if binary == "" {
		fmt.Fprintf(stderr, "bench: there is no %s; its arm is left out. On Debian: apt-get install --no-install-recommends nginx-light\n", o.nginx)
	}
	dir, err := os.MkdirTemp("", "tandem-bench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if o.gateway == "" {
		fmt.Fprintln(stderr, "bench: building the gateway")
		if o.gateway, err = build(ctx, dir); err != nil {
			return nil, err
		}
	}
	cores, err := pinCores(o.pin)
	if err != nil {
		return nil, err
	}
	// A thread that waits for a turn of the runtime's would be late: let the
	// kernel share the core out.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(max(4, runtime.NumCPU())))
	m := &meter{options: o, report: newReport(ctx, o.plan, cores.pinned, binary)}
	if m.prompts, err = newPrompts(o.Seed, o.PromptTokens); err != nil {
		return nil, err
	}
	arms, measured := 4, 2
	if binary != "" {
		arms, measured = 5, 3
	}
	m.bar = newProgress(stderr, o.took(arms, measured))
	defer m.bar.close()
	cfg := fleetConfig{dir: dir, gateway: o.gateway, nginx: binary, cores: cores, pace: o.Pace}
	// Memory first and of processes that have done nothing else: what a heap
	// once grew to it keeps.
	for _, phases := range [][]func(context.Context) error{{m.memory}, {m.idle, m.latency, m.atOnce, m.slope, m.saturation, m.record}} {
		m.bar.say("starting gateways, engines and proxy")
		if m.fleet, err = newFleet(ctx, cfg); err != nil {
			return nil, err
		}
		for _, a := range m.fleet.arms {
			m.report.arm(a) // in their order
		}
		for _, phase := range append([]func(context.Context) error{m.begin}, append(phases, m.end)...) {
			if err := phase(ctx); err != nil {
				m.fleet.close()
				return nil, errors.Join(ctx.Err(), err)
			}
		}
		m.fleet.close()
	}
	m.report.finish()
	return m.report, nil
}

// begin notes the other processes' time on the cores, and end the difference since.
func (m *meter) begin(context.Context) (err error) {
	m.begun = time.Now()
	m.others, err = m.elsewhere()
	return err
}

func (m *meter) end(context.Context) error {
	others, err := m.elsewhere()
	m.report.Others = (others - m.others).Seconds() / time.Since(m.begun).Seconds() / float64(runtime.NumCPU())
	return err
}

// elsewhere is the cores' time less ours and that of the measured processes.
func (m *meter) elsewhere() (time.Duration, error) {
	all, err := machineTime()
	if err != nil {
		return 0, err
	}
	pids := []int{os.Getpid()}
	for _, a := range m.measured() {
		pids = append(pids, a.process.pid)
	}
	for _, pid := range pids {
		d, err := cpuTime(pid)
		if err != nil {
			return 0, err
		}
		all -= d
	}
	return all, nil
}

// measured are the arms with a process to measure.
func (m *meter) measured() []*arm {
	var arms []*arm
	for _, a := range m.fleet.arms {
		if a.process != nil {
			arms = append(arms, a)
		}
	}
	return arms
}

// turns are the arms in another order each round, so that none always follows
// the same one.
func turns(arms []*arm, round int) []*arm {
	n := round % len(arms)
	return append(append([]*arm(nil), arms[n:]...), arms[:n]...)
}

// memory opens streams and measures their memory.
func (m *meter) memory(ctx context.Context) error {
	const settled = 1500 * time.Millisecond // in which collections come to pass
	for _, a := range m.measured() {
		m.bar.say("%s: memory of %d streams", a.name, m.Streams)
		if _, _, err := m.send(ctx, a, rate{200, 500 * time.Millisecond}, m.Chunks); err != nil {
			return err
		}
		before, _, err := memory(a.process.pid)
		if err != nil {
			return err
		}
		// Streams that say something each second, for longer than this takes.
		m.fleet.setPace(time.Second)
		jobs := m.prompts.jobs(a, m.Streams, 60)
		for i := range jobs {
			jobs[i].due = time.Duration(i) * opening
		}
		watching, stop := context.WithCancel(ctx)
		over := make(chan error, 1)
		go func() { over <- a.client.open(watching, jobs) }()
		err = m.bar.pass(ctx, jobs[len(jobs)-1].due+settled)
		var most int64
		for range 10 {
			now, _, failed := memory(a.process.pid)
			most = max(most, now)
			err = errors.Join(err, failed, m.bar.pass(ctx, 100*time.Millisecond))
		}
		stop()
		<-over
		open := 0
		for _, l := range a.client.lanes() {
			if j := l.job.Load(); j != nil && j.chunks == 60 {
				open++
			}
		}
		a.client.close()
		m.fleet.setPace(m.Pace)
		if err != nil {
			return err
		}
		if open != m.Streams {
			return fmt.Errorf("%s: %d of %d streams were open: %s", a.name, open, m.Streams, a.process.last())
		}
		s := m.report.arm(a)
		s.Memory = &memoryFigures{Idle: before, Open: most, PerStream: (most - before) / int64(m.Streams)}
	}
	return nil
}

// idle watches each process do nothing.
func (m *meter) idle(ctx context.Context) error {
	m.bar.say("idle")
	before := map[*arm]time.Duration{}
	for _, a := range m.measured() {
		d, err := cpuTime(a.process.pid)
		if err != nil {
			return err
		}
		before[a] = d
	}
	begun := time.Now()
	if err := m.bar.pass(ctx, m.Idle); err != nil {
		return err
	}
	for a, was := range before {
		d, err := cpuTime(a.process.pid)
		if err != nil {
			return err
		}
		m.report.arm(a).IdleCPU = (d - was).Seconds() / time.Since(begun).Seconds()
	}
	return nil
}

// send runs one open-loop round of an arm, and returns its jobs and the CPU time
// of the measured process a request, less what it takes idle.
func (m *meter) send(ctx context.Context, a *arm, r rate, chunks int) ([]job, float64, error) {
	warm := m.prompts.jobs(a, max(1, int(r.PerSecond*m.WarmUp.Seconds())), chunks)
	for i := range warm {
		warm[i].due = time.Duration(float64(i) / r.PerSecond * float64(time.Second))
	}
	times := schedule(r, m.Seed, m.round)
	jobs := m.prompts.jobs(a, len(times), chunks)
	for i := range jobs {
		jobs[i].due = times[i]
	}
	runtime.GC() // ours, before and not while
	before := m.fleet.seen()
	err := a.client.open(ctx, warm)
	if err == nil {
		err = m.fleet.check(a, warm, before)
	}
	if err != nil {
		return nil, 0, m.explain(a, err)
	}
	var was, is time.Duration
	if a.process != nil {
		if was, err = cpuTime(a.process.pid); err != nil {
			return nil, 0, m.explain(a, err)
		}
	}
	before = m.fleet.seen()
	begun := time.Now()
	if err := a.client.open(ctx, jobs); err != nil {
		return nil, 0, m.explain(a, err)
	}
	took := time.Since(begun)
	if a.process != nil {
		if is, err = cpuTime(a.process.pid); err != nil {
			return nil, 0, m.explain(a, err)
		}
	}
	m.bar.passed(took + m.WarmUp)
	idle := m.report.arm(a).IdleCPU * float64(took)
	return jobs, micros(is-was-time.Duration(idle)) / float64(max(1, len(jobs))), m.explain(a, m.fleet.check(a, jobs, before))
}

// explain adds the process's last words to an error.
func (m *meter) explain(a *arm, err error) error {
	if err == nil || a.process == nil {
		return err
	}
	return fmt.Errorf("%s: %w: %s", a.name, err, a.process.last())
}

// latency is the open loop: each rate, each round, each arm in turn.
func (m *meter) latency(ctx context.Context) error {
	for round := range m.Rounds {
		for i, r := range m.Rates {
			m.round++
			for _, a := range turns(m.fleet.arms, round+i) {
				m.bar.say("round %d of %d: %s at %g/s", round+1, m.Rounds, a.name, r.PerSecond)
				jobs, cpu, err := m.send(ctx, a, r, m.Chunks)
				if err != nil {
					return err
				}
				step := m.report.arm(a).step(r.PerSecond)
				step.add(jobs)
				if a.process != nil {
					step.CPUs = append(step.CPUs, cpu)
				}
			}
		}
	}
	return nil
}

// atOnce is the CPU time of a request whose answer comes in one piece.
func (m *meter) atOnce(ctx context.Context) error {
	m.fleet.setPace(0)
	defer m.fleet.setPace(m.Pace)
	for round := range m.Rounds {
		m.round++
		for _, a := range turns(m.measured(), round) {
			m.bar.say("round %d of %d: %s at %g/s, answers in one piece", round+1, m.Rounds, a.name, m.AtOnce.PerSecond)
			_, cpu, err := m.send(ctx, a, m.AtOnce, m.Chunks)
			if err != nil {
				return err
			}
			s := m.report.arm(a)
			s.AtOnce = append(s.AtOnce, cpu)
		}
	}
	return nil
}

// slope is the CPU time of a chunk: the difference of long and short answers at
// the same rate.
func (m *meter) slope(ctx context.Context) error {
	for round := range m.Rounds {
		m.round++
		for _, a := range turns(m.measured(), round) {
			m.bar.say("round %d of %d: %s, answers of %d chunks", round+1, m.Rounds, a.name, m.LongChunks)
			_, short, err := m.send(ctx, a, m.Slope, m.Chunks)
			if err != nil {
				return err
			}
			_, long, err := m.send(ctx, a, m.Slope, m.LongChunks)
			if err != nil {
				return err
			}
			s := m.report.arm(a)
			s.Chunks = append(s.Chunks, (long-short)/float64(m.LongChunks-m.Chunks))
		}
	}
	return nil
}

// saturation is the closed loop: as much as goes through, of answers in one
// piece.
func (m *meter) saturation(ctx context.Context) error {
	m.fleet.setPace(0)
	defer m.fleet.setPace(m.Pace)
	const distinct = 20_000 // prompts; a faster arm than that asks again
	for round := range m.Rounds {
		for _, a := range turns(m.fleet.arms, round) {
			m.bar.say("round %d of %d: %s with %d connections", round+1, m.Rounds, a.name, m.Connections)
			jobs := m.prompts.jobs(a, distinct, m.Chunks)
			runtime.GC()
			if _, err := a.client.loop(ctx, m.Connections, m.WarmUp, jobs[:distinct/4]); err != nil {
				return m.explain(a, err)
			}
			own, err := cpuTime(os.Getpid())
			if err != nil {
				return err
			}
			var was, is time.Duration
			if a.process != nil {
				if was, err = cpuTime(a.process.pid); err != nil {
					return m.explain(a, err)
				}
			}
			begun := time.Now()
			n, err := a.client.loop(ctx, m.Connections, m.Saturation, jobs[distinct/4:])
			took := time.Since(begun)
			if err != nil {
				return m.explain(a, err)
			}
			if a.process != nil {
				if is, err = cpuTime(a.process.pid); err != nil {
					return m.explain(a, err)
				}
			}
			ours, err := cpuTime(os.Getpid())
			if err != nil {
				return err
			}
			m.report.arm(a).saturated(n, took, is-was, ours-own, a.process != nil)
			m.bar.passed(took + m.WarmUp)
		}
	}
	return nil
}

// record lets perf watch the gateway at the highest rate, where that was asked
// for.
func (m *meter) record(ctx context.Context) error {
	if m.profile == "" {
		return nil
	}
	a := m.fleet.arm("gateway_two_legs")
	m.bar.say("perf record into %s", m.profile)
	cmd := exec.CommandContext(ctx, "perf", "record", "-q", "-F", "1999", "-g", "-p", fmt.Sprint(a.process.pid), "-o", m.profile)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("profile: %w", err)
	}
	_, _, err := m.send(ctx, a, rate{m.fastest().PerSecond, 10 * time.Second}, m.Chunks)
	_ = cmd.Process.Signal(os.Interrupt) // perf ends well on it and says so by its status
	_ = cmd.Wait()
	return err
}
