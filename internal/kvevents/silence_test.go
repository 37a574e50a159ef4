package kvevents

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
	"github.com/tandem-pd/tandem/internal/kvevents/eventstest"
	"github.com/tandem-pd/tandem/internal/kvevents/follow"
	"github.com/tandem-pd/tandem/internal/kvevents/publish"
	"github.com/tandem-pd/tandem/internal/kvevents/wire"
)

// awayBus is a bus whose connection goes and comes: nothing passes while it is away.
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
func quietRig(t *testing.T, cfg follow.Config) (*rig, *eventstest.Engine, *publish.Publisher, func(), *awayBus, *dropBus) {
	memory := eventstest.NewBus()
	t.Cleanup(memory.Close)
	drop, away := &dropBus{Bus: memory}, &awayBus{Bus: memory}
	r := newRig(t, cfg, drop, away)
	g := eventstest.NewEngine(1, 16)
	p, stop := r.publisher(publish.Config{Source: wire.Source{Pool: eventstest.Pool, Worker: "w", Rank: 0}})
	r.sub.Track(eventstest.Pool, "w", []int{0}, 16, 0)
	if err := p.Publish([]wire.Event{g.Store(5)}); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
	if !r.settled(g, p, "w") {
		t.Fatalf("not live: %+v", r.status("w"))
	}
	return r, g, p, stop, away, drop
}

func TestPublisherDiesWithoutAWord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, g, _, stop, _, _ := quietRig(t, follow.Config{})
		stop()
		heard := r.status("w").Heard
		time.Sleep(4 * time.Second)
		if s := r.status("w"); s.State != follow.Live {
			t.Errorf("after four seconds: %v", s.State)
		}
		time.Sleep(3 * time.Second)
		if s := r.status("w"); s.State != follow.Silent || !s.Heard.Equal(heard) {
			t.Errorf("after seven seconds: %v, heard %v ago", s.State, time.Since(s.Heard))
		}
		checkIndex(t, g, r.idx.Of("w", 0)) // routing goes on with what is known
		time.Sleep(time.Minute)
		if s := r.status("w"); s.State != follow.Predicted {
			t.Errorf("after a minute: %v", s.State)
		}

		again := eventstest.NewEngine(2, 16)
		p, _ := r.publisher(publish.Config{Source: wire.Source{Pool: eventstest.Pool, Worker: "w", Rank: 0}})
		if err := p.Publish([]wire.Event{again.Store(2)}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if !r.settled(again, p, "w") {
			t.Errorf("the next process is not followed: %+v", r.status("w"))
		}
	})
}

func TestStateHoldsUntilThePublisherSpeaks(t *testing.T) {
	for _, c := range []struct {
		name   string
		silent time.Duration
		lost   int
		state  follow.State
		ring   uint64
	}{
		{"silent, nothing missed", 20 * time.Second, 0, follow.Silent, 0},
		{"silent, and messages missed", 20 * time.Second, 3, follow.Silent, 1},
		{"predicted, nothing missed", 2 * time.Minute, 0, follow.Predicted, 0},
		{"predicted, and messages missed", 2 * time.Minute, 3, follow.Predicted, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			r, g, p, _, away, drop := quietRig(t, follow.Config{})
			before, asked := r.status("w"), away.asked.Load()
			drop.drop.Store(true)
			for range c.lost {
				if err := p.Publish([]wire.Event{g.Store(2)}); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(c.silent)
			synctest.Wait()
			if s := r.status("w"); s.State != c.state || away.asked.Load() != asked {
				t.Errorf("%s: %v, %d requests", c.name, s.State, away.asked.Load()-asked)
			}
			drop.drop.Store(false)
			time.Sleep(time.Second) // the next heartbeat
			synctest.Wait()
			s := r.status("w")
			if !r.settled(g, p, "w") || s.Repaired[follow.ByRing] != before.Repaired[follow.ByRing]+c.ring || s.Repaired[follow.BySnapshot] != before.Repaired[follow.BySnapshot] {
				t.Errorf("%s: %+v", c.name, s)
			}
		})
	}
}

// While the bus is away nobody can be heard, so that nobody is given up and nobody is asked, however long it takes.
func TestBusAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, g, p, _, away, _ := quietRig(t, follow.Config{})
		asked, before := away.asked.Load(), r.status("w").Repaired[follow.ByRing]
		away.away.Store(true)
		time.Sleep(1500 * time.Millisecond)
		if s := r.status("w"); s.State != follow.Silent {
			t.Errorf("soon after: %v", s.State)
		}
		if err := p.Publish([]wire.Event{g.Store(3)}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Minute)
		if s := r.status("w"); s.State != follow.Silent || away.asked.Load() != asked {
			t.Errorf("ten minutes later: %v, %d requests", s.State, away.asked.Load()-asked)
		}
		if n := r.idx.Of("w", 0).Blocks(); n != 5 {
			t.Errorf("%d blocks, want the five that are known", n)
		}
		away.away.Store(false)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if s := r.status("w"); !r.settled(g, p, "w") || s.Repaired[follow.ByRing] != before+1 {
			t.Errorf("not whole: %+v", s)
		}
	})
}

// A publisher that does not come back with the bus is given up a minute after the bus came back, not at once.
func TestBusComesBackAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _, _, stop, away, _ := quietRig(t, follow.Config{SilentAfter: 2 * time.Second, PredictAfter: 20 * time.Second})
		away.away.Store(true)
		stop()
		time.Sleep(time.Hour)
		away.away.Store(false)
		time.Sleep(19 * time.Second)
		if s := r.status("w"); s.State != follow.Silent {
			t.Errorf("%v", s.State)
		}
		time.Sleep(3 * time.Second)
		if s := r.status("w"); s.State != follow.Predicted {
			t.Errorf("%v", s.State)
		}
	})
}

func TestWorkerThatNeverSpeaksIsPredicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := eventstest.NewBus()
		t.Cleanup(bus.Close)
		r := newRig(t, follow.Config{}, bus, bus)
		r.sub.Track(eventstest.Pool, "w", []int{0}, 16, 0)
		time.Sleep(59 * time.Second)
		if s := r.status("w"); s.State != follow.Waiting || !s.Heard.IsZero() {
			t.Errorf("%+v", s)
		}
		time.Sleep(3 * time.Second)
		if s := r.status("w"); s.State != follow.Predicted {
			t.Errorf("%+v", s)
		}
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

// count is how many lines have said text.
func (l *logLines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}

// The log has one line when a worker is lost and one when it is whole again, and none for what the bus does to all.
func TestLogSaysWhoIsLostAndWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := eventstest.NewBus()
		t.Cleanup(memory.Close)
		drop, away := &dropBus{Bus: memory}, &awayBus{Bus: memory}
		lines := &logLines{}
		states := 0
		r := newRigWithLog(t, follow.Config{OnState: func() { states++ }}, drop, away, slog.New(slog.NewTextHandler(lines, nil)))
		_, _ = r.publisher(publish.Config{Source: wire.Source{Pool: eventstest.Pool, Worker: "w", Rank: 0}})
		r.sub.Track(eventstest.Pool, "w", []int{0}, 16, 0)
		expect := func(when string, silent, lost, whole, again int) {
			t.Helper()
			synctest.Wait()
			for text, want := range map[string]int{"no KV events received": silent, "KV events lost": lost, "KV events repaired": whole, "KV events received again": again} {
				if n := lines.count(text); n != want {
					t.Errorf("%s: %d lines %q, want %d", when, n, text, want)
				}
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
		if states < 8 {
			t.Errorf("%d changes were told", states)
		}
	})
}
