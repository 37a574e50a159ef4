package kvevents

import (
	"log/slog"
	"runtime"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/tandem-pd/tandem/internal/kvevents/eventstest"
	"github.com/tandem-pd/tandem/internal/kvevents/natsbus"
	"github.com/tandem-pd/tandem/internal/kvevents/publish"
	"github.com/tandem-pd/tandem/internal/kvevents/wire"
)

// BenchmarkPublishStream is BenchmarkPublishSmall into a stream on disk, by as many as may be on the way at once.
func BenchmarkPublishStream(b *testing.B) {
	server, err := natsbus.StartServer(natsbus.ServerConfig{JetStream: true, Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	defer server.Close()
	nc, err := nats.Connect(server.URL())
	if err != nil {
		b.Fatal(err)
	}
	defer nc.Close()
	bus, err := natsbus.OverStream(nc, natsbus.StreamConfig{}, natsbus.PendingLimits{}, slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	defer bus.Close()
	e := eventstest.Chain(1, 1)
	pair := [2][]wire.Event{{e}, {{Kind: wire.Removed, Hashes: e.Hashes, Medium: "GPU"}}}
	p, err := publish.New(publish.Config{Source: wire.Source{Pool: eventstest.Pool, Worker: "w", Rank: 0}}, bus, slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	for bus.Stats().Acked == 0 { // until the stream is there
		_ = p.Publish(pair[0])
		runtime.Gosched()
	}
	b.ReportAllocs()
	n, before := 0, bus.Stats()
	for b.Loop() {
		for bus.Stats().Pending >= 4096 {
			runtime.Gosched()
		}
		if err := p.Publish(pair[n%2]); err != nil {
			b.Fatal(err)
		}
		n++
	}
	b.ReportMetric(float64(bus.Stats().Failed-before.Failed), "failed")
}
