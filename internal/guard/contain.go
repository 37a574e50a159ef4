package guard

import (
	"context"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"
)

// panics counts them by handler, for the process. Those named here are shown before the first.
var (
	mu     sync.Mutex
	panics = map[string]uint64{
		"nats": 0, "stream": 0, "zmq": 0, "kv_events": 0, "kv_snapshot": 0, "replica": 0, "probe": 0, "etcd": 0, "kubernetes": 0,
		"workers_file": 0, "kept": 0, "remote_index": 0,
	}
	lines = LogLimiter{Burst: 3, Window: time.Minute}
)

// Panics is how often each handler has panicked.
func Panics() map[string]uint64 {
	mu.Lock()
	defer mu.Unlock()
	all := make(map[string]uint64, len(panics))
	for handler, n := range panics {
		all[handler] = n
	}
	return all
}

// Do calls f, recovers its panic, and reports whether it returned. f releases what it holds by defer. Handler names are
// a fixed set.
func Do(log *slog.Logger, handler string, f func()) (returned bool) {
	defer func() {
		if returned {
			return
		}
		fault := recover()
		if fault == nil {
			return // runtime.Goexit, as tests end
		}
		mu.Lock()
		panics[handler]++
		mu.Unlock()
		if suppressed, ok := lines.Allow(handler, time.Now()); ok {
			log.Error("panic in a handler; what it handled was dropped", "handler", handler, "panic", fault,
				"suppressed", suppressed, "stack", string(debug.Stack()))
		}
	}()
	f()
	return true
}

// again is how long the next run of a loop waits that has panicked.
var again = Backoff{Min: 100 * time.Millisecond, Max: time.Minute}

// Run calls f, which ends with ctx, and restarts it with backoff if it panics. It returns the result of f.
func Run(ctx context.Context, log *slog.Logger, handler string, f func(context.Context) error) (err error) {
	for failures := 0; ; failures++ {
		if Do(log, handler, func() { err = f(ctx) }) {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(again.Delay(failures, nil)):
		}
	}
}
