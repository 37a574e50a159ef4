package publish

import (
	"log/slog"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/tandem-pd/tandem/internal/kvevents/eventstest"
	"github.com/tandem-pd/tandem/internal/kvevents/wire"
)

// deafBus takes messages and drops them, so that a benchmark sees the publisher alone.
type deafBus struct{ wire.Bus }

func (deafBus) Publish(*nats.Msg) error { return nil }

// BenchmarkPublishSmall numbers, encodes, mirrors and sends messages of one block, where what does not depend on the blocks shows.
func BenchmarkPublishSmall(b *testing.B) {
	e := eventstest.Chain(1, 1)
	pair := [2][]wire.Event{{e}, {{Kind: wire.Removed, Hashes: e.Hashes, Medium: "GPU"}}}
	p, err := New(Config{Source: wire.Source{Pool: eventstest.Pool, Worker: "w", Rank: 0}}, deafBus{}, slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		if err := p.Publish(pair[n%2]); err != nil {
			b.Fatal(err)
		}
		n++
	}
}
