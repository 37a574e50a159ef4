package events

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
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
				t.Fatalf("seed %d: %d messages of %d bytes, counted %d, in a ring of %d and %d", seed, len(r.messages), size, r.bytes, r.maxMessages, r.maxBytes)
			}
			from, until, limit := uint64(rng.IntN(int(seq)+3)), uint64(rng.IntN(int(seq)+3)), 1+rng.IntN(200)
			got, ok := r.run(from, until, limit)
			oldest := seq - uint64(len(r.messages)) + 1
			if want := from >= oldest && from <= seq+1; ok != want {
				t.Fatalf("seed %d: run from %d of %d to %d: %v", seed, from, oldest, seq, ok)
			}
			if !ok {
				continue
			}
			if n := len(appendRun(nil, got)); n > limit && len(got) > 1 {
				t.Fatalf("seed %d: %d bytes, may be %d", seed, n, limit)
			}
			if from <= seq && len(got) == 0 {
				t.Fatalf("seed %d: nothing from %d, though %d is kept", seed, from, seq)
			}
			read, err := readRun(nil, appendRun(nil, got))
			if err != nil || len(read) != len(got) {
				t.Fatalf("seed %d: %d read of %d, %v", seed, len(read), len(got), err)
			}
			for i, m := range read {
				if n := from + uint64(i); !bytes.Equal(m, all[n-1]) || until >= from && n > until {
					t.Fatalf("seed %d: message %d of a run from %d to %d is another", seed, n, from, until)
				}
			}
		}
	}
}

func TestHostileRuns(t *testing.T) {
	for _, data := range [][]byte{{0}, {5, 1, 2}, {0xff}, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 1}, {1, 1, 0}} {
		if got, err := readRun(nil, data); err == nil {
			t.Errorf("%v is read as %v", data, got)
		}
	}
	message := AppendBatch(nil, &Batch{Events: []Event{{Kind: Cleared}}})
	page := func(epoch, seq uint64, status string, data []byte) *nats.Msg {
		m := nats.NewMsg("")
		stamp(m, epoch, seq)
		m.Header.Set(HeaderStatus, status)
		m.Data = data
		return m
	}
	one, two := appendRun(nil, [][]byte{message}), appendRun(nil, [][]byte{message, message})
	for _, c := range []struct {
		name    string
		answers []*nats.Msg
		want    string
	}{
		{"all at once", []*nats.Msg{page(1, 5, StatusRing, two)}, "2 messages from 5"},
		{"page by page", []*nats.Msg{page(1, 5, StatusRing, one), page(1, 6, StatusRing, one)}, "2 messages from 5"},
		{"more than was asked for", []*nats.Msg{page(1, 5, StatusRing, append(two, one...))}, "3 messages from 5"},
		{"nothing", []*nats.Msg{page(1, 5, StatusRing, nil)}, "0 messages from 5"},
		{"no end", []*nats.Msg{page(1, 5, StatusRing, one), page(1, 6, StatusRing, nil)}, "1 messages from 5"},
		{"a snapshot", []*nats.Msg{page(1, 9, "", []byte{1})}, "snapshot at 9"},
		{"a snapshot in the middle", []*nats.Msg{page(1, 5, StatusRing, one), page(1, 9, "", []byte{1})}, "snapshot at 9"},
		{"another epoch", []*nats.Msg{page(2, 5, StatusRing, two)}, "error"},
		{"other numbers", []*nats.Msg{page(1, 6, StatusRing, two)}, "error"},
		{"the same page again", []*nats.Msg{page(1, 5, StatusRing, one)}, "error"},
		{"cut short", []*nats.Msg{page(1, 5, StatusRing, two[:len(two)-1])}, "error"},
		{"no numbers", []*nats.Msg{{Header: nats.Header{HeaderStatus: {StatusRing}}}}, "error"},
		{"too much", []*nats.Msg{page(1, 5, StatusRing, bytes.Repeat(one, 1000))}, "error"},
	} {
		got := "error"
		a, err := fetcher{&scriptedBus{answers: c.answers}, time.Second, 1000}.fetch(t.Context(), Source{testPool, "w", 0}, want{epoch: 1, from: 5, until: 6})
		switch {
		case err != nil:
		case a.run != nil:
			got = fmt.Sprintf("%d messages from %d", len(a.run.messages), a.run.first)
		default:
			got = fmt.Sprintf("snapshot at %d", a.snapshot.seq)
		}
		if got != c.want {
			t.Errorf("%s: %s, %v; want %s", c.name, got, err, c.want)
		}
	}
}

// dropBus loses all event messages while it is told to.
type dropBus struct {
	Bus
	drop atomic.Bool
}

func (b *dropBus) Publish(m *nats.Msg) error {
	if _, err := ParseEventsSubject(m.Subject); err == nil && b.drop.Load() {
		return nil
	}
	return b.Bus.Publish(m)
}

// gapRig is a live worker that has lost some messages on the way, not yet found out.
func gapRig(t *testing.T, lost int, cfg PublisherConfig, subBus func(Bus) Bus) (*rig, *fakeEngine, *Publisher) {
	memory := NewMemoryBus()
	t.Cleanup(memory.Close)
	bus := &dropBus{Bus: memory}
	r := newRig(t, SubscriberConfig{}, bus, subBus(memory))
	g := newFakeEngine(1, 16)
	cfg.Source = Source{testPool, "w", 0}
	p, _ := r.publisher(cfg)
	r.sub.Track(testPool, "w", []int{0}, 16, 0)
	synctest.Wait()
	for range 20 {
		if err := p.Publish([]Event{g.store(3)}); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Wait()
	if !r.settled(g, p, "w") {
		t.Fatalf("not live: %+v", r.status("w"))
	}
	bus.drop.Store(true)
	for range lost {
		if err := p.Publish([]Event{g.store(3)}); err != nil {
			t.Fatal(err)
		}
	}
	bus.drop.Store(false)
	return r, g, p
}

func same(b Bus) Bus { return b }

func TestGapIsHealedOutOfTheRing(t *testing.T) {
	for _, c := range []struct {
		name     string
		lost     int
		cfg      PublisherConfig
		ring, in uint64 // healed by the ring, and the requests it took
		snapshot uint64
	}{
		{"one message", 1, PublisherConfig{}, 1, 1, 0},
		{"many, in pages", 60, PublisherConfig{MaxBytes: 4096}, 1, 0, 0},
		{"more than the ring holds", 60, PublisherConfig{RingMessages: 50}, 0, 0, 1},
		{"as many as it holds", 49, PublisherConfig{RingMessages: 50}, 1, 1, 0},
		{"more bytes than it holds", 60, PublisherConfig{RingBytes: 2000}, 0, 0, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			r, g, p := gapRig(t, c.lost, c.cfg, same)
			before, answers := r.status("w"), p.Stats()
			if err := p.Publish([]Event{g.store(1)}); err != nil { // this one arrives and shows the gap
				t.Fatal(err)
			}
			synctest.Wait()
			if !r.settled(g, p, "w") {
				t.Fatalf("%s: not healed at once: %+v", c.name, r.status("w"))
			}
			s := r.status("w")
			byRing, bySnapshot := s.Healed[ByRing]-before.Healed[ByRing], s.Healed[BySnapshot]-before.Healed[BySnapshot]
			if byRing != c.ring || bySnapshot != c.snapshot || p.Stats().Snapshots-answers.Snapshots != c.snapshot {
				t.Errorf("%s: healed %d times by the ring and %d by a snapshot, want %d and %d", c.name, byRing, bySnapshot, c.ring, c.snapshot)
			}
			if n := p.Stats().Rings - answers.Rings; c.in != 0 && n != c.in || c.cfg.MaxBytes != 0 && n < 2 {
				t.Errorf("%s: it took %d requests", c.name, n)
			}
			if n := valueOf(r.sub.metrics.healed.WithLabelValues(testPool, "ring")); n != float64(s.Healed[ByRing]) {
				t.Errorf("%s: counted %v, want %d", c.name, n, s.Healed[ByRing])
			}
		})
	}
}

// plainBus has requests say nothing but which page is wanted, as subscribers of before did: what a publisher of before
// reads of a request.
type plainBus struct{ Bus }

func (b plainBus) Request(ctx context.Context, m *nats.Msg) (*nats.Msg, error) {
	plain := nats.NewMsg(m.Subject)
	if cursor := m.Header.Get(HeaderCursor); cursor != "" {
		plain.Header.Set(HeaderCursor, cursor)
	}
	return b.Bus.Request(ctx, plain)
}

func TestPublisherWithoutRingGivesASnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, g, p := gapRig(t, 5, PublisherConfig{}, func(b Bus) Bus { return plainBus{b} })
		if err := p.Publish([]Event{g.store(1)}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if s := r.status("w"); !r.settled(g, p, "w") || s.Healed[ByRing] != 0 || p.Stats().Rings != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// A run that is under way when the cache is cleared, or when another process begins, changes nothing.
func TestRunIsOvertaken(t *testing.T) {
	g := newFakeEngine(1, 16)
	var payloads [][]byte // by number, from 1
	for range 9 {
		payloads = append(payloads, AppendBatch(nil, &Batch{Events: []Event{g.store(1)}}))
	}
	clear := AppendBatch(nil, &Batch{Events: []Event{{Kind: Cleared}}})
	now := time.Unix(1e9, 0)
	for _, c := range []struct {
		name      string
		meanwhile func(f *follower)
		taken     bool
		seq       uint64
		blocks    int
	}{
		{"nothing", func(*follower) {}, true, 6, 6},
		{"cleared", func(f *follower) { f.message(1, 7, clear, now, time.Second) }, false, 7, 0},
		{"cleared in the middle of it", func(f *follower) { f.message(1, 4, clear, now, time.Second) }, true, 6, 2},
		{"began anew", func(f *follower) { f.message(2, 1, payloads[0], now, time.Second) }, false, 1, 1},
		{"arrived late", func(f *follower) {
			for n := uint64(3); n <= 6; n++ {
				f.message(1, n, payloads[n-1], now, time.Second)
			}
		}, false, 6, 6},
	} {
		_, idx, _ := newTestView(16)
		f := newFollower(Source{testPool, "w", 0}, idx, 16, 0, new(Batch), newMetrics(nil, nil).pool(testPool))
		for n := uint64(1); n <= 2; n++ {
			f.message(1, n, payloads[n-1], now, time.Second)
		}
		f.message(1, 6, payloads[5], now, time.Second)
		w := f.missing()
		if w != (want{epoch: 1, from: 3, until: 5}) {
			t.Fatalf("%s: %+v is asked for", c.name, w)
		}
		c.meanwhile(f)
		taken := f.rerun(f.flow.horizon(), &run{epoch: 1, first: w.from, messages: slices.Clone(payloads[2:5])}, now, time.Second)
		if taken != c.taken || f.flow.Seq() != c.seq || f.view.Blocks() != c.blocks {
			t.Errorf("%s: taken %v, at %d with %d blocks; want %v, %d, %d", c.name, taken, f.flow.Seq(), f.view.Blocks(), c.taken, c.seq, c.blocks)
		}
	}
}

// A number that no publisher has used cannot be had: it is asked for, but not without end.
func TestWhatDoesNotExistIsNotAskedForWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus := NewMemoryBus()
		t.Cleanup(bus.Close)
		r := newRig(t, SubscriberConfig{}, bus, bus)
		p, _ := r.publisher(PublisherConfig{Source: Source{testPool, "w", 0}})
		r.sub.Track(testPool, "w", []int{0}, 16, 0)
		synctest.Wait()
		forged := nats.NewMsg(Source{testPool, "w", 0}.EventsSubject())
		stamp(forged, p.Epoch(), 1000)
		asked := p.Stats().Messages
		if err := bus.Publish(forged); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute) // virtual
		synctest.Wait()
		if n := p.Stats().Messages - asked; n > 60+40 {
			t.Errorf("%d messages in a minute, 60 of them heartbeats", n)
		}
	})
}

func TestRingBoundsAreChecked(t *testing.T) {
	for _, cfg := range []PublisherConfig{{RingMessages: -1}, {RingBytes: -1}} {
		cfg.Source = Source{testPool, "w", 0}
		if _, err := NewPublisher(cfg, NewMemoryBus(), slog.New(slog.DiscardHandler)); err == nil {
			t.Errorf("%+v is accepted", cfg)
		}
	}
}
