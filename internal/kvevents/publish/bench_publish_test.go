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

// BenchmarkPublish numbers, encodes, mirrors and sends one message: a prompt of 128 blocks is stored, and the next
// removes the one that came 256 prompts before.
func BenchmarkPublish(b *testing.B) {
	const prompts, blocks = 512, 128
	var stored, removed [prompts][]wire.Event
	for i := range prompts {
		e := eventstest.Chain(uint32(i), blocks)
		stored[i] = []wire.Event{e}
		removed[i] = []wire.Event{{Kind: wire.Removed, Hashes: e.Hashes, Medium: "GPU"}}
	}
	p, err := New(Config{Source: wire.Source{Pool: eventstest.Pool, Worker: "w", Rank: 0}}, deafBus{}, slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		events := removed[(n/2+prompts/2)%prompts]
		if n%2 == 0 {
			events = stored[n/2%prompts]
		}
		if err := p.Publish(events); err != nil {
			b.Fatal(err)
		}
		n++
	}
}

// BenchmarkPublishSmall is the same of messages of one block, where what does not depend on the blocks shows.
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
