package main

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/internal/kvevents/follow"
)

// quick is a replay of seconds: engines with caches of 128 blocks, and a subscriber that waits for little.
func quick(seed uint64) config {
	c := config{
		trace: conversation{Requests: 1200, Rate: 300, Seed: seed}.workload(), speedup: 1,
		nats: chances{Drop: 0.02, Double: 0.02, Reorder: 0.02, Delay: 0.02, Straggler: 0.2}, zmq: chances{Drop: 0.02}, lostRequests: 0.02,
		restarts: 12, cuts: 32, outages: 1, clears: 3, stalls: 1, stallFor: 0.2, shortRings: 3, noReplay: 2, pending: 64, highWater: 1,
		heartbeat: 500 * time.Millisecond, sampleEvery: 20 * time.Millisecond, settle: 60 * time.Second,
		subscriber: follow.Config{
			PageTimeout: 300 * time.Millisecond, RetryMin: 20 * time.Millisecond, RetryMax: 200 * time.Millisecond,
			SnapshotEvery: time.Second, QuietCheck: 500 * time.Millisecond,
		},
	}
	c.stream = streamConfig{Engines: 64, Block: 16, Cache: 128 * 16, Spread: 0.2, Seed: seed}
	return c
}

// The proof. 64 simulated engines, half over NATS and half over ZMQ, under everything that can go wrong at once; what is
// indexed of each ends as what its cache holds. That all of it has gone wrong is part of the test.
func TestIndexEndsAsTheEnginesCaches(t *testing.T) {
	const seed = 3
	t.Logf("seed %d", seed)
	prove(t, quick(seed))
}

// The same with blocks of 64 tokens.
func TestIndexEndsAsTheEnginesCachesInLargeBlocks(t *testing.T) {
	const seed = 4
	t.Logf("seed %d", seed)
	c := quick(seed)
	c.trace = conversation{Requests: 600, Rate: 300, Seed: seed}.workload()
	c.stream.Block, c.stream.Cache = 64, 64*64
	healed(t, play(t, c))
}

// The beginning of Mooncake's conversation trace, where it is there.
func TestIndexEndsAsTheEnginesCachesOnTheConversationTrace(t *testing.T) {
	const path = "../../../shared/data/mooncake_fast25/conversation_trace.jsonl.gz"
	if _, err := os.Stat(path); err != nil {
		t.Skipf("reads %s, skipped when absent", path)
	}
	const seed = 5
	t.Logf("seed %d", seed)
	c := quick(seed)
	w, err := readTrace(path, 120)
	if err != nil {
		t.Fatal(err)
	}
	c.trace, c.speedup = w, w.Span().Seconds()/4
	c.stream.Cache = 1024 * 16
	c.stream.OutputTokens = 40
	healed(t, play(t, c))
}

// healed fails the test if there was nothing to heal.
func healed(t *testing.T, r *result) {
	t.Helper()
	if r.NATS.Gaps == 0 || r.ZMQ.Gaps == 0 {
		t.Errorf("%d and %d gaps: nothing was to be healed", r.NATS.Gaps, r.ZMQ.Gaps)
	}
}

// play runs a replay to its end, which is to be exact.
func play(t *testing.T, c config) *result {
	t.Helper()
	r, err := run(t.Context(), c)
	var report strings.Builder
	if r != nil {
		_ = r.write(&report) // to a buffer
	}
	t.Logf("%s", &report)
	if err != nil {
		t.Fatal(err)
	}
	for transport, h := range map[string]*half{"NATS": &r.NATS, "ZMQ": &r.ZMQ} {
		if h.Final.wrong() != 0 || h.Final.True == 0 {
			t.Errorf("%s: at the end %+v", transport, h.Final)
		}
	}
	return r
}

// prove plays, and sees to it that there was something to prove.
func prove(t *testing.T, c config) {
	t.Helper()
	r := play(t, c)
	for what, n := range map[string]uint64{
		"messages lost over NATS": r.NATS.Dropped, "over ZMQ": r.ZMQ.Dropped, "doubled": r.NATS.Doubled, "overtaken": r.NATS.Reordered,
		"delayed": r.NATS.Delayed, "of ended processes": r.NATS.Stragglers, "lost while NATS was away": r.NATS.Failed,
		"answers lost":            r.NATS.Requests,
		"slow receivers over ZMQ": r.ZMQ.Stalls, "connections cut": r.ZMQ.Cuts, "links down": r.ZMQ.Downs,
		"dropped by the NATS client":     uint64(r.NATS.Counted["dropped"]),
		"gaps over NATS":                 r.NATS.Gaps,
		"gaps over ZMQ":                  r.ZMQ.Gaps,
		"stale messages":                 uint64(r.NATS.Counted["messages stale"]),
		"new epochs over NATS":           uint64(r.NATS.Counted["messages new epoch"]),
		"restarts recognised over ZMQ":   uint64(r.ZMQ.Counted["messages new epoch"]),
		"healed by a ring":               uint64(r.NATS.Counted["snapshots ring"]),
		"healed by a snapshot":           uint64(r.NATS.Counted["snapshots restored"]),
		"healed by a replay":             uint64(r.ZMQ.Counted["snapshots replayed"]),
		"replays too short":              uint64(r.ZMQ.Counted["snapshots too_short"]),
		"predicted for good":             uint64(r.Predicted),
		"of them restarted":              uint64(r.RepairedByRestart),
		"of them cleared":                uint64(r.RepairedByClearing),
		"restarted over NATS":            uint64(r.NATS.Restarts),
		"restarted over ZMQ":             uint64(r.ZMQ.Restarts),
		"samples with something missing": uint64(r.NATS.Stale.Missing),
		"samples with a phantom":         uint64(r.NATS.Stale.Phantom + r.ZMQ.Stale.Phantom),
	} {
		if n == 0 {
			t.Errorf("none: %s", what)
		}
	}
	if r.Outages != c.outages {
		t.Errorf("NATS was killed %d times", r.Outages)
	}
}

// The proof can fail: where requests stay unanswered, losses stay, and are seen.
func TestWithoutHealingTheIndexIsWrong(t *testing.T) {
	const seed = 6
	t.Logf("seed %d", seed)
	c := quick(seed)
	c.trace = conversation{Requests: 300, Rate: 300, Seed: seed}.workload()
	c.lostRequests, c.deaf, c.settle = 1, true, time.Second
	c.outages, c.stalls = 0, 0
	// Every request is lost, so that nobody is live at first without being heard.
	_, err := run(t.Context(), c)
	if !errors.Is(err, errWrong) {
		t.Errorf("error %v, want %v", err, errWrong)
	}
}
