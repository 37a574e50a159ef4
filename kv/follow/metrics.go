package follow

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/internal/metrics"
	"github.com/tandem-pd/tandem/kv/view"
	"github.com/tandem-pd/tandem/kv/wire"
)

// counters are a Subscriber's metrics; the registerer adds the prefix. Metrics per source come from its [SourceStatus].
type counters struct {
	applied   *prometheus.CounterVec // pool, event_type, status
	messages  *prometheus.CounterVec // pool, verdict
	snapshots *prometheus.CounterVec // pool, result
	repaired  *prometheus.CounterVec // pool, method
	skipped   *prometheus.CounterVec // pool, reason
	untracked prometheus.Counter
	dropped   prometheus.Counter
}

// newMetrics registers the counters and the metrics per source with reg, which may be nil.
func newMetrics(reg prometheus.Registerer, sources func() []SourceStatus) *counters {
	set := metrics.In(reg)
	scrape := set.Snapshot()
	state := scrape.Gauge("kv_events_source_state",
		"State of a worker's view, by pool, worker and rank: 1 for the state it is in, 0 for the others.", "pool", "worker", "rank", "state")
	gaps := scrape.Counter("kv_events_source_gaps_total",
		"Gaps found in a worker's messages since it is followed, by pool, worker and rank.", "pool", "worker", "rank")
	scrape.Read(func() {
		for _, s := range sources() {
			of := []string{s.Source.Pool, s.Source.Worker, strconv.Itoa(s.Source.Rank)}
			state.OneOf(stateNames, s.State.String(), of...)
			gaps.Set(float64(s.Gaps), of...)
		}
	})
	skipped := set.Counter("kv_events_skipped_total", "Events, fields, blocks and messages not applied.", "pool", "reason")
	return &counters{
		applied: set.Counter("component_kv_cache_events_applied_total",
			"KV events that reached the index, by pool, event_type and status: ok, parent_block_not_found or invalid_block.",
			"pool", "event_type", "status"),
		messages:  set.Counter("kv_events_messages_total", "Messages by what their number showed.", "pool", "verdict"),
		snapshots: set.Counter("kv_events_snapshots_total", "Requests made to repair a gap, by pool and result.", "pool", "result"),
		repaired:  set.Counter("kv_events_repaired_total", "Gaps repaired, by method.", "pool", "method"),
		skipped:   skipped,
		untracked: skipped.WithLabelValues("", "untracked"),
		dropped:   skipped.WithLabelValues("", "dropped"),
	}
}

// The outcomes of an event, named as in Dynamo's indexer.
const (
	eventOK      = iota
	eventOrphan  // its parent is unknown
	eventInvalid // some of its blocks could not be stored
	eventStatuses
)

var (
	eventKinds       = [...]wire.Kind{wire.Stored, wire.Removed, wire.Cleared}
	eventStatusNames = [eventStatuses]string{"ok", "parent_block_not_found", "invalid_block"}
)

// Reasons to skip, and results of a repair request, as metric labels.
var (
	skipReasons   = []string{"orphan", "unhashable", "block_size", "ignored", "unreadable", "malformed", "field", "unframed"}
	repairResults = []string{"restored", "outdated", "failed", "unanswered", "ring", "recalled", "replayed", "too_short"}
)

// poolCounters are the counters of one pool. All exist from the start, so a scrape shows zeros.
type poolCounters struct {
	name     string
	of       *counters
	verdicts [newEpoch + 1]prometheus.Counter
	applied  [len(eventKinds)][eventStatuses]prometheus.Counter // by place in eventKinds
	methods  [len(Methods)]prometheus.Counter
}

// skipped counts skipped items by skipReasons.
func (c *poolCounters) skipped(reason string, n uint64) {
	if n > 0 {
		c.of.skipped.WithLabelValues(c.name, reason).Add(float64(n))
	}
}

// asked counts a repair request by repairResults.
func (c *poolCounters) asked(result string) { c.of.snapshots.WithLabelValues(c.name, result).Inc() }

func (m *counters) pool(name string) *poolCounters {
	c := &poolCounters{name: name, of: m}
	for _, reason := range skipReasons {
		m.skipped.WithLabelValues(name, reason)
	}
	for _, result := range repairResults {
		m.snapshots.WithLabelValues(name, result)
	}
	for v := range c.verdicts {
		c.verdicts[v] = m.messages.WithLabelValues(name, verdict(v).String())
	}
	for w := range c.methods {
		c.methods[w] = m.repaired.WithLabelValues(name, Method(w).String())
	}
	for i, kind := range eventKinds {
		for status, word := range eventStatusNames {
			if kind == wire.Stored || status == eventOK {
				c.applied[i][status] = m.applied.WithLabelValues(name, kind.String(), word)
			}
		}
	}
	return c
}

// event counts an event of a batch by what it changed in a view's tally.
func (c *poolCounters) event(kind wire.Kind, before, after view.Tally) {
	status := eventOK
	if kind == wire.Stored {
		status = statusOf(before, after)
	}
	c.applied[kind-wire.Stored][status].Inc()
}

// statusOf returns the outcome of a Stored event.
func statusOf(before, after view.Tally) int {
	switch {
	case after.Orphans > before.Orphans:
		return eventOrphan
	case after.BadSize > before.BadSize, after.Ignored > before.Ignored, after.Unhashable > before.Unhashable:
		return eventInvalid
	}
	return eventOK
}

// count adds the growth of a tally.
func (c *poolCounters) count(before, after view.Tally) {
	c.skipped("orphan", after.Orphans-before.Orphans)
	c.skipped("unhashable", after.Unhashable-before.Unhashable)
	c.skipped("block_size", after.BadSize-before.BadSize)
	c.skipped("ignored", after.Ignored-before.Ignored)
}
