package events

import "github.com/prometheus/client_golang/prometheus"

// metrics are a Subscriber's counters. Those of one source are in [SourceStatus].
type metrics struct {
	blocks    *prometheus.CounterVec // pool, kind
	messages  *prometheus.CounterVec // pool, verdict
	snapshots *prometheus.CounterVec // pool, result
	skipped   *prometheus.CounterVec // pool, what
	untracked prometheus.Counter
	dropped   prometheus.Counter
}

// newMetrics registers the counters with reg, which may be nil.
func newMetrics(reg prometheus.Registerer) *metrics {
	vec := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "tandem_kv_events_" + name, Help: help}, labels)
	}
	one := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "tandem_kv_events_" + name, Help: help})
	}
	m := &metrics{
		blocks:    vec("blocks_total", "KV blocks that workers reported, as applied to the index.", "pool", "kind"),
		messages:  vec("messages_total", "KV event messages received, by what their number said.", "pool", "verdict"),
		snapshots: vec("snapshots_total", "Snapshots asked for to mend a gap, by result.", "pool", "result"),
		skipped: vec("skipped_total", "KV events, blocks and messages not applied, by reason.",
			"pool", "reason"),
		untracked: one("untracked_total", "Messages of sources that are not tracked, or not numbered."),
		dropped:   one("dropped_total", "Messages dropped because this process was slower than they came."),
	}
	if reg != nil {
		reg.MustRegister(m.blocks, m.messages, m.snapshots, m.skipped, m.untracked, m.dropped)
	}
	return m
}

// poolCounters are the counters of one pool, looked up once.
type poolCounters struct {
	verdicts [NewEpoch + 1]prometheus.Counter

	stored, removed                        prometheus.Counter
	orphans, unhashable, badSize, ignored  prometheus.Counter // blocks
	unreadable, malformed                  prometheus.Counter // events, messages
	restored, outdated, failed, unanswered prometheus.Counter // snapshots
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
		restored:   m.snapshots.WithLabelValues(name, "restored"),
		outdated:   m.snapshots.WithLabelValues(name, "outdated"),
		failed:     m.snapshots.WithLabelValues(name, "failed"),
		unanswered: m.snapshots.WithLabelValues(name, "unanswered"),
	}
	for v := range c.verdicts {
		c.verdicts[v] = m.messages.WithLabelValues(name, Verdict(v).String())
	}
	return c
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
