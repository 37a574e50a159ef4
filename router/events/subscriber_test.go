package events

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
)

func TestIndexEqualsEnginesUnderLoss(t *testing.T) {
	for seed := range uint64(12) {
		synctest.Test(t, func(t *testing.T) {
			memory := NewMemoryBus()
			t.Cleanup(memory.Close)
			bus := &lossyBus{Bus: memory, chance: 15, rng: rand.New(rand.NewPCG(seed, 5))}
			r := newRig(t, SubscriberConfig{Seed: seed}, bus, bus)
			workers := []string{"a", "b", "c"}
			engines := map[string]*fakeEngine{}
			publishers := map[string]*Publisher{}
			for i, w := range workers {
				engines[w] = newFakeEngine(seed*10+uint64(i), 16)
				publishers[w], _ = r.publisher(PublisherConfig{Source: Source{testPool, w, 0}, MaxBytes: 4096})
				r.sub.Track(testPool, w, []int{0}, 16, 0)
			}
			pace := rand.New(rand.NewPCG(seed, 6))
			for range 400 {
				w := workers[pace.IntN(len(workers))]
				if err := publishers[w].Publish(engines[w].step()); err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Duration(pace.IntN(20)) * time.Millisecond) // virtual
			}
			var gaps, runs uint64
			for _, w := range workers {
				// Of a snapshot's eight requests all must get through: three
				// attempts in four fail, each after some seconds of virtual time.
				within(t, 30*time.Minute, 50*time.Millisecond, fmt.Sprintf("seed %d: worker %s settles", seed, w), func() bool {
					return r.settled(engines[w], publishers[w], w)
				})
				s := r.status(w)
				gaps, runs = gaps+s.Gaps, runs+s.Healed[ByRing]
			}
			if bus.losses == 0 || gaps == 0 || runs == 0 {
				t.Errorf("seed %d: %d losses, %d gaps, %d healed by the ring: nothing was tried", seed, bus.losses, gaps, runs)
			}
		})
	}
}

func TestLastMessageLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := NewMemoryBus()
		t.Cleanup(memory.Close)
		bus := &lossyBus{Bus: memory, rng: rand.New(rand.NewPCG(1, 1))}
		r := newRig(t, SubscriberConfig{}, bus, memory)
		g := newFakeEngine(1, 16)
		p, _ := r.publisher(PublisherConfig{Source: Source{testPool, "w", 0}})
		r.sub.Track(testPool, "w", []int{0}, 16, 0)
		synctest.Wait()
		bus.chance = 100
		if err := p.Publish(g.step()); err != nil {
			t.Fatal(err)
		}
		bus.chance = 0
		synctest.Wait()
		if r.settled(g, p, "w") {
			t.Fatal("the message was not lost")
		}
		within(t, 2*time.Second, 10*time.Millisecond, "the next heartbeat tells", func() bool { return r.settled(g, p, "w") })
	})
}

func TestPublisherRestartDropsOldView(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := NewMemoryBus()
		t.Cleanup(bus.Close)
		r := newRig(t, SubscriberConfig{}, bus, bus)
		r.sub.Track(testPool, "w", []int{0}, 16, 0)
		before := newFakeEngine(1, 16)
		p, stop := r.publisher(PublisherConfig{Source: Source{testPool, "w", 0}})
		for range 50 {
			if err := p.Publish(before.step()); err != nil {
				t.Fatal(err)
			}
		}
		within(t, 10*time.Second, 10*time.Millisecond, "live", func() bool { return r.settled(before, p, "w") })
		late := nats.NewMsg(Source{testPool, "w", 0}.EventsSubject())
		stamp(late, p.Epoch(), p.Stats().Seq+1)
		late.Data = AppendBatch(nil, &Batch{Events: []Event{before.store(1)}})
		stop()

		after := newFakeEngine(2, 16)
		p, _ = r.publisher(PublisherConfig{Source: Source{testPool, "w", 0}})
		synctest.Wait()
		if n := r.idx.Blocks(r.idx.Owner("w", 0)); n != 0 {
			t.Errorf("%d blocks of the engine that is gone", n)
		}
		if err := p.Publish([]Event{after.store(3)}); err != nil {
			t.Fatal(err)
		}
		if err := bus.Publish(late); err != nil { // the last words of the old one
			t.Fatal(err)
		}
		synctest.Wait()
		after.checkIndex(t, r.idx, r.idx.Owner("w", 0), 16)
		within(t, 30*time.Second, 10*time.Millisecond, "live again", func() bool { return r.settled(after, p, "w") })
	})
}

func TestSubscriberStartsAfterPublisher(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := NewMemoryBus()
		t.Cleanup(bus.Close)
		r := newRig(t, SubscriberConfig{}, bus, bus)
		g := newFakeEngine(3, 16)
		p, _ := r.publisher(PublisherConfig{Source: Source{testPool, "w", 0}, MaxBytes: 4096})
		for range 100 {
			if err := p.Publish(g.step()); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if len(r.sub.Sources()) != 0 || r.idx.Blocks(r.idx.Owner("w", 0)) != 0 {
			t.Error("a worker is followed that is not tracked")
		}
		r.sub.Track(testPool, "w", []int{0}, 16, 0)
		synctest.Wait()
		if !r.settled(g, p, "w") {
			t.Errorf("not live at once: %+v", r.status("w"))
		}

		r.sub.Untrack(testPool, "w")
		synctest.Wait()
		if _, found := r.idx.Lookup("w", 0); found || len(r.sub.Sources()) != 0 {
			t.Error("an untracked worker is still there")
		}
	})
}

func TestWorkerWithoutPublisherWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := NewMemoryBus()
		t.Cleanup(bus.Close)
		r := newRig(t, SubscriberConfig{}, bus, bus)
		r.sub.Track(testPool, "w", []int{0}, 16, 0)
		time.Sleep(time.Minute) // virtual: it has come to the longest pause between attempts
		if s := r.status("w"); s.State != Waiting {
			t.Fatalf("%+v", s)
		}
		asked := valueOf(r.sub.metrics.snapshots.WithLabelValues(testPool, "unanswered"))
		if asked < 12 || asked > 40 {
			t.Errorf("asked %v times in a minute", asked)
		}
		g := newFakeEngine(1, 16)
		p, _ := r.publisher(PublisherConfig{Source: Source{testPool, "w", 0}})
		synctest.Wait()
		if !r.settled(g, p, "w") {
			t.Errorf("the first heartbeat did not do: %+v", r.status("w"))
		}
	})
}

func TestTrackAgainChangesRanks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := NewMemoryBus()
		t.Cleanup(bus.Close)
		r := newRig(t, SubscriberConfig{}, bus, bus)
		ranks := func() (out []int) {
			synctest.Wait()
			for _, s := range r.sub.Sources() {
				out = append(out, s.Source.Rank)
			}
			return out
		}
		for _, want := range [][]int{{0}, {0, 1, 2}, {0, 1, 2}, {1}} {
			r.sub.Track(testPool, "w", want, 16, 0)
			got := ranks()
			if len(got) != len(want) || got[0] != want[0] {
				t.Errorf("ranks %v, want %v", got, want)
			}
		}
		if _, found := r.idx.Lookup("w", 0); found {
			t.Error("rank 0 is still indexed")
		}
	})
}

func TestOrphanIsMendedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := NewMemoryBus()
		t.Cleanup(bus.Close)
		r := newRig(t, SubscriberConfig{}, bus, bus)
		p, _ := r.publisher(PublisherConfig{Source: Source{testPool, "w", 0}})
		r.sub.Track(testPool, "w", []int{0}, 16, 0)
		synctest.Wait()
		for i := range 100 { // the engine itself does not know the parents: no snapshot can mend this
			orphan := Event{Kind: Stored, Hashes: []Hash{Hash(i)}, Parent: 1e6, HasParent: true, Tokens: ids(i, 16), BlockSize: 16}
			if err := p.Publish([]Event{orphan}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(100 * time.Millisecond) // virtual
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if s := r.status("w"); s.State != Live || s.Snapshots < 2 || s.Snapshots > 4 {
			t.Errorf("%+v, want live after the first snapshot and some 10 s apart", s)
		}
	})
}

// askPage asks for one page of a snapshot.
func askPage(t *testing.T, bus Bus, source Source, cursor string) (*nats.Msg, error) {
	m := nats.NewMsg(source.SnapshotSubject())
	if cursor != "" {
		m.Header.Set(HeaderCursor, cursor)
	}
	return fetcher{bus, time.Second, 1 << 30}.page(t.Context(), m)
}

func TestSnapshotPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := NewMemoryBus()
		t.Cleanup(bus.Close)
		r := newRig(t, SubscriberConfig{}, bus, bus)
		p, _ := r.publisher(PublisherConfig{Source: Source{testPool, "w", 0}})
		for i := range 40 { // some 3 MB
			e := Event{Kind: Stored, Tokens: ids(1e5*(i+1), 800*16), BlockSize: 16}
			for j := range 800 {
				e.Hashes = append(e.Hashes, Hash(i*800+j)<<32)
			}
			if err := p.Publish([]Event{e}); err != nil {
				t.Fatal(err)
			}
		}
		source := Source{testPool, "w", 0}
		first, err := askPage(t, bus, source, "")
		if err != nil {
			t.Fatal(err)
		}
		cursor := first.Header.Get(HeaderCursor)
		// The engine goes on, and the second page is still of the first one's moment.
		if err := p.Publish([]Event{{Kind: Cleared}}); err != nil {
			t.Fatal(err)
		}
		second, err := askPage(t, bus, source, cursor)
		if err != nil {
			t.Fatal(err)
		}
		if len(first.Data) > 1<<20 || len(second.Data) > 1<<20 || len(second.Data) == 0 {
			t.Errorf("pages of %d and %d bytes", len(first.Data), len(second.Data))
		}
		if a, b := first.Header.Get(HeaderSeq), second.Header.Get(HeaderSeq); a != b {
			t.Errorf("pages as of %s and %s", a, b)
		}
		snap, err := fetcher{bus, time.Second, 1 << 30}.snapshot(t.Context(), source, nil)
		if err != nil || snap.seq != p.Stats().Seq || len(snap.pages) != 0 {
			t.Errorf("a snapshot of nothing: %+v, %v", snap, err)
		}

		time.Sleep(12 * time.Second) // virtual: longer than pages are kept
		gone, err := askPage(t, bus, source, cursor)
		if err != nil || gone.Header.Get(HeaderStatus) != StatusGone {
			t.Errorf("pages are kept for ever: %v, %v", gone.Header, err)
		}
		for _, cursor := range []string{"x", "1-x", "1--1", "9-9", "1-999999", "-"} {
			m, err := askPage(t, bus, source, cursor)
			if err != nil || m.Header.Get(HeaderStatus) != StatusGone {
				t.Errorf("cursor %q: %v, %v", cursor, m.Header, err)
			}
		}
	})
}

func TestSnapshotOfManyPagesIsApplied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := NewMemoryBus()
		t.Cleanup(bus.Close)
		r := newRig(t, SubscriberConfig{}, bus, bus)
		g := newFakeEngine(1, 16)
		p, _ := r.publisher(PublisherConfig{Source: Source{testPool, "w", 0}, MaxBytes: 32 << 10})
		for range 400 {
			if err := p.Publish([]Event{g.store(20)}); err != nil {
				t.Fatal(err)
			}
		}
		r.sub.Track(testPool, "w", []int{0}, 16, 0)
		synctest.Wait()
		if !r.settled(g, p, "w") || r.status("w").Snapshots != 1 {
			t.Errorf("%+v", r.status("w"))
		}
	})
}

func TestKeptPagesAreBounded(t *testing.T) {
	bus := NewMemoryBus()
	t.Cleanup(bus.Close)
	p, err := NewPublisher(PublisherConfig{Source: Source{testPool, "w", 0}, MaxBytes: 4096, KeptPagesBytes: 300_000},
		bus, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	g := newFakeEngine(1, 16)
	now := time.Unix(1e9, 0)
	for range 60 {
		if err := p.Publish([]Event{g.store(20)}); err != nil {
			t.Fatal(err)
		}
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
	if len(p.pages) != 0 {
		t.Errorf("%d snapshots kept a minute later", len(p.pages))
	}
}

func TestHostileMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := NewMemoryBus()
		t.Cleanup(bus.Close)
		r := newRig(t, SubscriberConfig{}, bus, bus)
		g := newFakeEngine(1, 16)
		p, _ := r.publisher(PublisherConfig{Source: Source{testPool, "w", 0}})
		r.sub.Track(testPool, "w", []int{0}, 16, 0)
		synctest.Wait()
		subject := Source{testPool, "w", 0}.EventsSubject()
		for _, m := range []*nats.Msg{
			{Subject: subject, Data: []byte("x")},
			{Subject: subject, Header: nats.Header{HeaderEpoch: {"x"}, HeaderSeq: {"1"}}},
			{Subject: subject, Header: nats.Header{HeaderEpoch: {"0"}, HeaderSeq: {"1"}}},
			{Subject: subject, Header: nats.Header{HeaderEpoch: {"1"}, HeaderSeq: {"-1"}}},
			{Subject: "tandem.kv.a.b.c.d"},
			{Subject: "tandem.kv.a"},
			{Subject: Source{testPool, "w", 0}.SnapshotSubject()}, // a request that wants no answer
		} {
			if err := bus.Publish(m); err != nil {
				t.Fatal(err)
			}
		}
		// Bytes that are no batch take the number all the same: only a snapshot can tell what they were.
		bad := nats.NewMsg(subject)
		stamp(bad, p.Epoch(), 1)
		bad.Data = []byte{0xc1}
		if err := bus.Publish(bad); err != nil {
			t.Fatal(err)
		}
		if err := p.Publish([]Event{g.store(4)}); err != nil { // the publisher's own number 1: stale now
			t.Fatal(err)
		}
		within(t, 30*time.Second, 10*time.Millisecond, "healed", func() bool { return r.settled(g, p, "w") })
	})
}

func TestConfigsAreChecked(t *testing.T) {
	bus := NewMemoryBus()
	defer bus.Close()
	log := slog.New(slog.DiscardHandler)
	source := Source{testPool, "w", 0}
	for _, cfg := range []PublisherConfig{
		{}, {Source: Source{"", "w", 0}}, {Source: Source{testPool, "w", -1}}, {Source: source, MaxBytes: 100},
		{Source: source, MaxBytes: 2 << 20}, {Source: source, Heartbeat: -1}, {Source: source, KeepPages: -1},
	} {
		if _, err := NewPublisher(cfg, bus, log); err == nil {
			t.Errorf("%+v is accepted", cfg)
		}
	}
	for _, cfg := range []SubscriberConfig{
		{PageTimeout: -1}, {RetryMin: -1}, {RetryMin: 2, RetryMax: 1}, {Concurrency: -1}, {MaxSnapshotBytes: -1},
	} {
		if _, err := NewSubscriber(cfg, bus, nil, log, nil); err == nil {
			t.Errorf("%+v is accepted", cfg)
		}
	}
}

func TestFetchSnapshotFails(t *testing.T) {
	page := func(epoch, seq uint64, cursor, status string, data ...byte) *nats.Msg {
		m := nats.NewMsg("")
		stamp(m, epoch, seq)
		m.Header.Set(HeaderCursor, cursor)
		m.Header.Set(HeaderStatus, status)
		m.Data = data
		return m
	}
	for _, c := range []struct {
		name    string
		answers []*nats.Msg
		ok      bool
	}{
		{"one page", []*nats.Msg{page(1, 2, "", "", 1)}, true},
		{"two pages", []*nats.Msg{page(1, 2, "a", "", 1), page(1, 2, "", "", 2)}, true},
		{"gone once", []*nats.Msg{page(1, 2, "a", "", 1), page(1, 0, "", StatusGone), page(1, 3, "", "", 2)}, true},
		{"gone every time", []*nats.Msg{page(1, 0, "", StatusGone)}, false},
		{"pages of two moments", []*nats.Msg{page(1, 2, "a", "", 1), page(1, 3, "", "", 2)}, false},
		{"pages of two epochs", []*nats.Msg{page(1, 2, "a", "", 1), page(2, 2, "", "", 2)}, false},
		{"no numbers", []*nats.Msg{nats.NewMsg("")}, false},
		{"pages without end", []*nats.Msg{page(1, 2, "a", "", 1)}, false},
		{"empty pages without end", []*nats.Msg{page(1, 2, "a", "")}, false},
	} {
		bus := &scriptedBus{answers: c.answers}
		s, err := fetcher{bus, time.Second, 1000}.snapshot(t.Context(), Source{testPool, "w", 0}, nil)
		if (err == nil) != c.ok || c.ok && s.epoch != 1 {
			t.Errorf("%s: %+v, %v", c.name, s, err)
		}
	}
}
