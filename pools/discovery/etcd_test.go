package discovery

import (
	"context"
	"errors"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/tandem-pd/tandem/pools"
)

func TestRegisterWatchDeregister(t *testing.T) {
	s := newSite(t)
	s.start("")
	early, _ := s.register(testWorker("early"))
	<-early.Registered()
	known := s.watch()
	within(t, 10*time.Second, "the worker there before", func() bool { return known.knows("early") })
	late, _ := s.register(testWorker("late"))
	within(t, 10*time.Second, "the worker that came after", func() bool { return known.knows("late") })
	if !late.Lodged() {
		t.Error("a watcher knows the record, and its worker says that none could")
	}
	m, _ := known.Lookup("late")
	if want := testWorker("late"); !m.Worker.Equal(&want) {
		t.Errorf("the record came as %+v", m.Worker)
	}

	began := time.Now()
	if err := late.Deregister(t.Context()); err != nil {
		t.Fatal(err)
	}
	if late.Lodged() {
		t.Error("the record is said to be there still")
	}
	within(t, 10*time.Second, "gone", func() bool { return !known.knows("late") })
	if took := time.Since(began); took > probation {
		t.Errorf("gone after %v, as if its lease had ended", took)
	}
	if err := late.Deregister(t.Context()); err != nil {
		t.Errorf("a second time: %v", err)
	}
	if !known.knows("early") {
		t.Error("the other is gone as well")
	}
}

func TestDeregisterBeforeRun(t *testing.T) {
	s := newSite(t)
	s.start("")
	c := s.client(s.gate.URL())
	r, err := NewRegistrar(c, testWorker("w"), "", 0, quiet)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Deregister(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	if r.Lodged() {
		t.Error("a record that was never put is said to be there")
	}
	got, err := c.Get(t.Context(), DefaultPrefix, clientv3.WithPrefix())
	if err != nil || got.Count != 0 {
		t.Errorf("%v, %v", got, err)
	}
}

func TestLeaseEndsAfterAnAbruptEnd(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start("")
	known := s.watch()
	_, kill := s.register(testWorker("w"))
	within(t, 10*time.Second, "there", func() bool { return known.knows("w") })
	kill()
	if !known.knows("w") {
		t.Error("gone at once, as if it had deregistered")
	}
	within(t, 10*time.Second, "gone with its lease", func() bool { return !known.knows("w") })
}

func TestSuccessorOutlivesDeregister(t *testing.T) {
	s := newSite(t)
	s.start("")
	known := s.watch()
	old, _ := s.register(testWorker("w"))
	<-old.Registered()
	next := testWorker("w")
	next.Incarnation = "next"
	s.register(next)
	isNext := func() bool { m, found := known.Lookup("w"); return found && m.Worker.Incarnation == "next" }
	within(t, 10*time.Second, "the successor", isNext)
	if err := old.Deregister(t.Context()); err != nil {
		t.Fatal(err)
	}
	marker, _ := s.register(testWorker("marker")) // whatever the above did has been reported when this is
	<-marker.Registered()
	within(t, 10*time.Second, "the marker", func() bool { return known.knows("marker") })
	if removed, _ := known.reported(); len(removed) > 0 || !isNext() {
		t.Errorf("removed %v", removed)
	}
}

func TestEtcdAbsentAtStart(t *testing.T) {
	s := newSite(t)
	known := s.watch()
	r, _ := s.register(testWorker("w"))
	gone, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	select {
	case <-r.Registered():
		t.Fatal("registered without an etcd")
	case <-gone.Done():
	}
	s.start("")
	within(t, 20*time.Second, "there", func() bool { return known.knows("w") })
}

// TestOutageLongerThanLease stops etcd until the lease's time is over, and starts it again with what it had, and with
// nothing. All the while the worker is known, and afterwards it is registered and stays so.
func TestOutageLongerThanLease(t *testing.T) {
	t.Parallel()
	const ttl = time.Second
	for _, c := range []struct {
		name   string
		second func(first string) string // the directory after the outage
	}{
		{"same data", func(first string) string { return first }},
		{"no data", func(string) string { return t.TempDir() }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			first := t.TempDir()
			s.start(first)
			known := s.watch()
			r, _ := s.registerFor(testWorker("w"), ttl)
			within(t, 10*time.Second, "there", func() bool { return known.knows("w") && r.Held() })

			s.stop()
			within(t, 10*time.Second, "the lease's time is over", func() bool { return !r.Held() })
			if !known.knows("w") {
				t.Fatal("forgotten while etcd was away")
			}
			_, before := known.reported()
			s.start(c.second(first))
			direct := s.client(s.etcd.URL())
			last, err := direct.Grant(t.Context(), int64(ttl/time.Second)) // ends after any old one
			if err != nil {
				t.Fatal(err)
			}
			within(t, 20*time.Second, "watched again, and still registered when any old lease has ended", func() bool {
				_, resyncs := known.reported()
				got, err := direct.Get(t.Context(), DefaultPrefix, clientv3.WithPrefix())
				left, err2 := direct.TimeToLive(t.Context(), last.ID)
				return err == nil && err2 == nil && left.TTL < 0 && resyncs > before && len(got.Kvs) == 1 && r.Held()
			})
			s.register(testWorker("after"))
			within(t, 10*time.Second, "the watch goes on", func() bool { return known.knows("after") })
			if removed, _ := known.reported(); len(removed) > 0 || !known.knows("w") || known.lastGrace() != 5*time.Second {
				t.Errorf("removed %v, known %v, grace %v", removed, known.knows("w"), known.lastGrace())
			}
		})
	}
}

// TestEtcdReplacedBetweenProbes swaps etcd for an empty one so quickly that hardly anyone notices: the watch is taken
// up again by the client, and waits for a revision that the new one is far from.
func TestEtcdReplacedBetweenProbes(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start("")
	direct := s.client(s.etcd.URL())
	for range 100 {
		if _, err := direct.Put(t.Context(), "/elsewhere", "x"); err != nil {
			t.Fatal(err)
		}
	}
	known := s.watchWith(time.Minute, time.Second)
	s.register(testWorker("w"))
	within(t, 10*time.Second, "there", func() bool { return known.knows("w") })
	if err := direct.Close(); err != nil {
		t.Fatal(err)
	}
	s.stop()
	s.start("")
	s.register(testWorker("after"))
	within(t, 10*time.Second, "the one registered at the new etcd", func() bool { return known.knows("after") })
	if !known.knows("w") {
		t.Error("the one known before is gone")
	}
}

// silenced is a connection whose writes are swallowed once it is muted.
type silenced struct {
	net.Conn
	out muted
}

func (s silenced) Write(p []byte) (int, error) { return s.out.Write(p) }

// TestSilentConnectionIsNoticed: a call over a connection that has gone silent is answered over another one after 13 s.
func TestSilentConnectionIsNoticed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, server := bufconn.Listen(1<<16), grpc.NewServer() // which knows of no call
		go func() { _ = server.Serve(l) }()
		defer server.Stop()
		var mute chan struct{}
		c, err := Dial([]string{"etcd:2379"}, Access{dial: func(ctx context.Context, _ string) (net.Conn, error) {
			conn, err := l.DialContext(ctx)
			mute = make(chan struct{})
			return silenced{conn, muted{conn, mute}}, err
		}})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		for _, want := range []time.Duration{0, 13 * time.Second} {
			began := time.Now()
			_, err := c.Get(t.Context(), "key")
			if took := time.Since(began); status.Code(err) != codes.Unimplemented || took < want || took > want+time.Second {
				t.Errorf("%v after %v, want after %v", err, took, want)
			}
			close(mute)
		}
	})
}

// TestCompactedWhileAway has the registry change and forget its history while the watcher is cut off.
func TestCompactedWhileAway(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.start("")
	direct := s.client(s.etcd.URL())
	put := func(id string) {
		t.Helper()
		w := testWorker(id)
		r, err := NewRegistrar(direct, w, "", 0, quiet)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := direct.Put(t.Context(), r.key, r.value); err != nil {
			t.Fatal(err)
		}
	}
	put("stays")
	put("leaves")
	known := s.watchWith(time.Second, 100*time.Millisecond)
	within(t, 10*time.Second, "both", func() bool { return known.knows("stays") && known.knows("leaves") })
	s.gate.shut()
	leaves := testWorker("leaves")
	gone, err := direct.Delete(t.Context(), Key(DefaultPrefix, &leaves))
	if err != nil || gone.Deleted != 1 {
		t.Fatal(gone, err)
	}
	put("comes")
	if _, err := direct.Compact(t.Context(), gone.Header.Revision+1); err != nil {
		t.Fatal(err)
	}
	s.gate.open(s.etcd.URL())
	within(t, 10*time.Second, "the one that came", func() bool { return known.knows("comes") })
	if !known.knows("stays") || !known.knows("leaves") {
		t.Error("the one that is missing was not given its grace")
	}
	within(t, 15*time.Second, "the end of its grace", func() bool { return !known.knows("leaves") })
	if !known.knows("stays") {
		t.Error("the one that stays is gone")
	}
}

func TestEmbeddedEtcdClosesUnderClients(t *testing.T) {
	e, err := StartEtcd(EtcdConfig{Sync: true})
	if err != nil {
		t.Fatal(err)
	}
	c, err := Dial([]string{e.URL()}, Access{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	lease, err := c.Grant(t.Context(), 10)
	if err != nil {
		t.Fatal(err)
	}
	alive, err := c.KeepAlive(t.Context(), lease.ID)
	if err != nil {
		t.Fatal(err)
	}
	<-alive
	<-c.Watch(t.Context(), "/", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	began := time.Now()
	e.Close()
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("took %v", took)
	}
	if _, err := os.Stat(e.temp.Path()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its directory is still there: %v", err)
	}
}

func TestStartEtcdOnATakenPort(t *testing.T) {
	g := newGate(t)
	port := g.listener.Addr().(*net.TCPAddr).Port
	if e, err := StartEtcd(EtcdConfig{Port: port}); err == nil {
		e.Close()
		t.Error("started on a port that is taken")
	}
}

func TestBadRecordsAreSkipped(t *testing.T) {
	s := newSite(t)
	s.start("")
	c := s.client(s.etcd.URL())
	good := testWorker("good")
	goodJSON := `{"id":"good","model":"org/model","role":"prefill","engine":"sim","address":"http://127.0.0.1:9000","block_size":16}`
	bad := map[string]string{
		DefaultPrefix + "x":                             goodJSON,
		DefaultPrefix + "org%2Fmodel/prefill/other":     goodJSON,
		DefaultPrefix + "org/model/prefill/good":        goodJSON,
		DefaultPrefix + "org%2Fmodel/prefill/not-json":  "{",
		DefaultPrefix + "org%2Fmodel/prefill/empty":     "",
		DefaultPrefix + "org%2Fmodel/prefill/no-engine": `{"id":"no-engine","model":"org/model","role":"prefill"}`,
	}
	putAll := func() {
		t.Helper()
		for key, value := range bad {
			if _, err := c.Put(t.Context(), key, value); err != nil {
				t.Fatal(err)
			}
		}
	}
	putAll()
	if _, err := c.Put(t.Context(), Key(DefaultPrefix, &good), goodJSON); err != nil {
		t.Fatal(err)
	}
	known := s.watch() // sees them in the list
	within(t, 10*time.Second, "the good one", func() bool { return known.knows("good") })
	putAll() // and again as changes
	for key := range bad {
		if _, err := c.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	s.register(testWorker("marker")) // whatever the above did has been reported when this is
	within(t, 10*time.Second, "the marker", func() bool { return known.knows("marker") })
	removed, _ := known.reported()
	if pool := known.Snapshot("org/model", pools.Prefill); len(pool.Members) != 2 || len(removed) > 0 {
		t.Errorf("%d members, removed %v", len(pool.Members), removed)
	}
}

func TestWorkerMovesToAnotherRole(t *testing.T) {
	s := newSite(t)
	s.start("")
	known := s.watch()
	before, _ := s.register(testWorker("w"))
	within(t, 10*time.Second, "there", func() bool { return known.knows("w") })
	moved := testWorker("w")
	moved.Role = pools.Decode
	s.register(moved)
	isDecode := func() bool { m, found := known.Lookup("w"); return found && m.Worker.Role == pools.Decode }
	within(t, 10*time.Second, "in its new role", isDecode)
	if err := before.Deregister(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.register(testWorker("marker"))
	within(t, 10*time.Second, "the marker", func() bool { return known.knows("marker") })
	if !isDecode() {
		t.Error("it left with its old key")
	}
}

func TestKeys(t *testing.T) {
	w := testWorker("a.b-1")
	w.Model = "Qwen/Qwen3 32B%"
	const want = "/tandem/workers/Qwen%2FQwen3%2032B%25/prefill/a.b-1"
	if got := Key(DefaultPrefix, &w); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for key, want := range map[string]string{
		want: "a.b-1", "/tandem/workers/m/both/w%201": "w 1", "/tandem/workers/m/both": "", "/tandem/workers/m/both/a/b": "",
		"/other/m/both/a": "", "/tandem/workers/m/both/%": "", "": "",
	} {
		if got := idOf(DefaultPrefix, key); got != want {
			t.Errorf("id in %q: %q, want %q", key, got, want)
		}
	}
}

func TestRegistrarsAreChecked(t *testing.T) {
	c, err := Dial([]string{"http://127.0.0.1:1"}, Access{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, ttl := range []time.Duration{-time.Second, time.Millisecond, 1500 * time.Millisecond} {
		if _, err := NewRegistrar(c, testWorker("w"), "", ttl, quiet); err == nil {
			t.Errorf("a TTL of %v is accepted", ttl)
		}
	}
	if _, err := NewRegistrar(c, pools.Worker{}, "", 0, quiet); err == nil {
		t.Error("an empty record is accepted")
	}
}
