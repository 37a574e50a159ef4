package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"
)

// meter is a measurement under way.
type meter struct {
	options
	dir     string
	cores   cores
	fleet   *fleet
	now     scenario // under way
	prompts *prompts
	report  *report
	stderr  io.Writer
	round   uint64 // counts rounds of any kind, for their arrivals

	begun  time.Time     // when the fleet was ready
	others time.Duration // the other processes' time on the cores until then
}

// measure runs the chosen part of the plan.
func measure(ctx context.Context, o options, stderr io.Writer) (*report, error) {
	if runtime.GOOS != "linux" {
		return nil, errors.New("the bench reads /proc and needs Linux")
	}
	for name, at := range map[string]*string{"nginx-light": &o.nginx, "haproxy": &o.haproxy} {
		binary := findProxy(*at)
		if binary == "" {
			fmt.Fprintf(stderr, "bench: there is no %s; its arm is left out. On Debian: apt-get install --no-install-recommends %s\n", *at, name)
		}
		*at = binary
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
	if o.against == "" && o.againstFlags != "" {
		o.against = o.gateway
	}
	m := &meter{options: o, dir: dir, stderr: stderr}
	if m.cores, err = pinCores(o.pin); err != nil {
		return nil, err
	}
	// A thread that waits for the runtime would be late: let the kernel share the cores.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(max(4, runtime.NumCPU())))
	m.report = newReport(ctx, o, m.cores.pinned)
	if m.prompts, err = newPrompts(o.Seed, o.PromptTokens); err != nil {
		return nil, err
	}
	// Memory first, of processes that have done nothing else: a heap keeps its size. The others share their processes.
	var shared []scenario
	for _, s := range o.only {
		if !s.fresh {
			shared = append(shared, s)
		} else if err := m.runAll(ctx, s); err != nil {
			return nil, err
		}
	}
	if len(shared) > 0 {
		if err := m.runAll(ctx, shared...); err != nil {
			return nil, err
		}
	}
	m.report.finish()
	return m.report, nil
}

// runAll runs scenarios on a fleet of their own.
func (m *meter) runAll(ctx context.Context, of ...scenario) error {
	m.step("starting gateways, engines and proxies")
	itself, err := os.Executable()
	if err != nil {
		return err
	}
	m.fleet, err = newFleet(ctx, fleetConfig{
		dir: m.dir, gateway: m.gateway, against: m.against, compares: m.compares(),
		gatewayFlags: strings.Fields(m.gatewayFlags), againstFlags: strings.Fields(m.againstFlags),
		nginx: m.nginx, haproxy: m.haproxy, itself: itself, cores: m.cores, pace: m.Pace,
		wants: func(key string) bool {
			return slices.ContainsFunc(of, func(s scenario) bool { return s.wants(key, m.arms) })
		},
	})
	if err != nil {
		return err
	}
	defer m.fleet.close()
	for _, a := range m.fleet.arms {
		m.report.arm(a) // in their order
	}
	if err := m.begin(); err != nil {
		return err
	}
	if !of[0].fresh {
		if err := m.idle(ctx); err != nil {
			return err
		}
	}
	for _, s := range of {
		m.now = s
		if err := s.run(m, ctx); err != nil {
			return errors.Join(ctx.Err(), err)
		}
	}
	return m.end()
}

// begin notes the other processes' time on the cores, and end the difference since.
func (m *meter) begin() (err error) {
	m.begun = time.Now()
	m.others, err = m.elsewhere()
	return err
}

func (m *meter) end() error {
	others, err := m.elsewhere()
	share := (others - m.others).Seconds() / time.Since(m.begun).Seconds() / float64(runtime.NumCPU())
	m.report.Others = max(m.report.Others, share)
	return err
}

// elsewhere is the cores' time less ours and that of the measured processes.
func (m *meter) elsewhere() (time.Duration, error) {
	all, err := machineTime()
	if err != nil {
		return 0, err
	}
	pids := []int{os.Getpid()}
	for _, a := range m.fleet.arms {
		if a.process != nil {
			pids = append(pids, a.process.pid)
		}
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

// armsNow are the arms of the scenario under way.
func (m *meter) armsNow() []*arm {
	return slices.DeleteFunc(slices.Clone(m.fleet.arms), func(a *arm) bool { return !m.now.wants(a.key, m.arms) })
}

// measured are those with a process to measure.
func (m *meter) measured() []*arm {
	return slices.DeleteFunc(m.armsNow(), func(a *arm) bool { return a.process == nil })
}

// turns are the arms in another order each round, so that none always follows the same one.
func turns(arms []*arm, round int) []*arm {
	n := round % max(1, len(arms))
	return append(append([]*arm(nil), arms[n:]...), arms[:n]...)
}

// idle watches each process do nothing.
func (m *meter) idle(ctx context.Context) error {
	m.step("idle")
	before := map[*arm]time.Duration{}
	for _, a := range m.fleet.arms {
		if a.process == nil {
			continue
		}
		d, err := cpuTime(a.process.pid)
		if err != nil {
			return err
		}
		before[a] = d
	}
	begun := time.Now()
	if err := wait(ctx, m.Idle); err != nil {
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

// watch measures the usage of an arm's process while f runs, less its idle usage.
func (m *meter) watch(a *arm, f func() error) (usage, time.Duration, error) {
	var was, is usage
	var err error
	if a.process != nil {
		if was, err = used(a.process.pid); err != nil {
			return usage{}, 0, m.explain(a, err)
		}
	}
	begun := time.Now()
	if err := f(); err != nil {
		return usage{}, 0, m.explain(a, err)
	}
	took := time.Since(begun)
	if a.process != nil {
		if is, err = used(a.process.pid); err != nil {
			return usage{}, 0, m.explain(a, err)
		}
	}
	d := is.less(was)
	d.cpu -= time.Duration(m.report.arm(a).IdleCPU * float64(took))
	return d, took, nil
}

// play sends an arm the first jobs and then, measured, the others.
func (m *meter) play(ctx context.Context, a *arm, warm, jobs []job) (usage, error) {
	runtime.GC() // ours, before and not while
	before := m.fleet.seen()
	if err := a.client.open(ctx, warm); err != nil {
		return usage{}, m.explain(a, err)
	}
	if err := m.fleet.check(a, warm, before); err != nil {
		return usage{}, m.explain(a, err)
	}
	before = m.fleet.seen()
	u, _, err := m.watch(a, func() error { return a.client.open(ctx, jobs) })
	if err != nil {
		return usage{}, err
	}
	return u, m.explain(a, m.fleet.check(a, jobs, before))
}

// send runs one open-loop round of an arm with short requests.
func (m *meter) send(ctx context.Context, a *arm, r rate) ([]job, usage, error) {
	warm := evenly(m.prompts.short(a, max(1, int(r.PerSecond*m.WarmUp.Seconds())), m.Chunks), r.PerSecond)
	times := schedule(r, m.Seed, m.round)
	jobs := m.prompts.short(a, len(times), m.Chunks)
	for i := range jobs {
		jobs[i].due = times[i]
	}
	u, err := m.play(ctx, a, warm, jobs)
	return jobs, u, err
}

// explain adds the process's last words to an error.
func (m *meter) explain(a *arm, err error) error {
	if err == nil || a.process == nil {
		return err
	}
	return fmt.Errorf("%s: %w\nIts last lines: %s", a.name, err, a.process.last())
}

// step reports the present step.
func (m *meter) step(format string, args ...any) { fmt.Fprintf(m.stderr, format+"\n", args...) }

// wait waits for so long or until the run is stopped.
func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
