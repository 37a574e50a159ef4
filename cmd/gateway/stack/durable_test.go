package stack

import (
	"context"
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/kvevents/follow"
	"github.com/tandem-pd/tandem/internal/kvevents/natsbus"
	"github.com/tandem-pd/tandem/internal/kvevents/publish"
	"github.com/tandem-pd/tandem/internal/kvevents/wire"
	"github.com/tandem-pd/tandem/router/feed"
	"github.com/tandem-pd/tandem/router/index"
)

// TestEmbeddedStreamOutlivesTheGateway: what a worker said is in embed-dir when
// the embedded NATS is started there again.
func TestEmbeddedStreamOutlivesTheGateway(t *testing.T) {
	dir := t.TempDir()
	source := wire.Source{Pool: "m/both", Worker: "w"}
	log := slog.New(slog.DiscardHandler)
	start := func() (*natsbus.Stream, func()) {
		inside, err := Embed(EmbedConfig{Dir: dir, JetStream: true})
		require.NoError(t, err)
		links, unlink, err := Connect(&Discovery{NATSURL: inside.NATSURL()}, &natsbus.StreamConfig{}, log, nats.Name("test"))
		require.NoError(t, err)
		return links.Bus.(*natsbus.Stream), func() { unlink(); inside.Close() }
	}

	bus, stop := start()
	published := []wire.Event{{Kind: wire.Stored, Hashes: []wire.Hash{7}, Tokens: make([]uint32, 16), BlockSize: 16}}
	publisher := func(source wire.Source) *publish.Publisher {
		p, err := publish.New(publish.Config{Source: source}, bus, log)
		require.NoError(t, err)
		return p
	}
	probe := publisher(wire.Source{Pool: "m/both", Worker: "probe"})
	until(t, "the stream is there", func() bool {
		switch now := bus.Stats(); {
		case now.Pending > 0:
			return false
		case now.Acked > 0:
			return true
		}
		_ = probe.Publish(published) // the stream takes nothing before it is made
		return false
	})
	p, before := publisher(source), bus.Stats().Acked
	require.NoError(t, p.Publish(published))
	until(t, "the stream has it", func() bool { return bus.Stats().Acked > before })
	stop()
	assert.DirExists(t, filepath.Join(dir, "nats", "jetstream"))

	// The worker is gone: the stream alone can tell.
	bus, stop = start()
	idx := index.New(index.Config{})
	sub, err := follow.New(follow.Config{}, bus, feed.Into(func(string) *index.Index { return idx }), log, nil)
	require.NoError(t, err)
	sub.Track(source.Pool, source.Worker, []int{0}, 16, 0)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- sub.Run(ctx) }()
	defer func() {
		cancel()
		assert.NoError(t, <-ended)
		stop()
	}()
	until(t, "the view is read from the stream", func() bool {
		all := sub.Sources()
		return len(all) == 1 && all[0].Epoch == p.Epoch() && all[0].Blocks == 1 && all[0].Repaired[follow.ByStream] == 1
	})
}
