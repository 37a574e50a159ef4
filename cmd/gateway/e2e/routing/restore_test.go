package routing

import (
	"context"
	"log/slog"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/internal/kvevents/eventstest"
	"github.com/tandem-pd/tandem/internal/kvevents/natsbus"
	"github.com/tandem-pd/tandem/internal/kvevents/publish"
	"github.com/tandem-pd/tandem/internal/kvevents/wire"
	"github.com/tandem-pd/tandem/pools"
)

// TestIndexIsRestoredFromAGateway starts a second gateway of a group: it has the first one's view of a worker's cache, and
// the worker is not asked for a snapshot. With the first gone, a third asks the worker.
func TestIndexIsRestoredFromAGateway(t *testing.T) {
	url := fleet.StartNATS(t)
	log := slog.New(slog.DiscardHandler)
	over := func() wire.Bus {
		conn, err := nats.Connect(url)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(conn.Close)
		return natsbus.OverNATS(conn, natsbus.PendingLimits{}, log)
	}
	w := pools.Worker{ID: "w", Incarnation: "1", Model: "org/model", Role: pools.Both, Engine: "sim", Address: "http://127.0.0.1:9",
		BlockSize: 16, KVEvents: "nats"}
	p, err := publish.New(publish.Config{Source: wire.Source{Pool: "org/model/both", Worker: w.ID}}, over(), log)
	if err != nil {
		t.Fatal(err)
	}
	start := func(name string) (f *fleet.Fleet, stop func()) {
		cfg := fleet.GatewayConfig()
		cfg.Replicas.Complete(cfg.Prefix)
		cfg.Replicas.Group, cfg.Replicas.Name = "test", name
		f = fleet.Bare(t, cfg, stack.Links{Bus: over(), Group: fleet.Join(t, url)}, slog.LevelInfo)
		f.Put(w)
		stop = f.RunGateway()
		f.Eventually(name+" knows the worker's cache", func() bool {
			s := f.Sources()["w"]
			return s.State == "live" && s.Blocks == 300
		})
		return f, stop
	}
	ctx, end := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	t.Cleanup(func() {
		end()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	for base := range uint32(3) {
		if err := p.Publish([]wire.Event{eventstest.Chain(base, 100)}); err != nil {
			t.Fatal(err)
		}
	}
	_, stopFirst := start("first")
	asked := p.Stats()
	second, stopSecond := start("second")
	if now := p.Stats(); now.Snapshots != asked.Snapshots || now.Rings != asked.Rings || second.Sources()["w"].Repaired["peer"] != 1 {
		t.Errorf("the worker was asked for %d snapshots and %d rings: %+v", now.Snapshots-asked.Snapshots, now.Rings-asked.Rings,
			second.Sources()["w"])
	}
	stopFirst()
	stopSecond()
	third, _ := start("third")
	if s := third.Sources()["w"]; s.Repaired["peer"] != 0 ||
		s.Repaired["snapshot"]+s.Repaired["ring"] != 1 { // the ring, where a heartbeat comes first
		t.Errorf("no gateway is there, and %+v", s)
	}
}
