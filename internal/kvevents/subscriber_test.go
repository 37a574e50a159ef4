package kvevents

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/tandem-pd/tandem/internal/contain"
	"github.com/tandem-pd/tandem/internal/kvevents/eventstest"
	"github.com/tandem-pd/tandem/internal/kvevents/follow"
	"github.com/tandem-pd/tandem/internal/kvevents/publish"
	"github.com/tandem-pd/tandem/internal/kvevents/wire"
)

// TestAPanicLosesNoSource: a fault in a source's message ends the handling of it alone, and every source is followed on from its beginning.
func TestAPanicLosesNoSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := eventstest.NewBus()
		t.Cleanup(bus.Close)
		r, before := newRig(t, follow.Config{}, bus, bus), contain.Panics()["kv_events"]
		workers := []string{"a", "b"}
		engines, publishers := map[string]*eventstest.Engine{}, map[string]*publish.Publisher{}
		for i, w := range workers {
			engines[w] = eventstest.NewEngine(uint64(i), 16)
			publishers[w], _ = r.publisher(publish.Config{Source: wire.Source{Pool: eventstest.Pool, Worker: w, Rank: 0}, MaxBytes: 4096})
			r.sub.Track(eventstest.Pool, w, []int{0}, 16, 0)
		}
		for i := range 200 {
			if i%50 == 25 {
				r.idx.faults.Store(2)
			}
			if w := workers[i%2]; publishers[w].Publish(engines[w].Step()) != nil {
				t.Fatal("not published")
			}
			time.Sleep(50 * time.Millisecond) // virtual
		}
		for _, w := range workers {
			within(t, 30*time.Minute, 50*time.Millisecond, w+" settles", func() bool { return r.settled(engines[w], publishers[w], w) })
		}
		if n := contain.Panics()["kv_events"] - before; n < 4 {
			t.Errorf("%d panics", n)
		}
	})
}

func TestLastMessageLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := eventstest.NewBus()
		t.Cleanup(memory.Close)
		bus := &lossyBus{Bus: memory, Rng: rand.New(rand.NewPCG(1, 1))}
		r := newRig(t, follow.Config{}, bus, memory)
		g := eventstest.NewEngine(1, 16)
		p, _ := r.publisher(publish.Config{Source: wire.Source{Pool: eventstest.Pool, Worker: "w", Rank: 0}})
		r.sub.Track(eventstest.Pool, "w", []int{0}, 16, 0)
		synctest.Wait()
		bus.Chance = 100
		if err := p.Publish(g.Step()); err != nil {
			t.Fatal(err)
		}
		bus.Chance = 0
		synctest.Wait()
		if r.settled(g, p, "w") {
			t.Fatal("the message was not lost")
		}
		within(t, 2*time.Second, 10*time.Millisecond, "the next heartbeat tells", func() bool { return r.settled(g, p, "w") })
	})
}

func TestPublisherRestartDropsOldView(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := eventstest.NewBus()
		t.Cleanup(bus.Close)
		r := newRig(t, follow.Config{}, bus, bus)
		r.sub.Track(eventstest.Pool, "w", []int{0}, 16, 0)
		before := eventstest.NewEngine(1, 16)
		p, stop := r.publisher(publish.Config{Source: wire.Source{Pool: eventstest.Pool, Worker: "w", Rank: 0}})
		for range 50 {
			if err := p.Publish(before.Step()); err != nil {
				t.Fatal(err)
			}
		}
		within(t, 10*time.Second, 10*time.Millisecond, "live", func() bool { return r.settled(before, p, "w") })
		late := nats.NewMsg(wire.Source{Pool: eventstest.Pool, Worker: "w", Rank: 0}.EventsSubject())
		wire.Stamp(late, p.Epoch(), p.Stats().Seq+1)
		late.Data = wire.AppendBatch(nil, &wire.Batch{Events: []wire.Event{before.Store(1)}})
		stop()

		after := eventstest.NewEngine(2, 16)
		p, _ = r.publisher(publish.Config{Source: wire.Source{Pool: eventstest.Pool, Worker: "w", Rank: 0}})
		synctest.Wait()
		if n := r.idx.Of("w", 0).Blocks(); n != 0 {
			t.Errorf("%d blocks of the engine that is gone", n)
		}
		if err := p.Publish([]wire.Event{after.Store(3)}); err != nil {
			t.Fatal(err)
		}
		if err := bus.Publish(late); err != nil { // the last words of the old one
			t.Fatal(err)
		}
		synctest.Wait()
		checkIndex(t, after, r.idx.Of("w", 0))
		within(t, 30*time.Second, 10*time.Millisecond, "live again", func() bool { return r.settled(after, p, "w") })
	})
}

func TestSubscriberStartsAfterPublisher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := eventstest.NewBus()
		t.Cleanup(bus.Close)
		r := newRig(t, follow.Config{}, bus, bus)
		g := eventstest.NewEngine(3, 16)
		p, _ := r.publisher(publish.Config{Source: wire.Source{Pool: eventstest.Pool, Worker: "w", Rank: 0}, MaxBytes: 4096})
		for range 100 {
			if err := p.Publish(g.Step()); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if len(r.sub.Sources()) != 0 || r.idx.Of("w", 0).Blocks() != 0 {
			t.Error("a worker is followed that is not tracked")
		}
		r.sub.Track(eventstest.Pool, "w", []int{0}, 16, 0)
		synctest.Wait()
		if !r.settled(g, p, "w") {
			t.Errorf("not live at once: %+v", r.status("w"))
		}

		r.sub.Untrack(eventstest.Pool, "w")
		synctest.Wait()
		if r.idx.Has("w", 0) || len(r.sub.Sources()) != 0 {
			t.Error("an untracked worker is still there")
		}
	})
}

// A worker that is tracked again at once is another process, of which nothing was heard yet.
func TestTrackedAgainIsEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := eventstest.NewBus()
		t.Cleanup(bus.Close)
		r := newRig(t, follow.Config{}, bus, bus)
		r.sub.Track(eventstest.Pool, "w", []int{0}, 16, 0)
		g := eventstest.NewEngine(3, 16)
		p, stop := r.publisher(publish.Config{Source: wire.Source{Pool: eventstest.Pool, Worker: "w", Rank: 0}})
		for range 100 {
			if err := p.Publish(g.Step()); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(10500 * time.Millisecond) // virtual, between two heartbeats: a snapshot that was requested too early is requested again
		synctest.Wait()
		if !r.settled(g, p, "w") || r.idx.Of("w", 0).Blocks() == 0 {
			t.Fatalf("not live: %+v", r.status("w"))
		}
		stop() // it has died: no message of it will come
		synctest.Wait()
		r.sub.Untrack(eventstest.Pool, "w")
		r.sub.Track(eventstest.Pool, "w", []int{0}, 16, 0)
		synctest.Wait()
		if s := r.status("w"); r.idx.Of("w", 0).Blocks() != 0 || s.State != follow.Waiting {
			t.Errorf("%d blocks of the life before are believed: %+v", r.idx.Of("w", 0).Blocks(), s)
		}
	})
}

func TestWorkerWithoutPublisherWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := eventstest.NewBus()
		t.Cleanup(bus.Close)
		r := newRig(t, follow.Config{}, bus, bus)
		r.sub.Track(eventstest.Pool, "w", []int{0}, 16, 0)
		time.Sleep(time.Minute) // virtual: it has come to the longest pause between attempts
		if s := r.status("w"); s.State != follow.Waiting {
			t.Fatalf("%+v", s)
		}
		asked := r.counted("kv_events_snapshots_total", "unanswered")
		if asked < 12 || asked > 40 {
			t.Errorf("asked %v times in a minute", asked)
		}
		g := eventstest.NewEngine(1, 16)
		p, _ := r.publisher(publish.Config{Source: wire.Source{Pool: eventstest.Pool, Worker: "w", Rank: 0}})
		synctest.Wait()
		if !r.settled(g, p, "w") {
			t.Errorf("the first heartbeat did not do: %+v", r.status("w"))
		}
	})
}

func TestTrackAgainChangesRanks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := eventstest.NewBus()
		t.Cleanup(bus.Close)
		r := newRig(t, follow.Config{}, bus, bus)
		ranks := func() (out []int) {
			synctest.Wait()
			for _, s := range r.sub.Sources() {
				out = append(out, s.Source.Rank)
			}
			return out
		}
		for _, want := range [][]int{{0}, {0, 1, 2}, {0, 1, 2}, {1}} {
			r.sub.Track(eventstest.Pool, "w", want, 16, 0)
			got := ranks()
			if len(got) != len(want) || got[0] != want[0] {
				t.Errorf("ranks %v, want %v", got, want)
			}
		}
		if r.idx.Has("w", 0) {
			t.Error("rank 0 is still indexed")
		}
	})
}

func TestOrphanIsMendedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := eventstest.NewBus()
		t.Cleanup(bus.Close)
		r := newRig(t, follow.Config{}, bus, bus)
		p, _ := r.publisher(publish.Config{Source: wire.Source{Pool: eventstest.Pool, Worker: "w", Rank: 0}})
		r.sub.Track(eventstest.Pool, "w", []int{0}, 16, 0)
		synctest.Wait()
		for i := range 100 { // the engine itself does not know the parents: no snapshot can mend this
			orphan := wire.Event{Kind: wire.Stored, Hashes: []wire.Hash{wire.Hash(i)}, Parent: 1e6, HasParent: true, Tokens: eventstest.IDs(i, 16), BlockSize: 16}
			if err := p.Publish([]wire.Event{orphan}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Millisecond) // virtual
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if s := r.status("w"); s.State != follow.Live || s.Snapshots < 2 || s.Snapshots > 4 {
			t.Errorf("%+v, want live after the first snapshot and some 10 s apart", s)
		}
	})
}

// askPage asks for one page of a snapshot.
func askPage(t *testing.T, bus wire.Bus, source wire.Source, cursor string) (*nats.Msg, error) {
	m := nats.NewMsg(source.SnapshotSubject())
	if cursor != "" {
		m.Header.Set(wire.HeaderCursor, cursor)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	return bus.Request(ctx, m)
}

func TestSnapshotPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := eventstest.NewBus()
		t.Cleanup(bus.Close)
		r := newRig(t, follow.Config{}, bus, bus)
		p, _ := r.publisher(publish.Config{Source: wire.Source{Pool: eventstest.Pool, Worker: "w", Rank: 0}})
		for i := range 40 { // some 3 MB
			e := wire.Event{Kind: wire.Stored, Tokens: eventstest.IDs(1e5*(i+1), 800*16), BlockSize: 16}
			for j := range 800 {
				e.Hashes = append(e.Hashes, wire.Hash(i*800+j)<<32)
			}
			if err := p.Publish([]wire.Event{e}); err != nil {
				t.Fatal(err)
			}
		}
		source := wire.Source{Pool: eventstest.Pool, Worker: "w", Rank: 0}
		first, err := askPage(t, bus, source, "")
		if err != nil {
			t.Fatal(err)
		}
		cursor := first.Header.Get(wire.HeaderCursor)
		// The engine goes on, and the second page is still of the first one's moment.
		if err := p.Publish([]wire.Event{{Kind: wire.Cleared}}); err != nil {
			t.Fatal(err)
		}
		second, err := askPage(t, bus, source, cursor)
		if err != nil {
			t.Fatal(err)
		}
		if len(first.Data) > 1<<20 || len(second.Data) > 1<<20 || len(second.Data) == 0 {
			t.Errorf("pages of %d and %d bytes", len(first.Data), len(second.Data))
		}
		if a, b := first.Header.Get(wire.HeaderSeq), second.Header.Get(wire.HeaderSeq); a != b {
			t.Errorf("pages as of %s and %s", a, b)
		}
		none, err := askPage(t, bus, source, "")
		if err != nil || none.Header.Get(wire.HeaderSeq) != fmt.Sprint(p.Stats().Seq) || len(none.Data) != 0 || none.Header.Get(wire.HeaderCursor) != "" {
			t.Errorf("a snapshot of nothing: %+v, %v", none, err)
		}

		time.Sleep(12 * time.Second) // virtual: longer than pages are kept
		gone, err := askPage(t, bus, source, cursor)
		if err != nil || gone.Header.Get(wire.HeaderStatus) != wire.StatusGone {
			t.Errorf("pages are kept for ever: %v, %v", gone.Header, err)
		}
		for _, cursor := range []string{"x", "1-x", "1--1", "9-9", "1-999999", "-"} {
			m, err := askPage(t, bus, source, cursor)
			if err != nil || m.Header.Get(wire.HeaderStatus) != wire.StatusGone {
				t.Errorf("cursor %q: %v, %v", cursor, m.Header, err)
			}
		}
	})
}

func TestSnapshotOfManyPagesIsApplied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := eventstest.NewBus()
		t.Cleanup(bus.Close)
		r := newRig(t, follow.Config{}, bus, bus)
		g := eventstest.NewEngine(1, 16)
		p, _ := r.publisher(publish.Config{Source: wire.Source{Pool: eventstest.Pool, Worker: "w", Rank: 0}, MaxBytes: 32 << 10})
		for range 400 {
			if err := p.Publish([]wire.Event{g.Store(20)}); err != nil {
				t.Fatal(err)
			}
		}
		r.sub.Track(eventstest.Pool, "w", []int{0}, 16, 0)
		synctest.Wait()
		if !r.settled(g, p, "w") || r.status("w").Snapshots != 1 {
			t.Errorf("%+v", r.status("w"))
		}
	})
}

func TestHostileMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := eventstest.NewBus()
		t.Cleanup(bus.Close)
		r := newRig(t, follow.Config{}, bus, bus)
		g := eventstest.NewEngine(1, 16)
		p, _ := r.publisher(publish.Config{Source: wire.Source{Pool: eventstest.Pool, Worker: "w", Rank: 0}})
		r.sub.Track(eventstest.Pool, "w", []int{0}, 16, 0)
		synctest.Wait()
		subject := wire.Source{Pool: eventstest.Pool, Worker: "w", Rank: 0}.EventsSubject()
		for _, m := range []*nats.Msg{
			{Subject: subject, Data: []byte("x")},
			{Subject: subject, Header: nats.Header{wire.HeaderEpoch: {"x"}, wire.HeaderSeq: {"1"}}},
			{Subject: subject, Header: nats.Header{wire.HeaderEpoch: {"0"}, wire.HeaderSeq: {"1"}}},
			{Subject: subject, Header: nats.Header{wire.HeaderEpoch: {"1"}, wire.HeaderSeq: {"-1"}}},
			{Subject: "tandem.kv.a.b.c.d"},
			{Subject: "tandem.kv.a"},
			{Subject: wire.Source{Pool: eventstest.Pool, Worker: "w", Rank: 0}.SnapshotSubject()}, // a request that wants no answer
		} {
			if err := bus.Publish(m); err != nil {
				t.Fatal(err)
			}
		}
		// Bytes that are no batch take the number all the same: only a snapshot can tell what they were.
		bad := nats.NewMsg(subject)
		wire.Stamp(bad, p.Epoch(), 1)
		bad.Data = []byte{0xc1}
		if err := bus.Publish(bad); err != nil {
			t.Fatal(err)
		}
		if err := p.Publish([]wire.Event{g.Store(4)}); err != nil { // the publisher's own number 1: stale now
			t.Fatal(err)
		}
		within(t, 30*time.Second, 10*time.Millisecond, "healed", func() bool { return r.settled(g, p, "w") })
	})
}

func TestConfigsAreChecked(t *testing.T) {
	bus := eventstest.NewBus()
	t.Cleanup(bus.Close)
	log := slog.New(slog.DiscardHandler)
	source := wire.Source{Pool: eventstest.Pool, Worker: "w", Rank: 0}
	for _, cfg := range []publish.Config{
		{}, {Source: wire.Source{Pool: "", Worker: "w", Rank: 0}}, {Source: wire.Source{Pool: eventstest.Pool, Worker: "w", Rank: -1}}, {Source: source, MaxBytes: 100},
		{Source: source, MaxBytes: 2 << 20}, {Source: source, Heartbeat: -1}, {Source: source, KeepPages: -1},
	} {
		if _, err := publish.New(cfg, bus, log); err == nil {
			t.Errorf("%+v is accepted", cfg)
		}
	}
	for _, cfg := range []follow.Config{
		{PageTimeout: -1}, {RetryMin: -1}, {RetryMin: 2, RetryMax: 1}, {Concurrency: -1}, {MaxSnapshotBytes: -1},
	} {
		if _, err := follow.New(cfg, bus, nil, log, nil); err == nil {
			t.Errorf("%+v is accepted", cfg)
		}
	}
}
