package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// space is a process's memory in bytes. Heap and stacks are from its /metrics, zero without one.
type space struct{ resident, heap, stacks int64 }

// space reads an arm's, the most of ten samples, since collections vary.
func (m *meter) space(ctx context.Context, a *arm) (space, error) {
	var most space
	for range 10 {
		now, _, err := memory(a.process.pid)
		if err != nil {
			return most, err
		}
		most.resident = max(most.resident, now)
		if err := wait(ctx, m.Settled/15); err != nil {
			return most, err
		}
	}
	if a.key == nginxKey || a.key == haproxyKey {
		return most, nil
	}
	text, err := fetch(ctx, "http://"+a.front+"/metrics")
	if err == nil {
		most.heap, err = metric(text, "go_memstats_heap_inuse_bytes")
	}
	if err == nil {
		most.stacks, err = metric(text, "go_memstats_stack_inuse_bytes")
	}
	return most, err
}

// fetch reads a page by a connection that ends with it.
func fetch(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	req.Close = true
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s: %s", url, answer.Status)
	}
	return io.ReadAll(answer.Body)
}

// metric reads a figure without labels.
func metric(text []byte, name string) (int64, error) {
	for line := range bytes.Lines(text) {
		if value, ok := bytes.CutPrefix(line, []byte(name+" ")); ok {
			x, err := strconv.ParseFloat(string(bytes.TrimSpace(value)), 64)
			return int64(x), err
		}
	}
	return 0, fmt.Errorf("/metrics have no %s", name)
}

// grew records the memory of each of n things.
func (f *figures) grew(name string, before, after space, n int) {
	each := func(a, b int64) float64 { return float64(b-a) / float64(n) / (1 << 10) }
	f.add(name+"_before_mib", float64(before.resident)/(1<<20))
	f.add(name+"_mib", float64(after.resident)/(1<<20))
	f.add(name+"_kib", each(before.resident, after.resident))
	if after.stacks > 0 {
		f.add(name+"_heap_kib", each(before.heap, after.heap))
		f.add(name+"_stack_kib", each(before.stacks, after.stacks))
	}
}

// growth records what n things of an arm take, which open opens. As many requests precede them, on few connections, so
// that the difference is theirs.
func (m *meter) growth(ctx context.Context, a *arm, name string, n int, open func() (end func() error, err error)) error {
	m.step("%s: memory of %d times a %s", a.name, n, name)
	err := m.eachOnce(ctx, a.client, m.prompts.short(a, n, m.Chunks), false)
	if err == nil {
		err = wait(ctx, m.Settled)
	}
	if err != nil {
		return m.explain(a, err)
	}
	before, err := m.space(ctx, a)
	if err != nil {
		return err
	}
	end, err := open()
	if err != nil {
		return m.explain(a, err)
	}
	err = wait(ctx, m.Settled)
	after, failed := m.space(ctx, a)
	if err = errors.Join(err, failed, end()); err != nil {
		return m.explain(a, err)
	}
	m.report.arm(a).grew(name, before, after, n)
	return nil
}

// memory opens streams and measures their memory. Each has its connection, and a chunk once a second.
func (m *meter) memory(ctx context.Context) error {
	for _, a := range m.measured() {
		m.fleet.setPace(m.Pace)
		if err := m.growth(ctx, a, "stream", m.Streams, func() (func() error, error) {
			m.fleet.setPace(min(time.Second, m.Settled))
			cut, err := m.hold(ctx, a, m.Streams, opening)
			return func() error {
				defer cut()
				if open := a.open(); open != m.Streams {
					return fmt.Errorf("%d of %d streams were open", open, m.Streams)
				}
				return nil
			}, err
		}); err != nil {
			return err
		}
	}
	return nil
}

// connections opens connections, makes one request on each, and measures their memory while they idle.
func (m *meter) connections(ctx context.Context) error {
	m.fleet.setPace(0)
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return os.NewSyscallError("getrlimit", err)
	}
	// Go has raised the soft limit to the hard one; a gateway does that too.
	if need := uint64(m.IdleConnections) + 1000; limit.Cur < need {
		m.report.Missing = append(m.report.Missing,
			fmt.Sprintf("Idle connections are left out: the limit of descriptors is %d, %d are needed (ulimit -Hn).", limit.Cur, need))
		return nil
	}
	for _, a := range m.measured() {
		if err := m.growth(ctx, a, "connection", m.IdleConnections, func() (func() error, error) {
			crowd := &client{front: a.front, back: a.back}
			return func() error { crowd.close(); return nil }, m.eachOnce(ctx, crowd, m.prompts.short(a, m.IdleConnections, m.Chunks), true)
		}); err != nil {
			return err
		}
	}
	return nil
}

// eachOnce sends the jobs sixteen at a time, each over a connection of its own that stays, or over existing ones.
func (m *meter) eachOnce(ctx context.Context, c *client, jobs []job, own bool) error {
	const atOnce = 16
	var sending sync.WaitGroup
	errs := make([]error, atOnce)
	for i := range atOnce {
		sending.Go(func() {
			for j := i; j < len(jobs) && errs[i] == nil && ctx.Err() == nil; j += atOnce {
				errs[i] = c.once(ctx, &jobs[j], own)
			}
		})
	}
	sending.Wait()
	return errors.Join(append(errs, ctx.Err())...)
}

// soak saturates a process for the plan's time and watches its memory.
func (m *meter) soak(ctx context.Context) error {
	m.fleet.setPace(0)
	for _, a := range m.measured() {
		jobs := m.prompts.short(a, 4*distinct, m.Chunks)
		soaking, stop := context.WithTimeout(ctx, m.Soak)
		every := min(time.Second, m.Soak/20)
		var samples []float64
		watched := make(chan error, 1)
		go func() {
			watched <- func() error {
				for {
					now, _, err := memory(a.process.pid)
					if err != nil {
						return err
					}
					samples = append(samples, float64(now)/(1<<20))
					m.step("%s: saturated for %v: %.0f MiB", a.name, m.Soak, samples[len(samples)-1])
					if wait(soaking, every) != nil {
						return nil
					}
				}
			}()
		}()
		n, err := a.client.loop(ctx, m.Connections, m.Soak, jobs)
		stop()
		if err = errors.Join(err, <-watched); err != nil {
			return m.explain(a, err)
		}
		_, most, err := memory(a.process.pid)
		if err != nil {
			return err
		}
		f, half := m.report.arm(a), samples[len(samples)/2:]
		f.add("soak_max_mib", float64(most)/(1<<20))
		f.add("soak_end_mib", half[len(half)-1])
		f.add("soak_mib_a_minute", slope(half)*float64(time.Minute/every))
		f.add("soak_requests", float64(n))
	}
	return nil
}
