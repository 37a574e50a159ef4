package natsbus

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/kv/wire"
)

// Heartbeats that are ahead of the stream wait, but not any number of them.
func TestEarlyBeatsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handed := 0
		f := &following{early: map[string]earlyBeat{}, beat: func(*nats.Msg) { handed++ }, read: wire.Position{Stream: 1, Seq: 5}}
		beat := func(worker int) {
			m := nats.NewMsg(wire.Source{Pool: "m/prefill", Worker: fmt.Sprint("w", worker), Rank: 0}.BeatSubject())
			m.Header.Set(wire.HeaderStream, wire.Position{Stream: 1, Seq: 1 << 60}.String())
			f.take(m)
		}
		for i := range 2 * maxEarly {
			beat(i)
		}
		assert.True(t, len(f.early) == maxEarly && handed == maxEarly, "%d wait, %d were handed on", len(f.early), handed)
		time.Sleep(beatPatience)
		beat(3 * maxEarly)
		assert.Len(t, f.early, 1, "wait after their time")
	})
}

func TestStreamIsMadeOrLeftAlone(t *testing.T) {
	for _, c := range []struct {
		name string
		cfg  jetstream.StreamConfig
		fits bool
	}{
		{"as made here", jetstream.StreamConfig{Subjects: []string{wire.AllEvents}}, true},
		{"in memory, for a day", jetstream.StreamConfig{Subjects: []string{wire.AllEvents}, Storage: jetstream.MemoryStorage,
			MaxAge: 24 * time.Hour}, true},
		{"token by token", jetstream.StreamConfig{Subjects: []string{"tandem.kv.*.*.*", "other.>"}}, true},
		{"other subjects", jetstream.StreamConfig{Subjects: []string{"other.>"}}, false},
		{"all of tandem", jetstream.StreamConfig{Subjects: []string{"tandem.>"}, NoAck: true}, false},
		{"a work queue", jetstream.StreamConfig{Subjects: []string{wire.AllEvents}, Retention: jetstream.WorkQueuePolicy}, false},
		{"no acknowledgements", jetstream.StreamConfig{Subjects: []string{wire.AllEvents}, NoAck: true}, false},
	} {
		server, err := StartServer(ServerConfig{JetStream: true,
			Dir: t.TempDir()}) // a server may fail to make a stream right after another was deleted
		require.NoError(t, err)
		t.Cleanup(server.Close)
		nc, err := nats.Connect(server.URL())
		require.NoError(t, err)
		t.Cleanup(nc.Close)
		js, err := jetstream.New(nc)
		require.NoError(t, err)
		c.cfg.Name = "KV"
		stream, err := js.CreateStream(t.Context(), c.cfg)
		require.NoError(t, err, c.name)
		want := stream.CachedInfo().Config
		s, err := OverStream(nc, StreamConfig{Name: c.cfg.Name, MaxAge: time.Minute}, PendingLimits{}, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		t.Cleanup(s.Close)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		err = s.find(ctx, false)
		cancel()
		assert.True(t, (err == nil) == c.fits && (err == nil || errors.Is(err, errStreamUnfit)), "%s: %v", c.name, err)
		info, err := stream.Info(t.Context())
		if err != nil || info.Config.MaxAge != want.MaxAge || info.Config.Storage != want.Storage ||
			len(info.Config.Subjects) != len(want.Subjects) {
			t.Errorf("%s: it was changed: %+v, %v", c.name, info.Config, err)
		}
	}
}
