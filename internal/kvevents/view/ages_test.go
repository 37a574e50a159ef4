package view

import (
	"slices"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/internal/kvevents/eventstest"
	"github.com/tandem-pd/tandem/internal/kvevents/wire"
)

// LMCache's connector in vLLM 0.32 (distributed/kv_transfer/kv_connector/v1/lmcache_connector.py) publishes stores on "cpu" and
// no removals, chunks of 256 tokens: what it stored is taken to be there for an hour. The first removal from a medium shows
// that it needs no such bound.
func TestWhatIsNeverRemovedAges(t *testing.T) {
	begun := time.Unix(1e9, 0)
	stored := func(hash wire.Hash, medium string) wire.Event {
		return wire.Event{Kind: wire.Stored, Hashes: []wire.Hash{hash}, Tokens: eventstest.IDs(int(hash), 256), BlockSize: 256, Medium: medium}
	}
	removed := func(hash wire.Hash, medium string) wire.Event {
		return wire.Event{Kind: wire.Removed, Hashes: []wire.Hash{hash}, Medium: medium}
	}
	type step struct {
		at     time.Duration
		event  wire.Event
		blocks int
	}
	nothing := wire.Event{}
	for name, steps := range map[string][]step{
		"an hour":             {{0, stored(1, "cpu"), 1}, {59 * time.Minute, nothing, 1}, {time.Hour, nothing, 0}},
		"stored again":        {{0, stored(1, "cpu"), 1}, {30 * time.Minute, stored(1, "cpu"), 1}, {80 * time.Minute, nothing, 1}, {91 * time.Minute, nothing, 0}},
		"on an unknown place": {{0, stored(1, "CXL"), 1}, {time.Hour, nothing, 0}},
		"removals come":       {{0, stored(1, "CPU"), 1}, {0, stored(2, "CPU"), 2}, {time.Minute, removed(2, "CPU"), 1}, {9 * time.Hour, nothing, 1}},
		"removals from elsewhere": {{0, stored(1, "cpu"), 1}, {0, stored(2, "GPU"), 2}, {time.Minute, removed(2, "GPU"), 1},
			{time.Hour, nothing, 0}},
		"the device does not age": {{0, stored(1, "GPU"), 1}, {0, stored(1, "cpu"), 1}, {9 * time.Hour, nothing, 1}},
		"cleared":                 {{0, stored(1, "cpu"), 1}, {time.Minute, wire.Event{Kind: wire.Cleared}, 0}, {time.Hour, stored(1, "cpu"), 1}, {90 * time.Minute, nothing, 1}},
	} {
		v, _ := newTestView(16)
		record := NewRecord()
		for i, s := range steps {
			record.Apply(v.Age(begun.Add(s.at)))
			v.Apply([]wire.Event{s.event})
			record.Apply([]wire.Event{s.event})
			if v.Blocks() != s.blocks || record.Blocks() != s.blocks {
				t.Errorf("%s, step %d: %d blocks, and %d recorded, want %d", name, i, v.Blocks(), record.Blocks(), s.blocks)
			}
			again, part := restored(t, v, begun.Add(s.at))
			again.Age(begun.Add(s.at + time.Hour))
			if left := v.known.device; again.Blocks() != left || part.Blocks() != 16*left {
				t.Errorf("%s, step %d: an hour after it was restored %d blocks are left, want %d", name, i, again.Blocks(), left)
			}
		}
	}
}

// A medium that announces no removals is taken to hold four times what the device does, the latest.
func TestWhatIsNeverRemovedIsBounded(t *testing.T) {
	v, part := newTestView(16)
	v.Register(1000)
	now, most, last := time.Unix(1e9, 0), 0, wire.Hash(0)
	for base := range uint32(100) {
		v.Age(now)
		e := eventstest.Chain(base, 500)
		e.Medium = "cpu"
		v.Apply([]wire.Event{e})
		most, last = max(most, v.Blocks()), e.Hashes[0]
	}
	v.Age(now)
	_, kept := v.known.find(last)
	stored := v.ages[medium{"cpu", ""}].stored
	if v.Overgrown() || most > 4500 || v.Blocks() != 4000 || part.Blocks() != 4000 || !kept || cap(stored) > 4*4000 {
		t.Errorf("%d blocks at most, %d now, %d indexed, the latest %v, %d ages", most, v.Blocks(), part.Blocks(), kept, cap(stored))
	}
	for i := range 100 {
		v.Apply([]wire.Event{{Kind: wire.Stored, Hashes: []wire.Hash{1}, Medium: string(rune(100 + i))}})
	}
	if len(v.ages) > mostAges || slices.Contains([]int{0}, len(v.ages)) {
		t.Errorf("%d media are told apart", len(v.ages))
	}
}
