package discovery

import (
	"context"
	"errors"
	"flag"
	"io"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"

	"github.com/tandem-pd/tandem/internal/guard"
	"github.com/tandem-pd/tandem/pools"
)

// TestMain has parallel tests go side by side though there are fewer processors: they wait for leases to end.
func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", "10"); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

var quiet = slog.New(slog.DiscardHandler)

var soon = guard.Backoff{Min: 10 * time.Millisecond, Max: 100 * time.Millisecond}

func testWorker(id string) pools.Worker {
	return pools.Worker{
		ID: id, Incarnation: "i-" + id, Model: "org/model", Role: pools.Prefill, Engine: "sim",
		Address: "http://127.0.0.1:9000", BlockSize: 16, KVEvents: "nats",
	}
}

// gate dials what runs behind it at the time, whatever the address, and nothing while it is shut, which breaks what it dialled.
// It gives an etcd one address through restarts, and an outage a beginning and an end.
type gate struct {
	mu     sync.Mutex // guards all below
	target string     // "" while shut
	conns  []net.Conn
}

func (g *gate) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.target == "" {
		return nil, errors.New("the gate is shut")
	}
	c, err := new(net.Dialer).DialContext(ctx, network, g.target)
	if err == nil {
		g.conns = append(g.conns, c)
	}
	return c, err
}

func (g *gate) open(url string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.target = strings.TrimPrefix(url, "http://")
}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.target = ""
	for _, c := range g.conns {
		c.Close()
	}
	g.conns = nil
}

// recorder is a roster that remembers what it was reported.
type recorder struct {
	*pools.Roster
	t *testing.T

	mu      sync.Mutex // guards all below
	removed []string
	resyncs int
	grace   time.Duration
}

func (r *recorder) Remove(id string) {
	r.mu.Lock()
	r.removed = append(r.removed, id)
	r.mu.Unlock()
	r.Roster.Remove(id)
}

func (r *recorder) Resync(ws []pools.Worker, grace time.Duration) {
	r.Roster.Resync(ws, grace)
	r.mu.Lock()
	r.resyncs++
	r.grace = grace
	r.mu.Unlock()
}

func (r *recorder) Lose(w pools.Worker) { r.From("").Lose(w) }

func (r *recorder) Suspend(id string, on bool) { r.From("").Suspend(id, on) }

func (r *recorder) Refuse(w pools.Worker, reason error) { r.From("").Refuse(w, reason) }

// comes and goes wait until it knows a worker, and until it does not.
func (r *recorder) comes(id string) {
	r.t.Helper()
	within(r.t, id+" has come", func() bool { return r.knows(id) })
}

func (r *recorder) goes(id string) {
	r.t.Helper()
	within(r.t, id+" has gone", func() bool { return !r.knows(id) })
}

func (r *recorder) knows(id string) bool { _, found := r.Lookup(id); return found }

func (r *recorder) reported() (removed []string, resyncs int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.removed), r.resyncs
}

func (r *recorder) lastGrace() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.grace
}

// site is a test's etcd, behind a gate, and what runs against it.
type site struct {
	t    *testing.T
	gate gate
	etcd *EmbeddedEtcd
	ctx  context.Context
	runs sync.WaitGroup

	patience time.Duration // of one call
	logs     logged        // of the watchers

	clients []*clientv3.Client // to be closed when all that runs has ended
}

func newSite(t *testing.T) *site {
	ctx, cancel := context.WithCancel(t.Context())
	s := &site{t: t, ctx: ctx, patience: brief}
	t.Cleanup(func() {
		cancel()
		s.runs.Wait()
		for _, c := range s.clients {
			c.Close()
		}
		if s.etcd != nil {
			s.stop()
		}
	})
	return s
}

// brief is the patience where etcd goes away. Elsewhere a busy machine must not look like an outage.
const brief = 500 * time.Millisecond

// started is a site whose etcd runs. Its test goes beside others: most of its time it waits.
func started(t *testing.T) *site {
	t.Helper()
	t.Parallel()
	s := newSite(t)
	s.patience = 10 * time.Second
	s.start("")
	return s
}

func (s *site) start(dir string) {
	s.t.Helper()
	etcd, err := StartEtcd(EtcdConfig{Dir: dir})
	require.NoError(s.t, err)
	s.etcd = etcd
	s.gate.open(etcd.URL())
}

func (s *site) stop() {
	s.t.Helper()
	s.gate.shut()
	began := time.Now()
	s.etcd.Close()
	assert.LessOrEqual(s.t, time.Since(began), 30*time.Second, "etcd took N to close")
	s.etcd = nil
}

// run runs f until the returned func is called, or the test ends.
func (s *site) run(f func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(s.ctx)
	done := make(chan struct{})
	s.runs.Go(func() {
		defer close(done)
		assert.NoError(s.t, f(ctx))
	})
	return func() { cancel(); <-done }
}

// direct and gated are clients of its etcd, past its gate and through it.
func (s *site) direct() *clientv3.Client { s.t.Helper(); return s.client(s.etcd.URL(), Access{}) }

func (s *site) gated() *clientv3.Client {
	s.t.Helper()
	return s.client("etcd:2379", Access{dial: func(ctx context.Context, address string) (net.Conn,
		error) {
		return s.gate.dial(ctx, "tcp", address)
	}})
}

func (s *site) client(endpoint string, access Access) *clientv3.Client {
	s.t.Helper()
	c, err := Dial([]string{endpoint}, access)
	require.NoError(s.t, err)
	s.clients = append(s.clients, c)
	return c
}

func (s *site) watch() *recorder { return s.watchWith(5*time.Second, 100*time.Millisecond) }

func (s *site) watchWith(grace, probeEvery time.Duration) *recorder {
	return s.watchBy(WatcherConfig{Grace: grace}, probeEvery)
}

func (s *site) watchBy(cfg WatcherConfig, probeEvery time.Duration) *recorder {
	s.t.Helper()
	r := &recorder{Roster: pools.NewRoster(pools.Config{}, quiet), t: s.t}
	w := NewWatcher(s.gated(), r, cfg, slog.New(slog.NewTextHandler(&s.logs, nil)))
	w.probeEvery, w.probeLimit, w.timeout, w.retry = probeEvery, s.patience, s.patience, soon
	s.run(r.Run)
	s.run(w.Run)
	return r
}

// record is the registrar of a worker whose record is put and deleted by hand, as where etcd grants and ends leases.
func (s *site) record(c *clientv3.Client, w pools.Worker) *Registrar {
	s.t.Helper()
	r, err := NewRegistrar(c, w, "", 0, quiet)
	require.NoError(s.t, err)
	_, err = c.Put(s.t.Context(), r.key, r.value)
	require.NoError(s.t, err)
	return r
}

// forget deletes it.
func (r *Registrar) forget(t *testing.T) {
	t.Helper()
	_, err := r.client.Delete(t.Context(), r.key)
	require.NoError(t, err)
}

func (s *site) register(w pools.Worker) (r *Registrar, stop func()) {
	return s.registerFor(w, time.Second)
}

func (s *site) registerFor(w pools.Worker, ttl time.Duration) (r *Registrar, stop func()) {
	s.t.Helper()
	r, err := NewRegistrar(s.gated(), w, "", ttl, quiet)
	require.NoError(s.t, err)
	r.timeout, r.retry = s.patience, soon
	return r, s.run(r.Run)
}

// within waits for a condition, for 20 s.
func within(t *testing.T, what string, condition func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-ctx.Done():
			t.Fatalf("never came true: %s", what)
		case <-tick.C:
		}
	}
}

// muted swallows what is written once mute is closed.
type muted struct {
	io.Writer
	mute <-chan struct{}
}

func (m muted) Write(p []byte) (int, error) {
	select {
	case <-m.mute:
		return len(p), nil
	default:
		return m.Writer.Write(p)
	}
}
