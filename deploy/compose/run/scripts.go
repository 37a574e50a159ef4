package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// healLimit bounds how long a fleet may take to be whole again once what broke
// it is over: a lease, and some rounds of reconnecting.
const healLimit = 30 * time.Second

// usual is the load of most scenarios: half a second of generation behind a
// short prompt, so that at any moment most streams are in their middle.
var usual = loadConfig{clients: 10, promptWords: 150, tokens: 50}

// short answers, for workers that stop responding: one that is not streamed may take
// five times as long as its tokens should before its worker is given up.
var short = loadConfig{clients: 10, promptWords: 150, tokens: 30}

// scenarios are all there are, in the order that they run in.
func scenarios() []scenario {
	return []scenario{
		{
			name: "prefill-killed", overlay: true, slowest: 10 * time.Second,
			shows:  "a prefill worker is killed with prompts in it: every request completes",
			load:   loadConfig{clients: 10, promptWords: 300, tokens: 20},
			script: killed("prefill-2", func(w workerView, _ int) bool { return w.PrefillTokens > 0 }),
		},
		{
			name: "decode-killed", mayBreakOff: true, slowest: 10 * time.Second,
			shows:  "a decode worker is killed in mid-stream: a request completes, or its stream ends in one typed error",
			load:   usual,
			script: killed("decode-2", func(w workerView, streams int) bool { return w.Requests > 1 && streams > 2 }),
		},
		{
			name: "decode-paused", overlay: true, mayBreakOff: true, slowest: 20 * time.Second,
			shows:  "a decode worker freezes in mid-stream: each request completes or ends with one typed error, in time; after it is woken the worker serves again",
			load:   short,
			script: silenced("decode-2", (*fleet).pause, (*fleet).unpause),
		},
		{
			name: "worker-cut", overlay: true, mayBreakOff: true, slowest: 20 * time.Second,
			shows:  "a decode worker is cut off the network for longer than its lease: as when it stands still; it registers and serves again once it is back",
			load:   short,
			script: silenced("decode-2", (*fleet).cut, (*fleet).join),
		},
		{
			name: "nats-restarted", slowest: 10 * time.Second,
			shows:  "NATS is restarted: no request is lost, and KV events are followed again afterwards",
			load:   usual,
			script: restarted("nats"),
		},
		{
			name: "etcd-restarted", slowest: 10 * time.Second,
			shows:  "etcd is restarted: no request is lost, and the workers stay registered",
			load:   usual,
			script: restarted("etcd"),
		},
	}
}

// momentLimit bounds the wait for the moment to break something.
const momentLimit = 20 * time.Second

// busy waits until the worker is in the state that the scenario wants to break
// it in, and says how many requests are on it.
func busy(ctx context.Context, f *fleet, l *load, id string, enough func(w workerView, streams int) bool) (hit int, err error) {
	err = f.until(ctx, momentLimit, "there is work on "+id, func(ctx context.Context) error {
		all, err := f.workers(ctx)
		if err != nil {
			return err
		}
		_, streams := l.answered()
		if w := all[id]; enough(w, streams) {
			hit = w.Requests
			return nil
		}
		return fmt.Errorf("%+v, %d streams open", all[id], streams)
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

// serving waits until the worker is given requests, and its KV events come.
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

// killed kills a worker at its moment, sees the load go on without it, and
// starts it again.
func killed(id string, enough func(w workerView, streams int) bool) func(context.Context, *fleet, *load) (int, error) {
	return func(ctx context.Context, f *fleet, l *load) (int, error) {
		hit, err := busy(ctx, f, l, id, enough)
		if err != nil {
			return hit, err
		}
		if err := f.act(ctx, id, "kill", "-s", "KILL"); err != nil {
			return hit, err
		}
		if err := more(ctx, f, l, 2*l.cfg.clients); err != nil {
			return hit, err
		}
		if err := f.act(ctx, id, "start"); err != nil {
			return hit, err
		}
		return hit, serving(ctx, f, id)
	}
}

// quiet is how long a worker is silent: longer than the overlays' lease, and than
// the limit on an answer that is not streamed, about 7 s.
const quiet = 10 * time.Second

// silenced makes a worker stop responding in mid-stream, its connections open,
// and lets it come back after a while.
func silenced(id string, silence, wake func(*fleet, context.Context, string) error) func(context.Context, *fleet, *load) (int, error) {
	return func(ctx context.Context, f *fleet, l *load) (int, error) {
		hit, err := busy(ctx, f, l, id, func(w workerView, streams int) bool { return w.Requests > 1 && streams > 2 })
		if err != nil {
			return hit, err
		}
		if err := silence(f, ctx, id); err != nil {
			return hit, err
		}
		over := time.After(quiet)
		err = more(ctx, f, l, 3*l.cfg.clients)
		select {
		case <-over:
		case <-ctx.Done():
			return hit, context.Cause(ctx)
		}
		if err := errors.Join(err, wake(f, ctx, id)); err != nil {
			return hit, err
		}
		return hit, serving(ctx, f, id)
	}
}

// restarted restarts a server that no request passes through, sees the load go
// on meanwhile, and every worker's events come afterwards.
func restarted(service string) func(context.Context, *fleet, *load) (int, error) {
	return func(ctx context.Context, f *fleet, l *load) (int, error) {
		_, streams := l.answered()
		if err := f.act(ctx, service, "restart"); err != nil {
			return streams, err
		}
		if err := more(ctx, f, l, 3*l.cfg.clients); err != nil {
			return streams, err
		}
		for _, id := range workerIDs {
			if err := serving(ctx, f, id); err != nil {
				return streams, err
			}
		}
		return streams, nil
	}
}
