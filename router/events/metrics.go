package events

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics are a Subscriber's counters, their names without the prefix, which
// is the registerer's. Those of one source are in [SourceStatus], which
// [sourceCollector] exports.
type metrics struct {
	applied   *prometheus.CounterVec // pool, event_type, status
	blocks    *prometheus.CounterVec // pool, kind
	messages  *prometheus.CounterVec // pool, verdict
	snapshots *prometheus.CounterVec // pool, result
	healed    *prometheus.CounterVec // pool, way
	skipped   *prometheus.CounterVec // pool, what
	untracked prometheus.Counter
	dropped   prometheus.Counter
}

// newMetrics registers the counters, and what sources returns, with reg, which
// may be nil.
func newMetrics(reg prometheus.Registerer, sources func() []SourceStatus) *metrics {
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	one := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	m := &metrics{
		applied: vec("component_kv_cache_events_applied", "KV cache events that reached the index, by what came of them.",
			"pool", "event_type", "status"),
		blocks:    vec("kv_events_blocks_total", "KV blocks that workers reported, as applied to the index.", "pool", "kind"),
		messages:  vec("kv_events_messages_total", "KV event messages received, by what their number said.", "pool", "verdict"),
		snapshots: vec("kv_events_snapshots_total", "Snapshots and replays asked for to mend a gap, by result.", "pool", "result"),
		healed:    vec("kv_events_healed_total", "How often what was missing of a worker's events was had, by way.", "pool", "way"),
		skipped:   vec("kv_events_skipped_total", "KV events, their fields, blocks and messages not applied, by reason.", "pool", "reason"),
		untracked: one("kv_events_untracked_total", "Messages of sources that are not tracked, or not numbered."),
		dropped:   one("kv_events_dropped_total", "Messages dropped because this process was slower than they came."),
	}
	if reg != nil {
		reg.MustRegister(m.applied, m.blocks, m.messages, m.snapshots, m.healed, m.skipped, m.untracked, m.dropped, sourceCollector(sources))
	}
	return m
}

// sourceCollector exports what is known of each source, at the scrape.
type sourceCollector func() []SourceStatus

var (
	sourceLabels = []string{"pool", "worker", "rank"}
	sourceState  = prometheus.NewDesc("kv_events_source_state",
		"How far a worker's view can be trusted: 1 for the state it is in, 0 for the others.",
		[]string{"pool", "worker", "rank", "state"}, nil)
	sourceGaps = prometheus.NewDesc("kv_events_source_gaps_total",
		"How often messages of a worker were found missing, since it is followed.", sourceLabels, nil)
	sourceBlocks = prometheus.NewDesc("kv_events_source_blocks",
		"The engine's KV blocks that a worker's view holds.", sourceLabels, nil)
)

// Describe implements prometheus.Collector.
func (sourceCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- sourceState
	ch <- sourceGaps
	ch <- sourceBlocks
}

// Collect implements prometheus.Collector.
func (c sourceCollector) Collect(ch chan<- prometheus.Metric) {
	for _, s := range c() {
		pool, worker, rank := s.Source.Pool, s.Source.Worker, strconv.Itoa(s.Source.Rank)
		for _, state := range states {
			in := 0.0
			if s.State == state {
				in = 1
			}
			ch <- prometheus.MustNewConstMetric(sourceState, prometheus.GaugeValue, in, pool, worker, rank, state.String())
		}
		ch <- prometheus.MustNewConstMetric(sourceGaps, prometheus.CounterValue, float64(s.Gaps), pool, worker, rank)
		ch <- prometheus.MustNewConstMetric(sourceBlocks, prometheus.GaugeValue, float64(s.Blocks), pool, worker, rank)
	}
}

// What came of one event. The words are those of Dynamo's indexer.
const (
	eventOK      = iota
	eventOrphan  // its parent is unknown
	eventInvalid // none or not all of its blocks could be taken in
	eventStatuses
)

var (
	eventKinds       = [...]Kind{Stored, Removed, Cleared}
	eventStatusNames = [eventStatuses]string{"ok", "parent_block_not_found", "invalid_block"}
)

// poolCounters are the counters of one pool, looked up once.
type poolCounters struct {
	verdicts [NewEpoch + 1]prometheus.Counter
	applied  [len(eventKinds)][eventStatuses]prometheus.Counter // by place in eventKinds

	stored, removed                        prometheus.Counter
	orphans, unhashable, badSize, ignored  prometheus.Counter // blocks
	unreadable, malformed                  prometheus.Counter // events, messages
	fields                                 prometheus.Counter // of events that were applied without them
	restored, outdated, failed, unanswered prometheus.Counter // snapshots
	ring, recalled                         prometheus.Counter // runs of messages
	replayed, tooShort                     prometheus.Counter // replays
	unframed                               prometheus.Counter // messages
	healed                                 [len(Ways)]prometheus.Counter
}

func (m *metrics) pool(name string) *poolCounters {
	c := &poolCounters{
		stored:     m.blocks.WithLabelValues(name, "stored"),
		removed:    m.blocks.WithLabelValues(name, "removed"),
		orphans:    m.skipped.WithLabelValues(name, "orphan"),
		unhashable: m.skipped.WithLabelValues(name, "unhashable"),
		badSize:    m.skipped.WithLabelValues(name, "block_size"),
		ignored:    m.skipped.WithLabelValues(name, "ignored"),
		unreadable: m.skipped.WithLabelValues(name, "unreadable"),
		malformed:  m.skipped.WithLabelValues(name, "malformed"),
		fields:     m.skipped.WithLabelValues(name, "field"),
		restored:   m.snapshots.WithLabelValues(name, "restored"),
		outdated:   m.snapshots.WithLabelValues(name, "outdated"),
		failed:     m.snapshots.WithLabelValues(name, "failed"),
		unanswered: m.snapshots.WithLabelValues(name, "unanswered"),
		ring:       m.snapshots.WithLabelValues(name, "ring"),
		recalled:   m.snapshots.WithLabelValues(name, "recalled"),
		replayed:   m.snapshots.WithLabelValues(name, "replayed"),
		tooShort:   m.snapshots.WithLabelValues(name, "too_short"),
		unframed:   m.skipped.WithLabelValues(name, "unframed"),
	}
	for v := range c.verdicts {
		c.verdicts[v] = m.messages.WithLabelValues(name, Verdict(v).String())
	}
	for w := range c.healed {
		c.healed[w] = m.healed.WithLabelValues(name, Way(w).String())
	}
	for i, kind := range eventKinds {
		for status, word := range eventStatusNames {
			if kind == Stored || status == eventOK {
				c.applied[i][status] = m.applied.WithLabelValues(name, kind.String(), word)
			}
		}
	}
	return c
}

// apply applies a batch to v and counts its events by what came of each.
func (c *poolCounters) apply(v *View, events []Event) {
	var counts [len(eventKinds)][eventStatuses]int
	for i := range events {
		before := v.tally
		v.Apply(events[i : i+1])
		switch events[i].Kind {
		case Stored:
			counts[0][statusOf(before, v.tally)]++
		case Removed:
			counts[1][eventOK]++
		case Cleared:
			counts[2][eventOK]++
		}
	}
	for kind := range counts {
		for status, n := range counts[kind] {
			if n > 0 {
				c.applied[kind][status].Add(float64(n))
			}
		}
	}
}

// statusOf says what came of one Stored event.
func statusOf(before, after Tally) int {
	switch {
	case after.Orphans > before.Orphans:
		return eventOrphan
	case after.BadSize > before.BadSize, after.Ignored > before.Ignored, after.Unhashable > before.Unhashable:
		return eventInvalid
	}
	return eventOK
}

// count adds what a tally grew by.
func (c *poolCounters) count(before, after Tally) {
	add := func(to prometheus.Counter, n uint64) {
		if n > 0 {
			to.Add(float64(n))
		}
	}
	add(c.stored, after.Stored-before.Stored)
	add(c.removed, after.Removed-before.Removed)
	add(c.orphans, after.Orphans-before.Orphans)
	add(c.unhashable, after.Unhashable-before.Unhashable)
	add(c.badSize, after.BadSize-before.BadSize)
	add(c.ignored, after.Ignored-before.Ignored)
}
