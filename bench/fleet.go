package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/tandem-pd/tandem/lab/testkit"
)

// arm is one way to an answer.
type arm struct {
	name string
	key  string // in the JSON report
	legs int
	// front and back are where its client connects; back is empty but where the client makes both calls itself.
	front, back string
	process     *process // the measured process; nil in the direct arms
	baseline    *arm     // the arm without it, whose latency is subtracted; nil for itself
	client      *client
}

// fleet is everything that runs for a measurement: engines in this process, and
// before them gateways and proxies in processes of their own.
type fleet struct {
	prefill, decode, both   *testkit.Instant
	textPrefill, textDecode *testkit.Instant // of a model without a known tokenizer
	arms                    []*arm
	closers                 []func()
}

// fleetConfig configures a fleet.
type fleetConfig struct {
	dir, gateway, against      string   // binaries
	gatewayFlags, againstFlags []string // more of them
	compares                   bool     // there is a second gateway
	nginx, haproxy, itself     string   // binaries; empty leaves them out
	cores                      cores
	pace                       time.Duration
	wants                      func(key string) bool // nil wants all
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

// engines are all of them.
func (f *fleet) engines() []*testkit.Instant {
	return []*testkit.Instant{f.prefill, f.decode, f.both, f.textPrefill, f.textDecode}
}

func (f *fleet) open(ctx context.Context, cfg fleetConfig) error {
	for _, e := range []**testkit.Instant{&f.prefill, &f.decode, &f.both, &f.textPrefill, &f.textDecode} {
		made, err := testkit.NewInstant(cfg.pace)
		if err != nil {
			return err
		}
		*e = made
		f.closers = append(f.closers, made.Close)
	}
	dir, err := os.MkdirTemp(cfg.dir, "fleet-")
	if err != nil {
		return err
	}
	direct2 := &arm{name: "direct, two legs", key: direct2Key, legs: 2, front: f.prefill.Address(), back: f.decode.Address()}
	direct1 := &arm{name: "direct, one leg", key: direct1Key, legs: 1, front: f.both.Address()}
	two := []string{
		"--prefill-url", f.prefill.Worker("p", testkit.InstantModel), "--decode-url", f.decode.Worker("d", testkit.InstantModel),
		"--prefill-url", f.textPrefill.Worker("tp", testkit.TextModel), "--decode-url", f.textDecode.Worker("td", testkit.TextModel),
	}
	gateway := func(name, binary string, flags ...[]string) func() (*process, error) {
		return func() (*process, error) {
			return startGateway(ctx, cfg.cores, name, dir, binary, slices.Concat(flags...)...)
		}
	}
	bare := func() (*process, error) {
		return startReady(ctx, cfg.cores, "bare", dir, cfg.itself, bareCommand, f.prefill.Address(), f.decode.Address())
	}
	proxy := func(start func(context.Context, cores, string, string, string) (*process, error), binary string) func() (*process, error) {
		return func() (*process, error) { return start(ctx, cfg.cores, dir, binary, f.both.Address()) }
	}
	for _, w := range []struct {
		arm   *arm
		there bool
		start func() (*process, error)
	}{
		{direct2, true, nil},
		{&arm{name: "gateway, two legs", key: gateway2Key, legs: 2, baseline: direct2}, true,
			gateway("gateway-two-legs", cfg.gateway, two, cfg.gatewayFlags)},
		{&arm{name: "against, two legs", key: againstKey, legs: 2, baseline: direct2}, cfg.compares,
			gateway("against", cfg.against, two, cfg.againstFlags)},
		{&arm{name: "bare minimum, two legs", key: bareKey, legs: 2, baseline: direct2}, cfg.itself != "", bare},
		{direct1, true, nil},
		{&arm{name: "gateway, one leg", key: gateway1Key, legs: 1, baseline: direct1}, true,
			gateway("gateway-one-leg", cfg.gateway, []string{"--worker-url", f.both.Worker("b", testkit.InstantModel)}, cfg.gatewayFlags)},
		{&arm{name: "nginx, one leg", key: nginxKey, legs: 1, baseline: direct1}, cfg.nginx != "", proxy(startNginx, cfg.nginx)},
		{&arm{name: "HAProxy, one leg", key: haproxyKey, legs: 1, baseline: direct1}, cfg.haproxy != "", proxy(startHAProxy, cfg.haproxy)},
	} {
		if !w.there || cfg.wants != nil && !cfg.wants(w.arm.key) {
			continue
		}
		if err := f.add(ctx, w.arm, w.start); err != nil {
			return err
		}
	}
	return nil
}

// add starts an arm's process, if it has one, and waits until it answers.
func (f *fleet) add(ctx context.Context, a *arm, start func() (*process, error)) error {
	if start != nil {
		p, err := start()
		if err != nil {
			return err
		}
		f.closers = append(f.closers, p.stop)
		a.process, a.front = p, p.address
	}
	f.arms = append(f.arms, a)
	a.client = &client{front: a.front, back: a.back}
	f.closers = append(f.closers, func() { a.client.close() })
	return f.await(ctx, a)
}

// await sends an arm requests one by one until one takes the way that it should.
func (f *fleet) await(ctx context.Context, a *arm) error {
	p, err := newPrompts(0, 4)
	if err != nil {
		return err
	}
	for deadline := time.Now().Add(readiness); ; {
		jobs := p.short(a, 1, 1)
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

// seen returns the calls that the engines have answered.
func (f *fleet) seen() testkit.Seen {
	var s testkit.Seen
	for _, e := range f.engines() {
		n := e.Seen()
		s = testkit.Seen{Prefills: s.Prefills + n.Prefills, Pulls: s.Pulls + n.Pulls, Alone: s.Alone + n.Alone}
	}
	return s
}

// check returns an error unless every job was answered, by the right number of legs.
func (f *fleet) check(a *arm, jobs []job, before testkit.Seen) error {
	failed := 0
	var first error
	for i := range jobs {
		if err := jobs[i].err; err != nil {
			failed++
			first = cmp.Or(first, err)
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d requests failed; the first: %w", failed, len(jobs), first)
	}
	n, got := int64(len(jobs)), f.seen().Less(before)
	want := testkit.Seen{Alone: n}
	if a.legs == 2 {
		want = testkit.Seen{Prefills: n, Pulls: n}
	}
	if got != want {
		return fmt.Errorf("the engines saw %d prefills, %d decodes of a hand-off and %d without one, for %d requests of %d legs",
			got.Prefills, got.Pulls, got.Alone, n, a.legs)
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

// setPace sets how fast every engine streams.
func (f *fleet) setPace(d time.Duration) {
	for _, e := range f.engines() {
		e.SetPace(d)
	}
}
