package view

import (
	"bytes"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/lab/testkit"
)

func TestRingKeepsTheLast(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 8))
		r := ring{maxMessages: 1 + rng.IntN(20), maxBytes: 1 + rng.IntN(500)}
		var all [][]byte // by number, from 1
		for seq := uint64(1); seq <= 200; seq++ {
			payload := bytes.Repeat([]byte{byte(seq)}, 1+rng.IntN(60))
			all = append(all, payload)
			r.push(seq, payload)
			size := 0
			for _, m := range r.messages {
				size += len(m)
			}
			if len(r.messages) > r.maxMessages || size > r.maxBytes && len(r.messages) > 1 || size != r.bytes || len(r.messages) == 0 {
				t.Fatalf("seed %d: %d messages of %d bytes, counted %d, in a ring of %d and %d", seed, len(r.messages), size, r.bytes,
					r.maxMessages, r.maxBytes)
			}
			from, until, limit := uint64(rng.IntN(int(seq)+3)), uint64(rng.IntN(int(seq)+3)), 1+rng.IntN(200)
			got, ok := r.run(from, until, limit)
			oldest := seq - uint64(len(r.messages)) + 1
			require.Equal(t, from >= oldest && from <= seq+1, ok, "seed %d: run from %d of %d to %d", seed, from, oldest, seq)
			if !ok {
				continue
			}
			n := len(wire.AppendRun(nil, got))
			require.False(t, n > limit && len(got) > 1, "seed %d: %d bytes, may be %d", seed, n, limit)
			require.True(t, from > seq || len(got) != 0, "seed %d: nothing from %d, though %d is kept", seed, from, seq)
			read, err := wire.ReadRun(nil, wire.AppendRun(nil, got))
			require.True(t, err == nil && len(read) == len(got), "seed %d: %d read of %d, %v", seed, len(read), len(got), err)
			for i, m := range read {
				if n := from + uint64(i); !bytes.Equal(m, all[n-1]) || until >= from && n > until {
					t.Fatalf("seed %d: message %d of a run from %d to %d is another", seed, n, from, until)
				}
			}
		}
	}
}

func TestKeptPagesAreBounded(t *testing.T) {
	bus := testkit.NewBus()
	t.Cleanup(bus.Close)
	p, err := NewPublisher(PublisherConfig{Source: wire.Source{Pool: testkit.Pool, Worker: "w", Rank: 0}, MaxBytes: 4096,
		KeptPagesBytes: 300_000},
		bus, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	g := testkit.NewEngine(1, 16)
	now := time.Unix(1e9, 0)
	for range 60 {
		require.NoError(t, p.Publish([]wire.Event{g.Store(20)}))
		p.snapshot(now)
	}
	kept := 0
	for _, set := range p.pages {
		kept += set.size
	}
	if newest := p.pages[len(p.pages)-1]; len(p.pages) < 2 || kept > 300_000 || newest.seq != p.Stats().Seq {
		t.Errorf("%d snapshots of %d bytes kept, the newest of %d", len(p.pages), kept, newest.seq)
	}
	p.forget(now.Add(time.Minute))
	assert.Empty(t, p.pages, "snapshots kept a minute later")
}

// deafBus takes messages and drops them, so that a benchmark sees the publisher alone.
type deafBus struct{ wire.Bus }

func (deafBus) Publish(*nats.Msg) error { return nil }

// BenchmarkPublishSmall numbers, encodes, mirrors and sends messages of one block, where what does not depend on the blocks shows.
func BenchmarkPublishSmall(b *testing.B) {
	e := testkit.Chain(1, 1)
	pair := [2][]wire.Event{{e}, {{Kind: wire.Removed, Hashes: e.Hashes, Medium: "GPU"}}}
	p, err := NewPublisher(PublisherConfig{Source: wire.Source{Pool: testkit.Pool, Worker: "w", Rank: 0}}, deafBus{},
		slog.New(slog.DiscardHandler))
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
