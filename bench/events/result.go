package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/lab/replay"
)

// result is what a replay has shown.
type result struct {
	Trace     string
	Requests  int
	Span      time.Duration // of the trace
	Speedup   float64
	Block     int // tokens
	Cache     int // blocks an engine
	Seed      uint64
	Took      time.Duration // to send the trace
	Behind    time.Duration // at most, behind the clock
	Settled   time.Duration // from the end of the trace until all was exact
	Outages   int           // of the NATS server
	NATS, ZMQ half
	// Predicted is how many engines over ZMQ could not be known at the end, and how they were repaired.
	Predicted, RepairedByRestart, RepairedByClearing int
}

// half is one transport's share.
type half struct {
	Engines  int
	Events   int // Stored, Removed and Cleared
	Blocks   int // stored and removed
	Messages uint64
	Restarts int

	// What was done to messages, requests and connections.
	Dropped, Doubled, Reordered, Delayed, Stragglers uint64
	Requests, Cuts, Downs, Stalls, Failed, HighWater uint64

	Gaps, Orphans uint64
	Counted       map[string]float64 // what the subscriber counted, by metric and label
	Repairs       []time.Duration    // each time that an engine's view was behind
	Marked        int                // times that one became predicted
	Stale         staleness
	Final         difference
}

func (r *result) init(cfg config) {
	*r = result{
		Trace: cfg.trace.Name, Requests: len(cfg.trace.Requests), Span: cfg.trace.Span(), Speedup: cfg.speedup,
		Block: cfg.stream.Block, Cache: cfg.stream.Cache / cfg.stream.Block, Seed: cfg.stream.Seed,
	}
	for i := range cfg.stream.Engines {
		r.half(i).Engines++
	}
}

// half is that of an engine.
func (r *result) half(i int) *half {
	if poolOf(i) == natsPool {
		return &r.NATS
	}
	return &r.ZMQ
}

func (h *half) count(e *engine.Event) {
	h.Events++
	h.Blocks += len(e.Hashes)
}

// sum gathers what everybody has counted.
func (s *session) sum() {
	for pool, h := range map[string]*half{natsPool: &s.result.NATS, zmqPool: &s.result.ZMQ} {
		c := s.counts[pool]
		h.Dropped, h.Doubled, h.Reordered = c.dropped.Load(), c.doubled.Load(), c.reordered.Load()
		h.Delayed, h.Stragglers, h.Requests = c.delayed.Load(), c.stragglers.Load(), c.requests.Load()
		h.Cuts, h.Downs, h.Stalls = c.cuts.Load(), c.down.Load(), c.stalls.Load()
		h.Counted = map[string]float64{}
	}
	for _, l := range s.links {
		switch l := l.(type) {
		case *overNATS:
			st := l.stats()
			s.result.NATS.Messages += st.Messages
			s.result.NATS.Failed += st.Failed
		case *overZMQ:
			s.result.ZMQ.Messages += l.sent + l.pub.Next()
			s.result.ZMQ.HighWater += l.dropped + l.pub.Dropped()
		}
	}
	for i := range s.links {
		st := s.status(i)
		s.result.half(i).Gaps += st.Gaps
		s.result.half(i).Orphans += st.Orphans
	}
	s.states.mu.Lock()
	s.result.NATS.Repairs, s.result.ZMQ.Repairs = s.states.took["nats"], s.states.took["zmq"]
	s.result.NATS.Marked, s.result.ZMQ.Marked = s.states.marks["nats"], s.states.marks["zmq"]
	s.states.mu.Unlock()
	s.gather()
}

// gathered are the metrics that the report shows, by their label next to the pool.
var gathered = map[string]string{
	"kv_events_snapshots_total": "result", "kv_events_messages_total": "verdict", "kv_events_dropped_total": "",
}

func (s *session) gather() {
	families, err := s.reg.Gather()
	if err != nil {
		return // a collector that fails leaves its figures out
	}
	for _, f := range families {
		label, wanted := gathered[f.GetName()]
		if !wanted {
			continue
		}
		for _, m := range f.GetMetric() {
			h, key := &s.result.NATS, strings.TrimSuffix(strings.TrimPrefix(f.GetName(), "kv_events_"), "_total")
			if labelOf(m, "pool") == zmqPool {
				h = &s.result.ZMQ
			}
			if label != "" {
				key += " " + labelOf(m, label)
			}
			if v := m.GetCounter().GetValue(); v > 0 {
				h.Counted[key] += v
			}
		}
	}
}

func labelOf(m *dto.Metric, name string) string {
	for _, l := range m.GetLabel() {
		if l.GetName() == name {
			return l.GetValue()
		}
	}
	return ""
}

// write tells the result as text that is a table in Markdown too.
func (r *result) write(out io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d requests of %v at %g times its speed in %v, block %d, caches of %d blocks, seed %d\n",
		r.Trace, r.Requests, r.Span.Round(time.Second), r.Speedup, r.Took.Round(time.Millisecond), r.Block, r.Cache, r.Seed)
	fmt.Fprintf(&b, "the sender was behind its clock by %v at most; NATS was killed and started again %d times\n\n", r.Behind.Round(time.Millisecond), r.Outages)
	b.WriteString("| | NATS | ZeroMQ |\n|---|---:|---:|\n")
	row := func(what string, of func(h *half) string) {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", what, of(&r.NATS), of(&r.ZMQ))
	}
	count := func(what string, of func(h *half) uint64) {
		row(what, func(h *half) string { return fmt.Sprint(of(h)) })
	}
	count("engines", func(h *half) uint64 { return uint64(h.Engines) })
	count("blocks stored and removed", func(h *half) uint64 { return uint64(h.Blocks) })
	row("of them a second", func(h *half) string { return fmt.Sprintf("%.0f", float64(h.Blocks)/r.Took.Seconds()) })
	count("events", func(h *half) uint64 { return uint64(h.Events) })
	count("messages", func(h *half) uint64 { return h.Messages })
	count("engines restarted", func(h *half) uint64 { return uint64(h.Restarts) })
	count("injected: messages lost", func(h *half) uint64 { return h.Dropped })
	count("messages doubled", func(h *half) uint64 { return h.Doubled })
	count("messages overtaken", func(h *half) uint64 { return h.Reordered })
	count("messages delayed", func(h *half) uint64 { return h.Delayed })
	count("messages of ended processes", func(h *half) uint64 { return h.Stragglers })
	count("lost while NATS was away", func(h *half) uint64 { return h.Failed })
	count("dropped by the engine at its high-water mark", func(h *half) uint64 { return h.HighWater })
	count("snapshots unanswered, replays cut", func(h *half) uint64 { return h.Requests })
	count("connections cut", func(h *half) uint64 { return h.Cuts })
	count("links down during a restart", func(h *half) uint64 { return h.Downs })
	count("slow receivers", func(h *half) uint64 { return h.Stalls })
	count("seen: gaps", func(h *half) uint64 { return h.Gaps })
	count("views behind, then repaired", func(h *half) uint64 { return uint64(len(h.Repairs)) })
	row("after p50 / p99 / max", func(h *half) string {
		return fmt.Sprintf("%s / %s / %s", short(replay.NearestRank(h.Repairs, 0.5)), short(replay.NearestRank(h.Repairs, 0.99)), short(replay.NearestRank(h.Repairs, 1)))
	})
	count("times predicted", func(h *half) uint64 { return uint64(h.Marked) })
	r.counted(row)
	count("samples", func(h *half) uint64 { return uint64(h.Stale.Samples) })
	row("of them of predicted engines, not believed", func(h *half) string {
		return percent(float64(h.Stale.Unbelieved) / max(1, float64(h.Stale.Samples)))
	})
	row("missing: mean / p99 of samples", func(h *half) string {
		return percent(mean(h.Stale.missing)) + " / " + percent(replay.NearestRank(h.Stale.missing, 0.99))
	})
	row("phantom: mean / p99 of samples", func(h *half) string {
		return percent(mean(h.Stale.phantom)) + " / " + percent(replay.NearestRank(h.Stale.phantom, 0.99))
	})
	row("age of the oldest message not applied: p50 / p99 / max", func(h *half) string {
		return fmt.Sprintf("%s / %s / %s", short(replay.NearestRank(h.Stale.ages, 0.5)), short(replay.NearestRank(h.Stale.ages, 0.99)), short(replay.NearestRank(h.Stale.ages, 1)))
	})
	count("at the end: blocks in caches", func(h *half) uint64 { return uint64(h.Final.True) })
	count("missing in the index", func(h *half) uint64 { return uint64(h.Final.Missing) })
	count("phantoms in the index", func(h *half) uint64 { return uint64(h.Final.Phantom) })
	fmt.Fprintf(&b, "\nexact %v after the last event but for %d engines over ZeroMQ that were predicted for good; of these\n"+
		"%d were restarted and %d cleared, and are exact\n", r.Settled.Round(time.Millisecond), r.Predicted, r.RepairedByRestart, r.RepairedByClearing)
	_, err := io.WriteString(out, b.String())
	return err
}

// counted shows the subscriber's own counters.
func (r *result) counted(row func(string, func(*half) string)) {
	keys := map[string]bool{}
	for _, h := range []*half{&r.NATS, &r.ZMQ} {
		for k := range h.Counted {
			keys[k] = true
		}
	}
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		row("counted: "+k, func(h *half) string { return fmt.Sprintf("%.0f", h.Counted[k]) })
	}
}

func percent(share float64) string { return fmt.Sprintf("%.3g %%", 100*share) }

func short(d time.Duration) string { return d.Round(100 * time.Microsecond).String() }
