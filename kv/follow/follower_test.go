package follow

import (
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/lab/testkit"
)

var rank0 = wire.Source{Pool: testkit.Pool, Worker: "w"}

// sourced is what followers of rank0 share. They index it in part.
func sourced(part *testkit.Part, blockSize, capacity int, cfg Config, m *counters) *source {
	return newSource(rank0, part, tracked{blockSize: blockSize, capacity: capacity}, &cfg, new(wire.Batch), m.pool(testkit.Pool),
		slog.New(slog.DiscardHandler))
}

// followed follows a publisher, by hand.
func followed(every time.Duration) *natsSource {
	return newNATSSource(sourced(&testkit.Part{}, 16, 0, Config{SnapshotEvery: every}, newMetrics(nil, nil)))
}

// A run that is under way when the cache is cleared, or when another process begins, changes nothing.
func TestRunIsOvertaken(t *testing.T) {
	g := testkit.NewEngine(1, 16)
	var payloads [][]byte // by number, from 1
	for range 9 {
		payloads = append(payloads, wire.AppendBatch(nil, &wire.Batch{Events: []wire.Event{g.Store(1)}}))
	}
	clear := wire.AppendBatch(nil, &wire.Batch{Events: []wire.Event{{Kind: wire.Cleared}}})
	now := time.Unix(1e9, 0)
	for _, c := range []struct {
		name      string
		meanwhile func(f *natsSource)
		taken     bool
		seq       uint64
		blocks    int
	}{
		{"nothing", func(*natsSource) {}, true, 6, 6},
		{"cleared", func(f *natsSource) { f.message(1, 7, clear, false, now) }, false, 7, 0},
		{"cleared in the middle of it", func(f *natsSource) { f.message(1, 4, clear, false, now) }, true, 6, 2},
		{"restarted", func(f *natsSource) { f.message(2, 1, payloads[0], false, now) }, false, 1, 1},
		{"arrived late", func(f *natsSource) {
			for n := uint64(3); n <= 6; n++ {
				f.message(1, n, payloads[n-1], false, now)
			}
		}, false, 6, 6},
	} {
		f := followed(time.Second)
		for n := uint64(1); n <= 2; n++ {
			f.message(1, n, payloads[n-1], false, now)
		}
		f.message(1, 6, payloads[5], false, now)
		w := f.missing()
		require.True(t, w == (want{epoch: 1, from: 3, until: 5}), "%s: %+v is asked for", c.name, w)
		c.meanwhile(f)
		taken := f.rerun(f.flow.horizon(), &wire.Run{Epoch: 1, First: w.from, Messages: slices.Clone(payloads[2:5])}, now)
		if taken != c.taken || f.flow.seq != c.seq || f.view.Blocks() != c.blocks {
			t.Errorf("%s: taken %v, at %d with %d blocks; want %v, %d, %d", c.name, taken, f.flow.seq, f.view.Blocks(), c.taken, c.seq, c.blocks)
		}
	}
}

// What a stream has of a process that came before the present one changes nothing.
func TestStreamNeverTakesTheViewBack(t *testing.T) {
	f := followed(time.Second)
	s := &Subscriber{followers: map[string]follower{f.name.EventsSubject(): f}, metrics: newMetrics(nil, nil),
		log: slog.New(slog.DiscardHandler)}
	now, engines := time.Unix(1e9, 0), uint64(0)
	send := func(epoch, seq, at uint64, data []byte) {
		m := nats.NewMsg(f.name.EventsSubject())
		if data == nil {
			m.Subject = f.name.BeatSubject()
		}
		wire.Stamp(m, epoch, seq)
		m.Header.Set(wire.HeaderStream, wire.Position{Stream: 7, Seq: at}.String())
		m.Data = data
		s.take(m, now)
	}
	batch := func() []byte {
		engines++
		return wire.AppendBatch(nil, &wire.Batch{Events: []wire.Event{testkit.NewEngine(engines, 16).Store(1)}})
	}
	send(3, 0, 100, nil) // the present process, which has said nothing yet, after a hundred messages of others
	for at := uint64(91); at <= 100; at++ {
		send(1+at/96, 1+at%96, at, batch())
		require.True(t, f.flow.epoch == 3 && f.view.Blocks() == 0,
			"message %d of the stream takes the view to epoch %d, %d blocks", at, f.flow.epoch, f.view.Blocks())
	}
	send(3, 1, 101, batch())
	send(3, 2, 102, batch())
	send(3, 1, 101, batch())
	assert.True(t, f.flow.seq == 2 && f.view.Blocks() == 2 && !f.wants(), "at %d with %d blocks", f.flow.seq, f.view.Blocks())
	if f.recall(&wire.Run{Epoch: 2, First: 1, Messages: [][]byte{batch()}, At: wire.Position{Stream: 7, Seq: 99}}, now) || f.flow.epoch != 3 {
		t.Error("the history of a process before is taken in")
	}
	send(4, 0, 102, nil) // the next process, which has said nothing yet either
	assert.True(t, f.flow.epoch == 4 && f.view.Blocks() == 0, "epoch %d, %d blocks", f.flow.epoch, f.view.Blocks())
}

// A snapshot of where messages have brought the view meanwhile is no repair, unless one is wanted.
func TestSnapshotOfCurrentState(t *testing.T) {
	now := time.Unix(1e9, 0)
	g := testkit.NewEngine(1, 16)
	first := wire.AppendBatch(nil, &wire.Batch{Events: []wire.Event{g.Store(1)}})
	for _, c := range []struct {
		name      string
		meanwhile func(f *natsSource)
		taken     bool
	}{
		{"all messages came", func(*natsSource) {}, false},
		{"another message is reported", func(f *natsSource) { f.message(1, 2, nil, false, now) }, true},
		{"a message could not be read", func(f *natsSource) { f.message(1, 2, []byte{0}, false, now) }, true},
	} {
		f := followed(time.Second)
		asked := f.flow.horizon()
		f.message(1, 1, first, false, now)
		c.meanwhile(f)
		require.Equal(t, c.taken, f.wants(), "%s: a repair is wanted", c.name)
		s := &snapshot{epoch: 1, seq: f.flow.seq, pages: [][]byte{first}}
		assert.True(t, f.restore(asked, s, now) == c.taken && (f.status().Snapshots > 0) == c.taken && f.view.Blocks() == 1,
			"%s: %+v", c.name, f.status())
	}
}

// Over a stream a heartbeat has the last number that the stream took: it lags while messages are on their way. No
// snapshot is asked for then, unless the lag stays.
func TestHeartbeatsMayLagBehindAStream(t *testing.T) {
	for _, durable := range []bool{true, false} {
		f := followed(10 * time.Second)
		now := time.Unix(1e9, 0)
		beat := func(seq, at uint64) {
			m := nats.NewMsg(f.name.EventsSubject())
			wire.Stamp(m, 1, seq)
			if durable {
				m.Header.Set(wire.HeaderStream, wire.Position{Stream: 7, Seq: at}.String())
			}
			_, err := f.take(m, now)
			require.NoError(t, err)
		}
		beat(0, 1)
		f.restore(f.flow.horizon(), &snapshot{epoch: 1, seq: 1000}, now)
		beat(100, 101)
		require.NotEqual(t, durable, f.wants(), "durable X: a repair is wanted")
		now = now.Add(9 * time.Second)
		beat(1000, 1001)
		beat(100, 1002)
		now = now.Add(9 * time.Second)
		beat(100, 1003)
		assert.NotEqual(t, durable, f.wants(), "durable X: a repair is wanted within the time")
		now = now.Add(2 * time.Second)
		beat(100, 1004)
		assert.True(t, f.wants(), "durable %v: a publisher that stays behind is not asked", durable)
	}
}
