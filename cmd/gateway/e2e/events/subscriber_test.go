package events

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/guard"
	"github.com/tandem-pd/tandem/internal/tokens"
	"github.com/tandem-pd/tandem/kv/follow"
	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/kv/view"
	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/kv/zmq"
	"github.com/tandem-pd/tandem/lab/testkit"
)

// TestAPanicLosesNoSource: a fault in a source's message ends the handling of it alone, and every source is followed on
// from its beginning.
func TestAPanicLosesNoSource(t *testing.T) {
	virtual(t, follow.Config{}, func(t *testing.T, r *rig) {
		before := guard.Panics()["kv_events"]
		var all []*speaker
		for i, w := range []string{"a", "b"} {
			all = append(all, r.speaks(uint64(i), view.PublisherConfig{Source: source(w), MaxBytes: 4096}))
			r.track(w)
		}
		for i := range 200 {
			if i%50 == 25 {
				r.idx.faults.Store(2)
			}
			all[i%2].publishSteps(1)
			time.Sleep(50 * time.Millisecond) // virtual
		}
		for _, p := range all {
			within(t, 30*time.Minute, 50*time.Millisecond, p.worker+" settles", func() bool { return r.follows(p) })
		}
		n := guard.Panics()["kv_events"] - before
		assert.True(t, n >= 4, "%d panics", n)
	})
}

func TestPublisherRestartDropsOldView(t *testing.T) {
	virtual(t, follow.Config{}, func(t *testing.T, r *rig) {
		r.track("w")
		before := r.speaks(1, view.PublisherConfig{})
		before.publishSteps(50)
		r.catchesUp(before, "live")
		late := nats.NewMsg(source("w").EventsSubject())
		wire.Stamp(late, before.Epoch(), before.Stats().Seq+1)
		late.Data = wire.AppendBatch(nil, &wire.Batch{Events: []wire.Event{before.Store(1)}})
		before.stop()

		after := r.speaks(2, view.PublisherConfig{})
		synctest.Wait()
		assert.Zero(t, r.idx.Of("w", 0).Blocks(), "blocks of the engine that is gone")
		after.publishEvents(after.Store(3))
		require.NoError(t, r.bus.Publish(late)) // the last words of the old one
		synctest.Wait()
		checkIndex(t, after.Engine, r.idx.Of("w", 0))
		r.catchesUp(after, "live again")
	})
}

// A worker that is tracked again at once is another process, without messages yet.
func TestTrackedAgainIsEmpty(t *testing.T) {
	virtual(t, follow.Config{}, func(t *testing.T, r *rig) {
		r.track("w")
		p := r.speaks(3, view.PublisherConfig{})
		p.publishSteps(100)
		time.Sleep(10500 * time.Millisecond) // virtual, between two heartbeats: a snapshot that was requested too early is requested again
		synctest.Wait()
		require.True(t, r.follows(p) && r.idx.Of("w", 0).Blocks() != 0, "not live: %+v", r.status("w"))
		p.stop() // it has died: no message of it will come
		synctest.Wait()
		r.sub.Untrack(testkit.Pool, "w")
		r.track("w")
		synctest.Wait()
		if s := r.status("w"); r.idx.Of("w", 0).Blocks() != 0 || s.State != follow.Waiting {
			t.Errorf("%d blocks of the life before are believed: %+v", r.idx.Of("w", 0).Blocks(), s)
		}
	})
}

// A silent worker gets requests ever more rarely, and is predicted after a minute, until its first heartbeat.
func TestWorkerWithoutPublisherWaits(t *testing.T) {
	virtual(t, follow.Config{}, func(t *testing.T, r *rig) {
		r.track("w")
		time.Sleep(59 * time.Second) // virtual: it has come to the longest pause between attempts
		s := r.status("w")
		assert.True(t, s.State == follow.Waiting && s.LastSeen.IsZero(), "%+v", s)
		asked := r.counted("kv_events_snapshots_total", "unanswered")
		assert.True(t, asked >= 12 && asked <= 40, "asked %v times in a minute", asked)
		time.Sleep(3 * time.Second)
		assert.Equal(t, follow.Predicted, r.status("w").State)
		p := r.speaks(1, view.PublisherConfig{})
		synctest.Wait()
		assert.True(t, r.follows(p), "the first heartbeat did not do: %+v", r.status("w"))
	})
}

// A worker is followed while it is tracked, a publisher that was there before at once, of the ranks that were named
// last.
func TestTrackAgainChangesRanks(t *testing.T) {
	virtual(t, follow.Config{}, func(t *testing.T, r *rig) {
		p := r.speaks(3, view.PublisherConfig{MaxBytes: 4096}) // a snapshot takes pages
		p.publishSteps(100)
		synctest.Wait()
		assert.Zero(t, r.idx.Of("w", 0).Blocks(), "a worker is followed that is not tracked")
		r.track("w")
		synctest.Wait()
		assert.True(t, r.follows(p) && r.status("w").Snapshots == 1, "not live at once: %+v", r.status("w"))
		for _, want := range [][]int{{0}, {0, 1, 2}, {0, 1, 2}, {1}} {
			r.sub.Track(testkit.Pool, "w", want, 16, 0)
			synctest.Wait()
			var got []int
			for _, s := range r.sub.Sources() {
				got = append(got, s.Source.Rank)
			}
			assert.ElementsMatch(t, want, got)
		}
		assert.False(t, r.idx.Has("w", 0), "rank 0 is still indexed")
		r.sub.Untrack(testkit.Pool, "w")
		synctest.Wait()
		assert.Empty(t, r.sub.Sources(), "an untracked worker is still there")
	})
}

func TestOrphanIsMendedOnce(t *testing.T) {
	virtual(t, follow.Config{}, func(t *testing.T, r *rig) {
		p := r.speaks(1, view.PublisherConfig{})
		r.track("w")
		synctest.Wait()
		for i := range 100 { // the engine itself does not know the parents: no snapshot can mend this
			p.publishEvents(wire.Event{Kind: wire.Stored, Hashes: []wire.Hash{wire.Hash(i)}, Parent: 1e6, HasParent: true,
				Tokens: testkit.IDs(i, 16), BlockSize: 16})
			time.Sleep(100 * time.Millisecond) // virtual
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if s := r.status("w"); s.State != follow.Live || s.Snapshots < 2 || s.Snapshots > 4 {
			t.Errorf("%+v, want live after the first snapshot and some 10 s apart", s)
		}
	})
}

func TestSnapshotPages(t *testing.T) {
	virtual(t, follow.Config{}, func(t *testing.T, r *rig) {
		p := r.speaks(1, view.PublisherConfig{})
		synctest.Wait()             // it has subscribed
		for i := range uint32(40) { // some 3 MB
			p.publishEvents(testkit.Chain(i, 800))
		}
		page := func(cursor string) *nats.Msg {
			t.Helper()
			m := nats.NewMsg(source("w").SnapshotSubject())
			m.Header.Set(wire.HeaderCursor, cursor)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			got, err := r.bus.Request(ctx, m)
			require.NoError(t, err)
			return got
		}
		first := page("")
		cursor := first.Header.Get(wire.HeaderCursor)
		// The engine continues, and the second page is still of the first one's moment.
		p.publishEvents(wire.Event{Kind: wire.Cleared})
		second := page(cursor)
		assert.True(t, len(first.Data) <= 1<<20 && len(second.Data) <= 1<<20 && len(second.Data) != 0,
			"pages of %d and %d bytes", len(first.Data), len(second.Data))
		assert.Equal(t, first.Header.Get(wire.HeaderSeq), second.Header.Get(wire.HeaderSeq), "the pages' moments")
		none := page("")
		if none.Header.Get(wire.HeaderSeq) != fmt.Sprint(p.Stats().Seq) || len(none.Data) != 0 || none.Header.Get(wire.HeaderCursor) != "" {
			t.Errorf("a snapshot of nothing: %+v", none)
		}
		time.Sleep(12 * time.Second) // virtual: longer than pages are kept
		for _, cursor := range []string{cursor, "x", "1-x", "1--1", "9-9", "1-999999", "-"} {
			assert.Equal(t, wire.StatusGone, page(cursor).Header.Get(wire.HeaderStatus), cursor)
		}
	})
}

func TestHostileMessages(t *testing.T) {
	virtual(t, follow.Config{}, func(t *testing.T, r *rig) {
		p := r.speaks(1, view.PublisherConfig{})
		r.track("w")
		synctest.Wait()
		subject := source("w").EventsSubject()
		for _, m := range []*nats.Msg{
			{Subject: subject, Data: []byte("x")},
			{Subject: subject, Header: nats.Header{wire.HeaderEpoch: {"x"}, wire.HeaderSeq: {"1"}}},
			{Subject: subject, Header: nats.Header{wire.HeaderEpoch: {"0"}, wire.HeaderSeq: {"1"}}},
			{Subject: subject, Header: nats.Header{wire.HeaderEpoch: {"1"}, wire.HeaderSeq: {"-1"}}},
			{Subject: "tandem.kv.a.b.c.d"},
			{Subject: "tandem.kv.a"},
			{Subject: source("w").SnapshotSubject()}, // a request that wants no answer
		} {
			require.NoError(t, r.bus.Publish(m))
		}
		// Bytes that are no batch take the number all the same: only a snapshot has their content.
		bad := nats.NewMsg(subject)
		wire.Stamp(bad, p.Epoch(), 1)
		bad.Data = []byte{0xc1}
		require.NoError(t, r.bus.Publish(bad))
		p.publishEvents(p.Store(4)) // the publisher's own number 1: stale now
		r.catchesUp(p, "healed")
	})
}

func TestConfigsAreChecked(t *testing.T) {
	bus, log := memoryBus(t), slog.New(slog.DiscardHandler)
	of := source("w")
	for _, cfg := range []view.PublisherConfig{
		{}, {Source: wire.Source{Worker: "w"}}, {Source: wire.Source{Pool: testkit.Pool, Worker: "w", Rank: -1}}, {Source: of, MaxBytes: 100},
		{Source: of, MaxBytes: 2 << 20}, {Source: of, Heartbeat: -1}, {Source: of, KeepPages: -1}, {Source: of, RingMessages: -1},
		{Source: of, RingBytes: -1},
	} {
		_, err := view.NewPublisher(cfg, bus, log)
		assert.Error(t, err, "%+v", cfg)
	}
	for name, spoil := range map[string]func(c *follow.BridgeConfig){
		"": func(*follow.BridgeConfig) {}, "ranks": func(c *follow.BridgeConfig) { c.Ranks = 0 },
		"block size": func(c *follow.BridgeConfig) { c.BlockSize = 0 },
		"endpoint":   func(c *follow.BridgeConfig) { c.From.Endpoint = "" }, "worker": func(c *follow.BridgeConfig) { c.Worker = "" },
	} {
		cfg := follow.BridgeConfig{Pool: testkit.Pool, Worker: "w", Ranks: 1, BlockSize: 16, From: zmq.Address{Endpoint: "tcp://h:1"}}
		spoil(&cfg)
		_, err := follow.NewBridge(cfg, bus, log, nil)
		assert.Equal(t, name != "", err != nil, "%s: %v", name, err)
	}
}

// An engine whose blocks do not match the router's is named and predicted, not treated as empty.
func TestBlockSizeThatDoesNotFitIsRefusedByName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bus, lines := memoryBus(t), &logLines{}
		r := newRigWithLog(t, follow.Config{}, bus, bus, slog.New(slog.NewTextHandler(lines, nil)))
		p := r.speaks(1, view.PublisherConfig{})
		r.track("w")
		time.Sleep(time.Second) // a heartbeat, so that its snapshot has come
		for odd := testkit.NewEngine(1, 24); p.Stats().Seq < 20; synctest.Wait() {
			p.publishEvents(odd.Step()...)
		}
		if s := r.status("w"); s.State != follow.Predicted || s.Blocks == 0 {
			t.Fatalf("an engine with blocks of 24 tokens beside the router's 16: %+v", s)
		}
		assert.True(t, lines.count("blocks have 24 tokens") == 1 && lines.count("router's 16") == 1,
			"the log does not name the sizes once:\n%s", lines)
		// It cleared its cache and has blocks that fit: its events count again.
		prompt := testkit.IDs(0, 64)
		p.publishEvents(wire.Event{Kind: wire.Cleared})
		p.publishEvents(wire.Event{Kind: wire.Stored, Hashes: []wire.Hash{1, 2}, Tokens: prompt, BlockSize: 32})
		// One odd block among many is refused by itself.
		p.publishEvents(wire.Event{Kind: wire.Stored, Hashes: []wire.Hash{3}, Parent: 2, HasParent: true, Tokens: testkit.IDs(64, 24),
			BlockSize: 24})
		synctest.Wait()
		assert.Equal(t, follow.Live, r.status("w").State, "blocks of 32 tokens beside the router's 16:\n%s", lines)
		assert.Equal(t, 4, r.idx.Of("w", 0).Leading(index.Device, tokens.SequenceHashes(nil, prompt, 16, tokens.Seed("", ""))),
			"leading blocks, want 4")
		assert.Equal(t, 1, lines.count("KV events repaired"), lines.String())
	})
}

// TestFalseNumbersPass: one message under a number that the publisher never used costs at most a snapshot. What the
// publisher answers when it is asked is its word on where it stands, and it is not asked for that number without end.
func TestFalseNumbersPass(t *testing.T) {
	batch := func(e wire.Event) []byte { return wire.AppendBatch(nil, &wire.Batch{Events: []wire.Event{e}}) }
	for name, payload := range map[string][]byte{
		"heartbeat": nil,
		"blocks":    batch(wire.Event{Kind: wire.Stored, Hashes: []wire.Hash{7}, Tokens: make([]uint32, 16), BlockSize: 16}),
		"cleared":   batch(wire.Event{Kind: wire.Cleared}),
	} {
		for _, seq := range []uint64{math.MaxUint64, math.MaxUint64 - 1, 1 << 48, 1 << 40, 5000} {
			for _, busy := range []int{0, 100} {
				t.Run(fmt.Sprintf("%s %d busy=%v", name, seq, busy > 0), func(t *testing.T) {
					virtual(t, follow.Config{SnapshotEvery: time.Second}, func(t *testing.T, r *rig) {
						p := r.speaks(1, view.PublisherConfig{})
						r.track("w")
						p.publishSteps(50)
						r.catchesUp(p, "live")
						m := nats.NewMsg(source("w").EventsSubject())
						wire.Stamp(m, p.Epoch(), seq)
						m.Data = payload
						began, said := time.Now(), p.Stats().Messages
						for range 3 {
							require.NoError(t, r.bus.Publish(m))
						}
						synctest.Wait()
						for range busy {
							p.publishSteps(1)
							time.Sleep(20 * time.Millisecond) // virtual
						}
						r.catchesUp(p, "live again")
						p.publishSteps(1)
						r.catchesUp(p, "following")
						time.Sleep(time.Minute) // virtual
						seconds := int(time.Since(began) / time.Second)
						assert.LessOrEqual(t, int(p.Stats().Messages-said), seconds+busy+40, "messages, %d of them heartbeats", seconds)
					})
				})
			}
		}
	}
}
