package feed

import (
	"context"
	"time"

	"github.com/tandem-pd/tandem/kv/follow"
	"github.com/tandem-pd/tandem/kv/wire"
)

const (
	// silentAfter is how long a worker may compute prompts before its first KV event. Prompts shorter than a block
	// cause none.
	silentAfter = 30 * time.Second
	// lookEvery is the interval of the check.
	lookEvery = 5 * time.Second
)

// silent is a source without events although its worker computes prompts.
type silent struct {
	since  time.Time
	logged bool
}

// runSilent checks for silent sources until ctx ends.
func (f *Feed) runSilent(ctx context.Context) {
	if f.computed == nil {
		return
	}
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-look.C:
			f.look(now)
		}
	}
}

// look logs each silent source once. All ranks of its worker must be silent: a single rank may have computed nothing.
func (f *Feed) look(now time.Time) {
	f.mu.Lock()
	defer f.mu.Unlock()
	sources := f.subscriber.Sources()
	sent := map[string]bool{}
	for _, s := range sources {
		sent[s.Source.Worker] = sent[s.Source.Worker] || !s.LastSeen.IsZero()
	}
	was := f.silent
	f.silent = map[wire.Source]silent{}
	for _, s := range sources {
		latest := f.computed(s.Source.Worker)
		if sent[s.Source.Worker] || s.State != follow.Waiting && s.State != follow.Predicted || !latest.After(f.tracked[s.Source.Worker]) {
			continue
		}
		q, known := was[s.Source]
		if !known {
			q.since = latest
		}
		if now.Sub(q.since) >= silentAfter && !q.logged {
			q.logged = true
			f.log.Warn("worker computes prompts and publishes no KV events; its cache is predicted", "source", s.Source, "transport", s.Transport,
				"endpoint", f.followed[s.Source.Worker].zmq.Endpoint, "likely_cause", SilentCause)
		}
		f.silent[s.Source] = q
	}
}

// SilentCause is the usual cause of a silent source (ZmqEventPublisher in vLLM 0.32's distributed/kv_events.py).
const SilentCause = "vLLM binds tcp://*:PORT only and connects to an endpoint that names an address; or another port, topic or rank"

// Silent reports whether a source has no events although its worker has computed prompts for a while.
func (f *Feed) Silent(source wire.Source) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.silent[source].logged
}
