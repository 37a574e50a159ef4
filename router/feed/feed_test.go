package feed

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/kv/follow"
	"github.com/tandem-pd/tandem/kv/overlap"
	"github.com/tandem-pd/tandem/kv/view"
	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/lab/testkit"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
)

// newFeed is a feed of these workers, whose events come over bus, and the routers that it feeds.
func newFeed(t testing.TB, cfg Config, bus wire.Bus, log slog.Handler, workers ...pools.Worker) (*Feed, *pools.Roster, *router.Set) {
	t.Helper()
	roster := pools.NewRoster(pools.Config{}, slog.New(log))
	routers, err := router.NewSet(map[pools.Role]router.Config{pools.Both: router.DefaultConfig()}, slog.New(log))
	require.NoError(t, err)
	f := New(cfg, bus, roster, routers, slog.New(log), prometheus.NewRegistry())
	for _, w := range workers {
		roster.From("test").Put(w)
	}
	return f, roster, routers
}

// hub is a bus, and a feed of its events about one worker.
type hub struct {
	bus     *testkit.Bus
	roster  *pools.Roster
	routers *router.Set
	feed    *Feed
	worker  pools.Worker
}

func newHub(t *testing.T) *hub {
	h := &hub{bus: testkit.NewBus(), worker: vllm("w")}
	t.Cleanup(h.bus.Close)
	h.feed, h.roster, h.routers = newFeed(t, Config{Events: follow.Config{RetryMin: time.Millisecond}}, h.bus, slog.DiscardHandler, h.worker)
	run(t, h.feed.Run)
	return h
}

// vllm is a worker that publishes its events.
func vllm(id string) pools.Worker {
	return pools.Worker{ID: id, Model: "m", Role: pools.Both, Engine: "vllm", Address: "http://10.0.0.1:8000", BlockSize: 16, KVEvents: "nats"}
}

// publisher starts a worker's, which publishes one event.
func publisher(t testing.TB, bus wire.Bus, worker string, e ...wire.Event) (p *view.Publisher, stop func()) {
	t.Helper()
	p, err := view.NewPublisher(view.PublisherConfig{Source: wire.Source{Pool: "m/both", Worker: worker}}, bus, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	stop = run(t, p.Run)
	if len(e) > 0 {
		require.NoError(t, p.Publish(e))
	}
	return p, stop
}

// A rank whose answers contradicted its events is marked; when its publisher begins again as another process, the mark goes
// with the events that it was for.
func TestAnotherEpochIsResynchronised(t *testing.T) {
	h := newHub(t)
	start := func() (stop func()) {
		p, stop := publisher(t, h.bus, "w", wire.Event{Kind: wire.Removed, Hashes: []wire.Hash{1}})
		within(t, "followed", func() bool {
			s := h.feed.Sources()
			return len(s) == 1 && s[0].State == follow.Live && s[0].Epoch == p.Epoch()
		})
		return stop
	}
	stop := start()
	of := h.routers.For("m", pools.Both)
	prompt := make([]uint64, 100)
	for i := range prompt {
		prompt[i] = uint64(i + 1)
	}
	marked := func() bool { p, _ := of.Sources().RankParity(overlap.Rank{Worker: "w"}); return p.Marked }
	for range 100 {
		l, err := of.Reserve(h.roster.View().Pool("m", pools.Both), router.Request{ID: "r", ISL: 1600, Hashes: prompt}, time.Now())
		require.NoError(t, err)
		l.Compare(1600) // though the events know of no block
		l.Release(time.Now())
	}
	require.True(t, marked())
	stop()
	start()
	within(t, "trusted again", func() bool { return !marked() })
}

// run runs f until the test ends or it is stopped.
func run(t testing.TB, f func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		assert.NoError(t, f(ctx))
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

// The size of an engine's blocks is known from its events.
func TestEngineBlockSize(t *testing.T) {
	h := newHub(t)
	publisher(t, h.bus, "w", wire.Event{Kind: wire.Stored, Hashes: []wire.Hash{1}, Tokens: make([]uint32, 32), BlockSize: 32})
	within(t, "32 tokens a block", func() bool { return h.feed.EngineBlock(&h.worker, 0) == 32 })
	if none := (*Feed)(nil); none.EngineBlock(&h.worker, 0) != 0 || none.Sources() != nil || none.Reannounce(&h.worker, 0) {
		t.Error("without a feed something is followed")
	}
}

// A worker that joins before the feed runs is predicted where its events cannot come.
func TestPredictedFromTheFirst(t *testing.T) {
	w := vllm("w")
	_, _, routers := newFeed(t, Config{}, nil, slog.DiscardHandler, w)
	assert.True(t, routers.For("m", pools.Both).Sources().Predicts(&w, 0))
}

// within waits for a condition.
func within(t testing.TB, what string, condition func() bool) {
	t.Helper()
	require.Eventually(t, condition, 30*time.Second, time.Millisecond, what)
}
