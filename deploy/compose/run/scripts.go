package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// healLimit bounds how long a fleet takes to recover: a lease, and some rounds of reconnecting.
const healLimit = 30 * time.Second

// usual is the load of most scenarios: half a second of generation after a short prompt, so that at any moment most
// streams are in progress.
var usual = loadConfig{clients: 10, promptWords: 150, tokens: 50}

// long is prompts and little else, so that prefill is busy.
var long = loadConfig{clients: 10, promptWords: 300, tokens: 20}

// short answers, for workers that stop responding: one that is not streamed may take five times as long as its tokens
// should before its worker is given up.
var short = loadConfig{clients: 10, promptWords: 150, tokens: 30}

// Of how long something stays broken.
const (
	// quiet is longer than the overlays' lease, than the limit on an answer that is not streamed, about 7 s, and than
	// the buffers of a connection to NATS last.
	quiet = 10 * time.Second
	// absent is longer than the overlays' lease, for servers that no request passes through.
	absent = 5 * time.Second
)

// scenarios lists all scenarios in order.
func scenarios() []scenario { return append(oneGateway(), threeGateways()...) }

// oneGateway are those of compose.yaml's fleet.
func oneGateway() []scenario {
	prefilling := func(w workerView, _ int) bool { return w.PrefillTokens > 0 }
	streaming := func(w workerView, streams int) bool { return w.Requests > 1 && streams > 2 }
	nothing := func(context.Context, *fleet, string) error { return nil }
	restart, pause, unpause := by("restart"), by("pause"), by("unpause")
	return []scenario{
		{
			name: "prefill-killed", overlay: "prefill-killed", slowest: 10 * time.Second,
			shows:  "a prefill worker is killed with prompts in it",
			load:   long,
			script: breakage{"prefill-2", prefilling, kill, start, 0, nil}.run,
		},
		{
			name: "prefill-paused", overlay: "prefill-paused", leavesKV: true, slowest: 20 * time.Second,
			shows:  "a prefill worker freezes with prompts in it; after it is woken it serves again",
			load:   long,
			script: breakage{"prefill-2", prefilling, pause, unpause, absent, nil}.run,
		},
		{
			name: "decode-killed", slowest: 10 * time.Second,
			shows:  "a decode worker is killed in mid-stream",
			load:   usual,
			script: breakage{"decode-2", streaming, kill, start, 0, nil}.run,
		},
		{
			name: "decode-paused", overlay: "decode-paused", slowest: 20 * time.Second,
			shows:  "a decode worker freezes in mid-stream; after it is woken it serves again",
			load:   short,
			script: breakage{"decode-2", streaming, pause, unpause, quiet, nil}.run,
		},
		{
			name: "worker-cut", overlay: "worker-cut", leavesKV: true, slowest: 20 * time.Second,
			shows:  "a decode worker is cut off the network for longer than its lease; it registers and serves again once it is back",
			load:   short,
			script: breakage{"decode-2", streaming, cut, join, quiet, nil}.run,
		},
		{
			name: "rolling-restart", slowest: 10 * time.Second,
			shows:  "every worker is drained with --move and restarted, one after the other",
			load:   usual,
			script: rolling,
		},
		{
			name: "nats-restarted", slowest: 10 * time.Second,
			shows:  "NATS is restarted; KV events are followed again afterwards",
			load:   usual,
			script: breakage{"nats", underLoad, restart, nothing, 0, nil}.run,
		},
		{
			name: "nats-cut", slowest: 5 * time.Second,
			shows:  "NATS is cut off the network; KV events are followed again afterwards",
			load:   usual,
			script: breakage{"nats", underLoad, cut, join, quiet, nil}.run,
		},
		{
			name: "nats-paused", slowest: 10 * time.Second,
			shows:  "NATS freezes; KV events are followed again afterwards",
			load:   usual,
			script: breakage{"nats", underLoad, pause, unpause, absent, nil}.run,
		},
		{
			name: "etcd-restarted", slowest: 10 * time.Second,
			shows:  "etcd is restarted; the workers stay registered",
			load:   usual,
			script: breakage{"etcd", underLoad, restart, nothing, 0, nil}.run,
		},
		{
			name: "etcd-cut", overlay: "worker-cut", slowest: 10 * time.Second,
			shows:  "etcd is cut off the network for longer than the leases; the workers register again",
			load:   usual,
			script: breakage{"etcd", underLoad, cut, join, absent, nil}.run,
		},
		{
			name: "etcd-paused", overlay: "worker-cut", slowest: 10 * time.Second,
			shows:  "etcd freezes for longer than the leases; the workers register again",
			load:   usual,
			script: breakage{"etcd", underLoad, pause, unpause, absent, nil}.run,
		},
		{
			name: "observed", with: "observe", slowest: 10 * time.Second,
			shows:  "nothing breaks; Prometheus sees the gateway, the workers, the alerts and the traces of requests",
			load:   usual,
			script: observed,
		},
	}
}

// Actions of several scenarios on a service.
var kill, start = by("kill", "-s", "KILL"), by("start")

func underLoad(_ workerView, streams int) bool { return streams > 2 }

// momentLimit bounds the wait for the moment to break something.
const momentLimit = 20 * time.Second

// busy waits until a service is in the state in which the scenario breaks it, and returns how many requests are on it:
// for a server, all streams.
func busy(ctx context.Context, f *fleet, l *load, service string, enough func(w workerView, streams int) bool) (hit int, err error) {
	err = f.until(ctx, momentLimit, "there is work on "+service, func(ctx context.Context) error {
		all, err := f.workers(ctx)
		if err != nil {
			return err
		}
		w, worker := all[service]
		_, streams := l.answered()
		if !enough(w, streams) {
			return fmt.Errorf("%+v, %d streams open", w, streams)
		}
		if hit = streams; worker {
			hit = w.Requests
		}
		return nil
	})
	return hit, err
}

// more waits until the load has had n more answers.
func more(ctx context.Context, f *fleet, l *load, n int) error {
	before, _ := l.answered()
	return f.until(ctx, momentLimit, "requests are still answered", func(context.Context) error {
		if now, _ := l.answered(); now < before+n {
			return fmt.Errorf("%d of %d answers", now-before, n)
		}
		return nil
	})
}

// serving waits until the worker gets requests and its KV events arrive.
func serving(ctx context.Context, f *fleet, id string) error {
	var seq uint64
	seen := false
	return f.until(ctx, healLimit, id+" serves again", func(ctx context.Context) error {
		all, err := f.workers(ctx)
		if err != nil {
			return err
		}
		w, ok := all[id]
		switch {
		case !ok:
			return errors.New("not registered")
		case w.events == nil || w.events.State != "live":
			return fmt.Errorf("its KV events are not followed: %+v", w.events)
		case !seen:
			seq, seen = w.events.Seq, true
		case w.events.Seq < seq: // it began again
			seq = w.events.Seq
		case w.events.Seq == seq:
			return fmt.Errorf("no KV event since number %d, circuit %s, %d requests booked", seq, w.Circuit, w.Requests)
		case w.Requests > 0:
			return nil
		}
		return fmt.Errorf("no request is given to it: state %s, circuit %s", w.State, w.Circuit)
	})
}

// breakage is one service broken at its moment, and mended.
type breakage struct {
	service       string
	moment        func(w workerView, streams int) bool
	breaks, mends action
	lasts         time.Duration // the least time between the two
	// holds is what must be true at the end of that time, if anything.
	holds func(ctx context.Context, f *fleet) error
}

// run breaks the service, checks that the load continues, mends it, and checks that it serves again; after a server,
// every worker.
func (b breakage) run(ctx context.Context, f *fleet, l *load) (int, error) {
	hit, err := busy(ctx, f, l, b.service, b.moment)
	if err != nil {
		return hit, err
	}
	if err := b.breaks(ctx, f, b.service); err != nil {
		return hit, err
	}
	over := time.After(b.lasts)
	err = more(ctx, f, l, 3*l.cfg.clients)
	select {
	case <-over:
	case <-ctx.Done():
		return hit, context.Cause(ctx)
	}
	if err == nil && b.holds != nil {
		err = b.holds(ctx, f)
	}
	if err := errors.Join(err, b.mends(ctx, f, b.service)); err != nil {
		return hit, err
	}
	if slices.Contains(workerIDs, b.service) {
		return hit, serving(ctx, f, b.service)
	}
	return hit, allServing(ctx, f)
}

// allServing waits until every worker serves.
func allServing(ctx context.Context, f *fleet) error {
	for _, id := range workerIDs {
		if err := serving(ctx, f, id); err != nil {
			return err
		}
	}
	return nil
}

// rolling restarts every worker after a drain that moves its streams, and waits until it serves again before the next.
func rolling(ctx context.Context, f *fleet, l *load) (hit int, err error) {
	for _, id := range workerIDs {
		n, err := busy(ctx, f, l, id, func(w workerView, streams int) bool { return w.Requests > 0 && streams > 2 })
		hit += n
		if err != nil {
			return hit, err
		}
		if err := f.order(ctx, "drain", id, "--move"); err != nil {
			return hit, err
		}
		if err := f.act(ctx, id, "restart"); err != nil {
			return hit, err
		}
		if err := f.order(ctx, "uncordon", id); err != nil {
			return hit, err
		}
		if err := serving(ctx, f, id); err != nil {
			return hit, err
		}
	}
	return hit, nil
}
