package discovery

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/tandem-pd/tandem/pools"
)

func TestRegisterWatchDeregister(t *testing.T) {
	s := started(t)
	early, _ := s.register(testWorker("early"))
	<-early.Registered()
	known := s.watch()
	known.comes("early")
	late, _ := s.register(testWorker("late"))
	known.comes("late")
	assert.True(t, late.Lodged(), "a watcher knows the record, and its worker says that none could")
	m, _ := known.Lookup("late")
	want := testWorker("late")
	assert.True(t, m.Worker.Equal(&want), "the record came as %+v", m.Worker)

	began := time.Now()
	require.NoError(t, late.Deregister(t.Context()))
	assert.False(t, late.Lodged(), "the record is said to be there still")
	known.goes("late")
	assert.LessOrEqual(t, time.Since(began), probation, "gone after X, as if its lease had ended")
	assert.NoError(t, late.Deregister(t.Context()), "a second time")
	assert.True(t, known.knows("early"), "the other is gone as well")
}

func TestDeregisterBeforeRun(t *testing.T) {
	s := started(t)
	c := s.gated()
	r, err := NewRegistrar(c, testWorker("w"), "", 0, quiet)
	require.NoError(t, err)
	require.NoError(t, r.Deregister(t.Context()))
	require.NoError(t, r.Run(t.Context()))
	assert.False(t, r.Lodged(), "a record that was never put is said to be there")
	got, err := c.Get(t.Context(), DefaultPrefix, clientv3.WithPrefix())
	assert.True(t, err == nil && got.Count == 0, "%v, %v", got, err)
}

func TestLeaseEndsAfterAnAbruptEnd(t *testing.T) {
	s := started(t)
	known := s.watchWith(time.Second, 100*time.Millisecond)
	_, kill := s.register(testWorker("w"))
	known.comes("w")
	kill()
	assert.True(t, known.knows("w"), "gone at once, as if it had deregistered")
	known.goes("w") // with its lease
}

// succeeds registers a worker and then another as its successor, and has the first deregister: the successor stays.
func succeeds(t *testing.T, change func(w *pools.Worker)) {
	s := started(t)
	known := s.watch()
	old, _ := s.register(testWorker("w"))
	known.comes("w")
	next := testWorker("w")
	change(&next)
	s.register(next)
	isNext := func() bool { m, found := known.Lookup("w"); return found && m.Worker.Equal(&next) }
	within(t, "the successor", isNext)
	require.NoError(t, old.Deregister(t.Context()))
	s.register(testWorker("marker")) // whatever the above did has been reported when this is
	known.comes("marker")
	removed, _ := known.reported()
	assert.True(t, len(removed) == 0 && isNext(), "removed %v", removed)
}

func TestSuccessorOutlivesDeregister(t *testing.T) {
	succeeds(t, func(w *pools.Worker) { w.Incarnation = "next" })
}

func TestWorkerMovesToAnotherRole(t *testing.T) {
	succeeds(t, func(w *pools.Worker) { w.Role = pools.Decode })
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
	known.comes("w")
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
			r, _ := s.register(testWorker("w"))
			began := time.Now() // etcd's client gives up a lease that was never kept alive after 5 s, not after its TTL
			within(t, "there, and kept alive", func() bool { return known.knows("w") && r.Held() && time.Since(began) > ttl*2/3 })

			s.stop()
			within(t, "the lease's time is over", func() bool { return !r.Held() })
			require.True(t, known.knows("w"), "forgotten while etcd was away")
			_, before := known.reported()
			s.start(c.second(first))
			direct := s.direct()
			last, err := direct.Grant(t.Context(), int64(ttl/time.Second)) // ends after any old one
			require.NoError(t, err)
			within(t, "watched again, and still registered when any old lease has ended", func() bool {
				_, resyncs := known.reported()
				got, err := direct.Get(t.Context(), DefaultPrefix, clientv3.WithPrefix())
				left, err2 := direct.TimeToLive(t.Context(), last.ID)
				return err == nil && err2 == nil && left.TTL < 0 && resyncs > before && len(got.Kvs) == 1 && r.Held()
			})
			s.register(testWorker("after"))
			known.comes("after")
			if removed, _ := known.reported(); len(removed) > 0 || !known.knows("w") || known.lastGrace() != 5*time.Second {
				t.Errorf("removed %v, known %v, grace %v", removed, known.knows("w"), known.lastGrace())
			}
		})
	}
}

// TestEtcdReplacedBetweenProbes swaps etcd for an empty one so quickly that hardly anyone notices: the watch is taken
// up again by the client, and waits for a revision that the new one is far from.
func TestEtcdReplacedBetweenProbes(t *testing.T) {
	s := started(t)
	s.patience = brief
	direct := s.direct()
	for range 100 {
		_, err := direct.Put(t.Context(), "/elsewhere", "x")
		require.NoError(t, err)
	}
	known := s.watchWith(time.Minute, time.Second)
	s.register(testWorker("w"))
	known.comes("w")
	require.NoError(t, direct.Close())
	s.stop()
	s.start("")
	s.register(testWorker("after"))
	known.comes("after")
	assert.True(t, known.knows("w"), "the one known before is gone")
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
		require.NoError(t, err)
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
	s := started(t)
	s.patience = brief
	direct := s.direct()
	s.record(direct, testWorker("stays"))
	s.record(direct, testWorker("leaves"))
	known := s.watchWith(time.Second, 100*time.Millisecond)
	known.comes("stays")
	known.comes("leaves")
	s.gate.shut()
	leaves := testWorker("leaves")
	gone, err := direct.Delete(t.Context(), Key(DefaultPrefix, &leaves))
	require.True(t, err == nil && gone.Deleted == 1, "%v %v", gone, err)
	s.record(direct, testWorker("comes"))
	_, err = direct.Compact(t.Context(), gone.Header.Revision+1)
	require.NoError(t, err)
	s.gate.open(s.etcd.URL())
	known.comes("comes")
	assert.True(t, known.knows("stays") && known.knows("leaves"), "the one that is missing was not given its grace")
	known.goes("leaves")
	assert.True(t, known.knows("stays"), "the one that stays is gone")
}

func TestEmbeddedEtcdClosesUnderClients(t *testing.T) {
	e, err := StartEtcd(EtcdConfig{Sync: true})
	require.NoError(t, err)
	c, err := Dial([]string{e.URL()}, Access{})
	require.NoError(t, err)
	defer c.Close()
	var taken int
	_, err = fmt.Sscanf(e.URL(), "http://127.0.0.1:%d", &taken)
	require.NoError(t, err)
	_, err = StartEtcd(EtcdConfig{Port: taken})
	require.Error(t, err, "started on a port that is taken")
	lease, err := c.Grant(t.Context(), 10)
	require.NoError(t, err)
	alive, err := c.KeepAlive(t.Context(), lease.ID)
	require.NoError(t, err)
	<-alive
	<-c.Watch(t.Context(), "/", clientv3.WithPrefix(), clientv3.WithCreatedNotify())
	began := time.Now()
	e.Close()
	assert.LessOrEqual(t, time.Since(began), 30*time.Second, "took")
	_, err = os.Stat(e.temp.Path())
	assert.ErrorIs(t, err, os.ErrNotExist, "its directory is still there")
}

func TestBadRecordsAreSkipped(t *testing.T) {
	s := started(t)
	c := s.direct()
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
			_, err := c.Put(t.Context(), key, value)
			require.NoError(t, err)
		}
	}
	putAll()
	_, err := c.Put(t.Context(), Key(DefaultPrefix, &good), goodJSON)
	require.NoError(t, err)
	known := s.watch() // sees them in the list
	known.comes("good")
	putAll() // and again as changes
	for key := range bad {
		_, err := c.Delete(t.Context(), key)
		require.NoError(t, err)
	}
	s.register(testWorker("marker")) // whatever the above did has been reported when this is
	known.comes("marker")
	removed, _ := known.reported()
	pool := known.Snapshot("org/model", pools.Prefill)
	assert.True(t, len(pool.Members) == 2 && len(removed) == 0, "%d members, removed %v", len(pool.Members), removed)
}

func TestKeys(t *testing.T) {
	w := testWorker("a.b-1")
	w.Model = "Qwen/Qwen3 32B%"
	const want = "/tandem/workers/Qwen%2FQwen3%2032B%25/prefill/a.b-1"
	assert.Equal(t, want, Key(DefaultPrefix, &w))
	for key, want := range map[string]string{
		want: "a.b-1", "/tandem/workers/m/both/w%201": "w 1", "/tandem/workers/m/both": "", "/tandem/workers/m/both/a/b": "",
		"/other/m/both/a": "", "/tandem/workers/m/both/%": "", "": "",
	} {
		assert.Equal(t, want, idOf(DefaultPrefix, key), "id in %q", key)
	}
}

func TestRegistrarsAreChecked(t *testing.T) {
	c := newSite(t).gated()
	for _, ttl := range []time.Duration{-time.Second, time.Millisecond, 1500 * time.Millisecond} {
		_, err := NewRegistrar(c, testWorker("w"), "", ttl, quiet)
		require.Error(t, err, "a TTL of %v", ttl)
	}
	_, err := NewRegistrar(c, pools.Worker{}, "", 0, quiet)
	require.Error(t, err, "an empty record")
}

// A page in a browser on this machine may send any body as text/plain, whose answer it need not see: one that
// registers a worker would have prompts sent to it.
func TestEmbeddedEtcdTakesNothingFromWebPages(t *testing.T) {
	s := started(t)
	c := s.direct()
	_, err := c.Put(t.Context(), "b", "b")
	require.NoError(t, err)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for path, body := range map[string]string{
		"/v3/kv/put":         `{"key":"YQ==","value":"YQ=="}`,
		"/v3/kv/deleterange": `{"key":"Yg=="}`,
		"/v3/kv/range":       `{"key":"Yg=="}`,
	} {
		resp, err := client.Post(s.etcd.URL()+path, "text/plain", strings.NewReader(body))
		require.NoError(t, err)
		resp.Body.Close()
		assert.GreaterOrEqual(t, resp.StatusCode, 400, "%s: status", path)
	}
	for key, want := range map[string]int64{"a": 0, "b": 1} {
		got, err := c.Get(t.Context(), key)
		require.NoError(t, err)
		assert.Equal(t, want, got.Count, "values of %q", key)
	}
}
