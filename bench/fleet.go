package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"
)

// arm is one way to an answer.
type arm struct {
	name string
	key  string // in the JSON report
	legs int
	// front and back are where its client connects; back is empty but where
	// the client makes both calls itself.
	front, back string
	process     *process // the measured process; nil in the direct arms
	baseline    *arm     // the arm without it, whose latency is subtracted; nil for itself
	client      *client
}

// fleet is everything that runs for a measurement: three engines in this
// process, and before them two gateways and nginx in processes of their own.
type fleet struct {
	prefill, decode, both *engine
	arms                  []*arm
	closers               []func()
}

// fleetConfig is what a fleet is made of.
type fleetConfig struct {
	dir, gateway string
	nginx        string // empty leaves it out
	cores        cores
	pace         time.Duration
}

// newFleet starts one. It is ready when every arm has answered a request.
func newFleet(ctx context.Context, cfg fleetConfig) (*fleet, error) {
	f := &fleet{}
	if err := f.open(ctx, cfg); err != nil {
		f.close()
		return nil, err
	}
	return f, nil
}

func (f *fleet) open(ctx context.Context, cfg fleetConfig) error {
	for _, e := range []**engine{&f.prefill, &f.decode, &f.both} {
		made, err := newEngine(cfg.pace)
		if err != nil {
			return err
		}
		*e = made
		f.closers = append(f.closers, made.close)
	}
	dir, err := os.MkdirTemp(cfg.dir, "fleet-")
	if err != nil {
		return err
	}
	two, err := f.gateway(ctx, cfg, dir, "gateway-two-legs", worker("--prefill-url", "p", f.prefill), worker("--decode-url", "d", f.decode))
	if err != nil {
		return err
	}
	one, err := f.gateway(ctx, cfg, dir, "gateway-one-leg", worker("--worker-url", "b", f.both))
	if err != nil {
		return err
	}
	direct2 := &arm{name: "direct, two legs", key: "direct_two_legs", legs: 2, front: f.prefill.address(), back: f.decode.address()}
	direct1 := &arm{name: "direct, one leg", key: "direct_one_leg", legs: 1, front: f.both.address()}
	f.arms = []*arm{
		direct2,
		{name: "gateway, two legs", key: "gateway_two_legs", legs: 2, front: two.address, process: two, baseline: direct2},
		direct1,
		{name: "gateway, one leg", key: "gateway_one_leg", legs: 1, front: one.address, process: one, baseline: direct1},
	}
	if cfg.nginx != "" {
		proxy, err := startNginx(ctx, cfg.cores, dir, cfg.nginx, f.both.address())
		if err != nil {
			return err
		}
		f.closers = append(f.closers, proxy.stop)
		f.arms = append(f.arms, &arm{name: "nginx, one leg", key: "nginx_one_leg", legs: 1, front: proxy.address, process: proxy, baseline: direct1})
	}
	for _, a := range f.arms {
		a.client = &client{front: a.front, back: a.back}
		f.closers = append(f.closers, a.client.close)
		if err := f.await(ctx, a); err != nil {
			return err
		}
	}
	return nil
}

// await sends an arm requests one by one until one takes the way that it should.
func (f *fleet) await(ctx context.Context, a *arm) error {
	p, err := newPrompts(0, 4)
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(readiness); ; {
		jobs := p.jobs(a, 1, 1)
		before := f.seen()
		if err = a.client.open(ctx, jobs); err == nil {
			err = f.check(a, jobs, before)
		}
		if err == nil {
			return nil
		}
		if a.process != nil {
			err = fmt.Errorf("%w: %s", err, a.process.last())
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return err
		}
	}
}

// seen is what the engines have answered.
type seen struct{ prefills, pulls, alone int64 }

func (f *fleet) seen() seen {
	var s seen
	for _, e := range []*engine{f.prefill, f.decode, f.both} {
		s.prefills += e.prefills.Load()
		s.pulls += e.pulls.Load()
		s.alone += e.alone.Load()
	}
	return s
}

// check says whether every job was answered, and by as many legs as it should.
func (f *fleet) check(a *arm, jobs []job, before seen) error {
	failed := 0
	var first error
	for i := range jobs {
		if err := jobs[i].err; err != nil {
			failed++
			first = cmp.Or(first, err)
		}
	}
	if failed > 0 {
		return fmt.Errorf("%s: %d of %d requests failed; the first: %w", a.name, failed, len(jobs), first)
	}
	n, after := int64(len(jobs)), f.seen()
	got := seen{after.prefills - before.prefills, after.pulls - before.pulls, after.alone - before.alone}
	want := seen{alone: n}
	if a.legs == 2 {
		want = seen{prefills: n, pulls: n}
	}
	if got != want {
		return fmt.Errorf("%s: the engines saw %d prefills, %d decodes of a hand-off and %d without one, for %d requests of %d legs",
			a.name, got.prefills, got.pulls, got.alone, n, a.legs)
	}
	return nil
}

// close ends everything, the last first.
func (f *fleet) close() {
	for i := len(f.closers) - 1; i >= 0; i-- {
		f.closers[i]()
	}
	f.closers = nil
}

// arm finds one by its key; nil when it was left out.
func (f *fleet) arm(key string) *arm {
	for _, a := range f.arms {
		if a.key == key {
			return a
		}
	}
	return nil
}

// setPace sets how fast every engine streams.
func (f *fleet) setPace(d time.Duration) {
	for _, e := range []*engine{f.prefill, f.decode, f.both} {
		e.setPace(d)
	}
}

// worker is the flag that gives an engine to a gateway: with all that would be
// asked of it, and room for whatever comes.
func worker(flag, id string, e *engine) []string {
	return []string{flag, "http://" + e.address() + ",model=" + model + ",id=" + id + ",engine=vllm,block-size=16,kv-blocks=10000000," +
		"max-num-seqs=100000,max-num-batched-tokens=1000000,context-length=262144,ranks=1,model-input=text"}
}

// gateway starts one in front of workers that it is given by flags: it needs
// neither etcd nor NATS, and predicts what the engines hold.
func (f *fleet) gateway(ctx context.Context, cfg fleetConfig, dir, name string, workers ...[]string) (*process, error) {
	p, err := startGateway(ctx, cfg.cores, name, dir, cfg.gateway, slices.Concat(workers...)...)
	if err != nil {
		return nil, err
	}
	f.closers = append(f.closers, p.stop)
	return p, serves(ctx, p)
}

// serves waits until a gateway calls itself healthy.
func serves(ctx context.Context, p *process) error {
	ctx, cancel := context.WithTimeout(ctx, readiness)
	defer cancel()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.address+"/health", nil)
		if err != nil {
			return err
		}
		answer, err := client.Do(req)
		if err == nil {
			_, _ = io.Copy(io.Discard, answer.Body)
			_ = answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				return nil
			}
			err = errors.New(answer.Status)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s finds no workers: %w: %s", p.name, err, p.last())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// findNginx is the path of nginx, empty when there is none: Debian has it where
// only root looks.
func findNginx(name string) string {
	for _, n := range []string{name, filepath.Join("/usr/sbin", name)} {
		if path, err := exec.LookPath(n); err == nil {
			return path
		}
	}
	return ""
}
