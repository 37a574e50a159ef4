package discovery

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// reportedAfter waits until all workers have been reported once more than before.
func (r *recorder) reportedAfter(before int) {
	r.t.Helper()
	within(r.t, "all are reported again", func() bool { _, resyncs := r.reported(); return resyncs > before })
}

// TestRemovalsAfterAnOutage: a worker whose lease ends right after etcd was away stays for its grace, not for a moment.
func TestRemovalsAfterAnOutage(t *testing.T) {
	s := started(t)
	s.patience = brief
	direct := s.direct()
	w := s.record(direct, testWorker("w"))
	known := s.watchWith(time.Minute, 100*time.Millisecond)
	known.comes("w")
	s.gate.shut()
	_, before := known.reported()
	within(t, "a question has gone unanswered", func() bool { return s.logs.count("workers cannot be watched") > 0 })
	s.gate.open(s.etcd.URL())
	known.reportedAfter(before)
	w.forget(t)
	known.reportedAfter(before + 1)
	assert.Equal(t, time.Minute, known.lastGrace())
	s.record(direct, testWorker("w"))
	s.record(direct, testWorker("marker"))
	known.comes("marker")
	removed, _ := known.reported()
	assert.True(t, len(removed) == 0 && known.knows("w"), "removed %v, although it came back", removed)
}

// TestLeasesThatEndTogether: a worker whose lease was ended, by an etcd that stood still for longer, say, stays for a moment, in which it
// registers again as the process that it is; one that comes back too late goes, and one that deregisters goes at once.
func TestLeasesThatEndTogether(t *testing.T) {
	s := started(t)
	direct := s.direct()
	known := s.watchWith(time.Minute, time.Minute)
	back, stop := s.register(testWorker("back"))
	gone := s.record(direct, testWorker("gone"))
	known.comes("back")
	known.comes("gone")
	_, before := known.reported()
	_, err := direct.Revoke(t.Context(), back.lease)
	require.NoError(t, err)
	gone.forget(t)
	known.reportedAfter(before)
	removed, _ := known.reported()
	assert.True(t, len(removed) == 0 && known.knows("back"), "removed %v", removed)
	known.goes("gone")
	assert.True(t, known.knows("back") && known.lastGrace() <= probation,
		"one that registered again is gone, or stays for %v", known.lastGrace())
	require.NoError(t, back.Deregister(t.Context()))
	known.goes("back")
	removed, _ = known.reported()
	assert.Equal(t, []string{"back"}, removed, "removed at once")
	stop()
}

// TestCutOffLongerThanLeases: a watcher with its own pace notices a silent link before etcd could end the leases.
func TestCutOffLongerThanLeases(t *testing.T) {
	for _, ttl := range []time.Duration{2 * time.Second, 3 * time.Second, 10 * time.Second, time.Hour} {
		w := NewWatcher(nil, nil, WatcherConfig{Grace: ttl}, quiet)
		notices := w.probeEvery + w.probeLimit
		assert.True(t, notices < ttl*2/3 && notices <= 8*time.Second, "TTL %v: a cut is noticed after %v", ttl, notices)
	}
}

// TestDeregisterWithoutEtcd: a worker that ends does not wait for an etcd that has gone.
func TestDeregisterWithoutEtcd(t *testing.T) {
	s := started(t)
	s.patience = brief
	r, stop := s.registerFor(testWorker("w"), time.Minute)
	defer stop()
	within(t, "registered", r.Held)
	s.gate.shut()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err := r.Deregister(ctx)
	assert.True(t, err != nil && ctx.Err() == nil, "%v, and %v", err, ctx.Err())
}
