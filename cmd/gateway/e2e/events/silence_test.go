package events

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/kv/follow"
	"github.com/tandem-pd/tandem/kv/view"
	"github.com/tandem-pd/tandem/kv/wire"
)

// awayBus is a bus that disconnects and reconnects: nothing passes in between.
type awayBus struct {
	wire.Bus
	away  atomic.Bool
	asked atomic.Int64
}

func (b *awayBus) Connected() bool { return !b.away.Load() }

func (b *awayBus) Subscribe(subject string, handle func(*nats.Msg), slow func(int)) (func(), error) {
	return b.Bus.Subscribe(subject, func(m *nats.Msg) {
		if !b.away.Load() {
			handle(m)
		}
	}, slow)
}

func (b *awayBus) Request(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	b.asked.Add(1)
	if b.away.Load() {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return b.Bus.Request(ctx, m)
}

// quietRig is a live worker, on a bus that can be away for the subscriber and lose for the publisher.
func quietRig(t *testing.T, cfg follow.Config) (*rig, *speaker, *awayBus, *dropBus) {
	memory := memoryBus(t)
	drop, away := &dropBus{Bus: memory}, &awayBus{Bus: memory}
	r := newRig(t, cfg, drop, away)
	p := r.speaks(1, view.PublisherConfig{})
	r.track("w")
	p.publishEvents(p.Store(5))
	synctest.Wait()
	require.True(t, r.follows(p), "%+v", r.status("w"))
	return r, p, away, drop
}

// is fails the test unless the worker is in a state.
func (r *rig) is(worker string, want follow.State, when string) {
	r.t.Helper()
	assert.Equal(r.t, want, r.status(worker).State, when)
}

func TestStateHoldsUntilThePublisherSpeaks(t *testing.T) {
	for _, c := range []struct {
		name   string
		silent time.Duration
		lost   int
		state  follow.State
		ring   uint64
	}{
		{"soon after, nothing missed", 4 * time.Second, 0, follow.Live, 0},
		{"late, nothing missed", 7 * time.Second, 0, follow.Silent, 0},
		{"silent, and messages missed", 20 * time.Second, 3, follow.Silent, 1},
		{"predicted, nothing missed", 2 * time.Minute, 0, follow.Predicted, 0},
		{"predicted, and messages missed", 2 * time.Minute, 3, follow.Predicted, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			r, p, away, drop := quietRig(t, follow.Config{})
			before, asked := r.status("w"), away.asked.Load()
			drop.lost(p, c.lost)
			drop.drop.Store(true)
			time.Sleep(c.silent)
			synctest.Wait()
			r.is("w", c.state, c.name)
			assert.Equal(t, before.LastSeen, r.status("w").LastSeen)
			assert.Equal(t, before.Blocks, r.idx.Of("w", 0).Blocks(), "routing goes on with what is known: %s", c.name)
			assert.Equal(t, asked, away.asked.Load(), "requests: %s", c.name)
			drop.drop.Store(false)
			time.Sleep(time.Second) // the next heartbeat
			synctest.Wait()
			s := r.status("w")
			if !r.follows(p) || s.Repaired[follow.ByRing] != before.Repaired[follow.ByRing]+c.ring ||
				s.Repaired[follow.BySnapshot] != before.Repaired[follow.BySnapshot] {
				t.Errorf("%s: %+v", c.name, s)
			}
		})
	}
}

// While the bus is down no worker is given up and none gets a request, however long it takes.
func TestBusAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, p, away, _ := quietRig(t, follow.Config{})
		asked, before := away.asked.Load(), r.status("w").Repaired[follow.ByRing]
		away.away.Store(true)
		time.Sleep(1500 * time.Millisecond)
		r.is("w", follow.Silent, "soon after")
		p.publishEvents(p.Store(3))
		time.Sleep(10 * time.Minute)
		r.is("w", follow.Silent, "ten minutes later")
		assert.Equal(t, asked, away.asked.Load(), "requests")
		assert.Equal(t, 5, r.idx.Of("w", 0).Blocks(), "the blocks that are known")
		away.away.Store(false)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		s := r.status("w")
		assert.True(t, r.follows(p) && s.Repaired[follow.ByRing] == before+1, "not whole: %+v", s)
	})
}

// A publisher that does not return with the bus is given up a minute after the bus, not at once.
func TestBusReconnectsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, p, away, _ := quietRig(t, follow.Config{SilentAfter: 2 * time.Second, PredictAfter: 20 * time.Second})
		away.away.Store(true)
		p.stop()
		time.Sleep(time.Hour)
		away.away.Store(false)
		time.Sleep(19 * time.Second)
		r.is("w", follow.Silent, "before its time")
		time.Sleep(3 * time.Second)
		r.is("w", follow.Predicted, "after it")
	})
}

// logLines is a log's lines.
type logLines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logLines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// count is how many lines contain text.
func (l *logLines) count(text string) int {
	return strings.Count(l.String(), text)
}

// The log has one line when a worker is lost and one when it is whole again, and none for what the bus does to all.
func TestLogNamesLostAndRepairedWorkers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := memoryBus(t)
		drop, away := &dropBus{Bus: memory}, &awayBus{Bus: memory}
		lines := &logLines{}
		states := 0
		r := newRigWithLog(t, follow.Config{OnState: func() { states++ }}, drop, away, slog.New(slog.NewTextHandler(lines, nil)))
		r.speaks(1, view.PublisherConfig{})
		r.track("w")
		expect := func(when string, silent, lost, whole, again int) {
			t.Helper()
			synctest.Wait()
			for text, want := range map[string]int{"no KV events received": silent, "KV events lost": lost, "KV events repaired": whole,
				"KV events received again": again} {
				assert.Equal(t, want, lines.count(text), "%s lines %q", when, text)
			}
		}
		time.Sleep(time.Second)
		expect("live", 0, 0, 0, 0)
		away.away.Store(true)
		time.Sleep(time.Minute)
		away.away.Store(false)
		time.Sleep(2 * time.Second)
		expect("the bus was away", 0, 0, 0, 0)
		drop.drop.Store(true)
		time.Sleep(10 * time.Second)
		drop.drop.Store(false)
		time.Sleep(2 * time.Second)
		expect("silent for a while", 1, 0, 0, 1)
		drop.drop.Store(true)
		time.Sleep(5 * time.Minute)
		expect("silent for long", 2, 1, 0, 1)
		drop.drop.Store(false)
		time.Sleep(2 * time.Second)
		expect("and back", 2, 1, 1, 1)
		assert.GreaterOrEqual(t, states, 8, "changes were reported")
	})
}
