package feed

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/internal/kvevents/eventstest"
	"github.com/tandem-pd/tandem/internal/kvevents/follow"
	"github.com/tandem-pd/tandem/internal/kvevents/publish"
	"github.com/tandem-pd/tandem/internal/kvevents/wire"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/overlap"
)

// A rank whose answers contradicted its events is marked; when its publisher begins again as another process, the mark goes
// with the events that it was for.
func TestAnotherEpochIsResynchronised(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	bus := eventstest.NewBus()
	t.Cleanup(bus.Close)
	roster := pools.NewRoster(pools.Config{}, log)
	routers, err := router.NewSet(map[pools.Role]router.Config{pools.Both: router.DefaultConfig()}, log)
	if err != nil {
		t.Fatal(err)
	}
	f, err := New(Config{Events: follow.Config{RetryMin: time.Millisecond}}, bus, roster, routers, log, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	roster.From("test").Put(pools.Worker{ID: "w", Model: "m", Role: pools.Both, Engine: "vllm", Address: "http://10.0.0.1:8000", BlockSize: 16, KVEvents: "nats"})
	run(t, f.Run)
	start := func() (stop func()) {
		p, err := publish.New(publish.Config{Source: wire.Source{Pool: "m/both", Worker: "w"}}, bus, log)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Publish([]wire.Event{{Kind: wire.Removed, Hashes: []wire.Hash{1}}}); err != nil {
			t.Fatal(err)
		}
		stop = run(t, p.Run)
		within(t, "followed", func() bool {
			s := f.Sources()
			return len(s) == 1 && s[0].State == follow.Live && s[0].Epoch == p.Epoch()
		})
		return stop
	}
	stop := start()
	of := routers.For("m", pools.Both)
	prompt := make([]uint64, 100)
	for i := range prompt {
		prompt[i] = uint64(i + 1)
	}
	marked := func() bool { p, _ := of.Sources().RankParity(overlap.Rank{Worker: "w"}); return p.Marked }
	for range 100 {
		l, err := of.Reserve(roster.View().Pool("m", pools.Both), router.Request{ID: "r", ISL: 1600, Hashes: prompt}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		l.Compare(1600) // though the events know of no block
		l.Release(time.Now())
	}
	if !marked() {
		t.Fatal("the rank is not marked")
	}
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
		if err := f(ctx); err != nil {
			t.Error(err)
		}
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

// The size of an engine's blocks is known from its events.
func TestEngineBlockIsKnown(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	bus := eventstest.NewBus()
	t.Cleanup(bus.Close)
	roster := pools.NewRoster(pools.Config{}, log)
	routers, err := router.NewSet(map[pools.Role]router.Config{pools.Both: router.DefaultConfig()}, log)
	if err != nil {
		t.Fatal(err)
	}
	f, err := New(Config{Events: follow.Config{RetryMin: time.Millisecond}}, bus, roster, routers, log, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	w := pools.Worker{ID: "w", Model: "m", Role: pools.Both, Engine: "vllm", Address: "http://10.0.0.1:8000", BlockSize: 16, KVEvents: "nats"}
	roster.From("test").Put(w)
	run(t, f.Run)
	p, err := publish.New(publish.Config{Source: wire.Source{Pool: "m/both", Worker: "w"}}, bus, log)
	if err != nil {
		t.Fatal(err)
	}
	run(t, p.Run)
	if err := p.Publish([]wire.Event{{Kind: wire.Stored, Hashes: []wire.Hash{1}, Tokens: make([]uint32, 32), BlockSize: 32}}); err != nil {
		t.Fatal(err)
	}
	within(t, "32 tokens a block", func() bool { return f.EngineBlock(&w, 0) == 32 })
	if none := (*Feed)(nil); none.EngineBlock(&w, 0) != 0 || none.Sources() != nil || none.Reannounce(&w, 0) {
		t.Error("without a feed something is followed")
	}
}

// A worker that joins before the feed runs is predicted where its events cannot come.
func TestPredictedFromTheFirst(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	roster := pools.NewRoster(pools.Config{}, log)
	routers, err := router.NewSet(map[pools.Role]router.Config{pools.Both: router.DefaultConfig()}, log)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(Config{}, nil, roster, routers, log, prometheus.NewRegistry()); err != nil {
		t.Fatal(err)
	}
	w := pools.Worker{ID: "w", Model: "m", Role: pools.Both, Engine: "vllm", Address: "http://10.0.0.1:8000", BlockSize: 16, KVEvents: "nats"}
	roster.From("test").Put(w)
	if !routers.For("m", pools.Both).Sources().Predicts(&w, 0) {
		t.Error("the worker is not predicted")
	}
}

// within waits for a condition.
func within(t testing.TB, what string, condition func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for limit := time.After(30 * time.Second); !condition(); {
		select {
		case <-limit:
			t.Fatal("not within 30 s: " + what)
		case <-tick.C:
		}
	}
}
