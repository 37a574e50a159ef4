package discovery

import (
	"context"
	"slices"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// record is the registrar of a worker whose record is put and deleted by hand, as where etcd grants and ends leases.
func (s *site) record(c *clientv3.Client, id string) *Registrar {
	s.t.Helper()
	r, err := NewRegistrar(c, testWorker(id), "", 0, quiet)
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := c.Put(s.t.Context(), r.key, r.value); err != nil {
		s.t.Fatal(err)
	}
	return r
}

// TestRemovalsAfterAnOutage: a worker whose lease ends right after etcd was away stays for its grace; later it goes after a moment.
func TestRemovalsAfterAnOutage(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start("")
	direct := s.client(s.etcd.URL())
	w := s.record(direct, "w")
	const grace = 2 * time.Second
	known := s.watchWith(grace, 100*time.Millisecond)
	within(t, 10*time.Second, "there", func() bool { return known.knows("w") })
	s.gate.shut()
	_, before := known.reported()
	over := time.Now().Add(time.Second)
	within(t, 10*time.Second, "a question has gone unanswered", func() bool { return time.Now().After(over) })
	s.gate.open(s.etcd.URL())
	within(t, 10*time.Second, "listed again", func() bool { _, resyncs := known.reported(); return resyncs > before })
	calm := time.Now().Add(grace)
	if _, err := direct.Delete(t.Context(), w.key); err != nil {
		t.Fatal(err)
	}
	within(t, 10*time.Second, "the removal is seen", func() bool { _, resyncs := known.reported(); return resyncs > before+1 })
	if !known.knows("w") {
		t.Error("gone, without its grace")
	}
	if _, err := direct.Put(t.Context(), w.key, w.value); err != nil {
		t.Fatal(err)
	}
	within(t, 10*time.Second, "the grace is over", func() bool { return time.Now().After(calm) })
	if removed, _ := known.reported(); len(removed) > 0 || !known.knows("w") {
		t.Errorf("removed %v, although it came back", removed)
	}
	if _, err := direct.Delete(t.Context(), w.key); err != nil {
		t.Fatal(err)
	}
	within(t, 10*time.Second, "gone", func() bool { return !known.knows("w") })
}

// TestLeasesThatEndTogether: a worker whose lease was ended, by an etcd that stood still for longer, say, stays for a moment, in which it
// registers again as the process that it is; one that comes back too late goes, and one that deregisters goes at once.
func TestLeasesThatEndTogether(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start("")
	direct := s.client(s.etcd.URL())
	known := s.watchWith(time.Minute, time.Minute)
	back, stop := s.register(testWorker("back"))
	gone := s.record(direct, "gone")
	within(t, 10*time.Second, "both there", func() bool { return known.knows("back") && known.knows("gone") })
	_, before := known.reported()
	if _, err := direct.Revoke(t.Context(), back.lease); err != nil {
		t.Fatal(err)
	}
	if _, err := direct.Delete(t.Context(), gone.key); err != nil {
		t.Fatal(err)
	}
	within(t, 10*time.Second, "their ends are seen", func() bool { _, resyncs := known.reported(); return resyncs > before })
	if removed, _ := known.reported(); len(removed) > 0 || !known.knows("back") {
		t.Errorf("removed %v", removed)
	}
	within(t, 10*time.Second, "gone after a moment", func() bool { return !known.knows("gone") })
	if !known.knows("back") || known.lastGrace() > probation {
		t.Errorf("one that registered again is gone, or stays for %v", known.lastGrace())
	}
	if err := back.Deregister(t.Context()); err != nil {
		t.Fatal(err)
	}
	within(t, 10*time.Second, "deregistered", func() bool { return !known.knows("back") })
	if removed, _ := known.reported(); !slices.Equal(removed, []string{"back"}) {
		t.Errorf("removed %v at once", removed)
	}
	stop()
}

// TestCutOffLongerThanLeases: a watcher with its own pace notices a silent link before etcd could end the leases.
func TestCutOffLongerThanLeases(t *testing.T) {
	for _, ttl := range []time.Duration{2 * time.Second, 3 * time.Second, 10 * time.Second, time.Hour} {
		w := NewWatcher(nil, nil, WatcherConfig{Grace: ttl}, quiet)
		if notices := w.probeEvery + w.probeLimit; notices >= ttl*2/3 || notices > 8*time.Second {
			t.Errorf("TTL %v: a cut is noticed after %v", ttl, notices)
		}
	}
}

// TestDeregisterWithoutEtcd: a worker that ends does not wait for an etcd that has gone.
func TestDeregisterWithoutEtcd(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start("")
	r, stop := s.registerFor(testWorker("w"), time.Minute)
	defer stop()
	within(t, 10*time.Second, "registered", r.Held)
	s.gate.shut()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := r.Deregister(ctx); err == nil || ctx.Err() != nil {
		t.Errorf("%v, and %v", err, ctx.Err())
	}
}
