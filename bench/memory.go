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

// memory opens streams and measures their memory. Each has its connection, and a chunk once a second.
func (m *meter) memory(ctx context.Context) error {
	for _, a := range m.measured() {
		m.step("%s: memory of %d streams", a.name, m.Streams)
		m.fleet.setPace(m.Pace)
		// As many requests before as streams after, so that the difference is the streams'.
		if err := m.eachOnce(ctx, a.client, m.prompts.short(a, m.Streams, m.Chunks), false); err != nil {
			return m.explain(a, err)
		}
		if err := wait(ctx, m.Settled); err != nil {
			return err
		}
		before, err := m.space(ctx, a)
		if err != nil {
			return err
		}
		m.fleet.setPace(min(time.Second, m.Settled))
		end, err := m.hold(ctx, a, m.Streams, opening)
		if err != nil {
			return err
		}
		err = wait(ctx, m.Settled)
		after, failed := m.space(ctx, a)
		open := a.open()
		end()
		if err = errors.Join(err, failed); err != nil {
			return err
		}
		if open != m.Streams {
			return m.explain(a, fmt.Errorf("%d of %d streams were open", open, m.Streams))
		}
		m.report.arm(a).grew("stream", before, after, m.Streams)
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
		m.step("idle connections are left out: they need %d descriptors, and the limit is %d (ulimit -Hn)", need, limit.Cur)
		m.report.Missing = append(m.report.Missing, fmt.Sprintf("idle connections: the limit of descriptors is %d, %d are needed", limit.Cur, need))
		return nil
	}
	for _, a := range m.measured() {
		m.step("%s: memory of %d idle connections", a.name, m.IdleConnections)
		// As many requests before as after, so that the difference is the connections'.
		warm := m.prompts.short(a, m.IdleConnections, m.Chunks)
		if err := m.eachOnce(ctx, a.client, warm, false); err != nil {
			return m.explain(a, err)
		}
		if err := wait(ctx, m.Settled); err != nil {
			return err
		}
		before, err := m.space(ctx, a)
		if err != nil {
			return err
		}
		crowd := &client{front: a.front, back: a.back}
		err = m.eachOnce(ctx, crowd, m.prompts.short(a, m.IdleConnections, m.Chunks), true)
		if err == nil {
			err = wait(ctx, m.Settled)
		}
		after, failed := m.space(ctx, a)
		crowd.close()
		if err = errors.Join(err, failed); err != nil {
			return m.explain(a, err)
		}
		m.report.arm(a).grew("connection", before, after, m.IdleConnections)
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
