package events

import (
	"log/slog"
	"runtime"
	"testing"

	"github.com/nats-io/nats.go"
)

// benchChain is n blocks of 16 tokens in a chain that begins with base.
func benchChain(base uint32, n int) Event {
	e := Event{Kind: Stored, BlockSize: 16, Medium: "GPU"}
	for i := range n {
		e.Hashes = append(e.Hashes, Hash(uint64(base)<<32+uint64(i)+1)*0x9e3779b97f4a7c15)
		for j := range 16 {
			e.Tokens = append(e.Tokens, (base*7919+uint32(i*16+j)*591)%150_000)
		}
	}
	return e
}

// BenchmarkApply goes from an engine's bytes to the index: prompts of 128 blocks come, and the one that came 256
// prompts before goes.
func BenchmarkApply(b *testing.B) {
	const prompts, blocks = 512, 128
	var stored, removed [prompts][]byte
	for i := range prompts {
		e := benchChain(uint32(i), blocks)
		stored[i] = AppendBatch(nil, &Batch{Events: []Event{e}})
		removed[i] = AppendBatch(nil, &Batch{Events: []Event{{Kind: Removed, Hashes: e.Hashes, Medium: "GPU"}}})
	}
	v, _, _ := newTestView(16)
	var batch Batch
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		for _, payload := range [][]byte{stored[n%prompts], removed[(n+prompts/2)%prompts]} {
			if err := DecodeBatch(&batch, payload); err != nil {
				b.Fatal(err)
			}
			v.Apply(batch.Events)
		}
		n++
	}
	b.ReportMetric(2*blocks*float64(b.N)/b.Elapsed().Seconds(), "blocks/s")
}

// BenchmarkSnapshot tells a full cache of 671,000 tokens: first the copying, which holds the publisher up, then the
// encoding, which does not.
func BenchmarkSnapshot(b *testing.B) {
	const chains, blocks = 82, 512
	heap := func() uint64 {
		var s runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&s)
		return s.HeapAlloc
	}
	before := heap()
	m := newMirror()
	for i := range chains {
		m.apply([]Event{benchChain(uint32(i), blocks)})
	}
	perBlock := float64(heap()-before) / (chains * blocks)
	b.Run("copy", func(b *testing.B) {
		for b.Loop() {
			m.image()
		}
		b.ReportMetric(perBlock, "mirror-B/block")
	})
	b.Run("encode", func(b *testing.B) {
		bytes := 0
		for b.Loop() {
			p := packer{limit: 512 << 10}
			m.image().tell(&p)
			bytes = 0
			for _, page := range p.out {
				bytes += len(page)
			}
		}
		b.ReportMetric(float64(bytes), "snapshot-B")
	})
	runtime.KeepAlive(m)
}

// deafBus takes messages and drops them, so that a benchmark sees the publisher alone.
type deafBus struct{ Bus }

func (deafBus) Publish(*nats.Msg) error { return nil }

// BenchmarkPublish numbers, encodes, mirrors and sends one message: a prompt of 128 blocks is stored, and the next
// removes the one that came 256 prompts before.
func BenchmarkPublish(b *testing.B) {
	const prompts, blocks = 512, 128
	var stored, removed [prompts][]Event
	for i := range prompts {
		e := benchChain(uint32(i), blocks)
		stored[i] = []Event{e}
		removed[i] = []Event{{Kind: Removed, Hashes: e.Hashes, Medium: "GPU"}}
	}
	p, err := NewPublisher(PublisherConfig{Source: Source{testPool, "w", 0}}, deafBus{}, slog.New(slog.DiscardHandler))
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
	e := benchChain(1, 1)
	pair := [2][]Event{{e}, {{Kind: Removed, Hashes: e.Hashes, Medium: "GPU"}}}
	p, err := NewPublisher(PublisherConfig{Source: Source{testPool, "w", 0}}, deafBus{}, slog.New(slog.DiscardHandler))
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

// BenchmarkPublishStream is BenchmarkPublishSmall into a stream on disk, by as many as may be on the way at once.
func BenchmarkPublishStream(b *testing.B) {
	server, err := StartEmbeddedNATS(EmbeddedNATSConfig{JetStream: true, Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	defer server.Close()
	nc, err := nats.Connect(server.URL())
	if err != nil {
		b.Fatal(err)
	}
	defer nc.Close()
	bus, err := OverStream(nc, StreamConfig{}, PendingLimits{}, slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	defer bus.Close()
	e := benchChain(1, 1)
	pair := [2][]Event{{e}, {{Kind: Removed, Hashes: e.Hashes, Medium: "GPU"}}}
	p, err := NewPublisher(PublisherConfig{Source: Source{testPool, "w", 0}}, bus, slog.New(slog.DiscardHandler))
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
		for bus.js.PublishAsyncPending() >= bus.cfg.MaxPending {
			runtime.Gosched()
		}
		if err := p.Publish(pair[n%2]); err != nil {
			b.Fatal(err)
		}
		n++
	}
	b.ReportMetric(float64(bus.Stats().Failed-before.Failed), "failed")
}
