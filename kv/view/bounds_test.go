package view

import (
	"bytes"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tinylib/msgp/msgp"

	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/lab/testkit"
)

// LMCache's connector in vLLM 0.32 (distributed/kv_transfer/kv_connector/v1/lmcache_connector.py) publishes stores on "cpu" and
// no removals, chunks of 256 tokens: what it stored is taken to be there for an hour. The first removal from a medium shows
// that it needs no such bound.
func TestWhatIsNeverRemovedAges(t *testing.T) {
	begun := time.Unix(1e9, 0)
	stored := func(hash wire.Hash, medium string) wire.Event {
		return wire.Event{Kind: wire.Stored, Hashes: []wire.Hash{hash}, Tokens: testkit.IDs(int(hash), 256), BlockSize: 256, Medium: medium}
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
		"an hour": {{0, stored(1, "cpu"), 1}, {59 * time.Minute, nothing, 1}, {time.Hour, nothing, 0}},
		"stored again": {{0, stored(1, "cpu"), 1}, {30 * time.Minute, stored(1, "cpu"), 1}, {80 * time.Minute, nothing, 1},
			{91 * time.Minute, nothing, 0}},
		"on an unknown place": {{0, stored(1, "CXL"), 1}, {time.Hour, nothing, 0}},
		"removals come": {{0, stored(1, "CPU"), 1}, {0, stored(2, "CPU"), 2}, {time.Minute, removed(2, "CPU"), 1},
			{9 * time.Hour, nothing, 1}},
		"removals from elsewhere": {{0, stored(1, "cpu"), 1}, {0, stored(2, "GPU"), 2}, {time.Minute, removed(2, "GPU"), 1},
			{time.Hour, nothing, 0}},
		"the device does not age": {{0, stored(1, "GPU"), 1}, {0, stored(1, "cpu"), 1}, {9 * time.Hour, nothing, 1}},
		"cleared": {{0, stored(1, "cpu"), 1}, {time.Minute, wire.Event{Kind: wire.Cleared}, 0},
			{time.Hour, stored(1, "cpu"), 1}, {90 * time.Minute, nothing, 1}},
	} {
		v, _ := newTestView(16)
		record := NewRecord()
		for i, s := range steps {
			record.Apply(v.Age(begun.Add(s.at)))
			v.Apply([]wire.Event{s.event})
			record.Apply([]wire.Event{s.event})
			assert.True(t, v.Blocks() == s.blocks && record.Blocks() == s.blocks,
				"%s, step %d: %d blocks, and %d recorded, want %d", name, i, v.Blocks(), record.Blocks(), s.blocks)
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
		e := testkit.Chain(base, 500)
		e.Medium = "cpu"
		v.Apply([]wire.Event{e})
		most, last = max(most, v.Blocks()), e.Hashes[0]
	}
	v.Age(now)
	_, kept := v.known.find(last)
	stored := v.ages[medium{"cpu", ""}].stored
	assert.True(t, !v.Overgrown() && most <= 4500 && v.Blocks() == 4000 && part.Blocks() == 4000 && kept && cap(stored) <= 4*4000,
		"%d blocks at most, %d now, %d indexed, the latest %v, %d ages", most, v.Blocks(), part.Blocks(), kept, cap(stored))
	for i := range 100 {
		v.Apply([]wire.Event{{Kind: wire.Stored, Hashes: []wire.Hash{1}, Medium: string(rune(100 + i))}})
	}
	assert.True(t, len(v.ages) <= mostAges && !slices.Contains([]int{0}, len(v.ages)), "%d media are kept apart", len(v.ages))
}

// bombs are messages of about size bytes, each of the smallest things that a decoder keeps.
func bombs(size int) map[string][]byte {
	head := func(events uint32) []byte {
		b := msgp.AppendArrayHeader(nil, 2)
		return msgp.AppendArrayHeader(msgp.AppendFloat64(b, 1), events)
	}
	// stored is an event whose last field is a list of n elements, each of which is element.
	stored := func(tokens []byte, field string, element []byte) []byte {
		b := msgp.AppendMapHeader(head(1), 6)
		b = msgp.AppendString(msgp.AppendString(b, "type"), "BlockStored")
		b = msgp.AppendInt(msgp.AppendArrayHeader(msgp.AppendString(b, "block_hashes"), 1), 7)
		b = append(msgp.AppendString(b, "token_ids"), tokens...)
		b = msgp.AppendInt(msgp.AppendString(b, "block_size"), 1)
		b = msgp.AppendNil(msgp.AppendString(b, "parent_block_hash"))
		n := (size - len(b)) / len(element)
		b = msgp.AppendArrayHeader(msgp.AppendString(b, field), uint32(n))
		return append(b, bytes.Repeat(element, n)...)
	}
	list := func(element []byte, n int) []byte {
		return append(msgp.AppendArrayHeader(nil, uint32(n)), bytes.Repeat(element, n)...)
	}
	one := msgp.AppendUint32(msgp.AppendArrayHeader(nil, 1), 1)
	many := func(event []byte) []byte {
		n := size / len(event)
		return append(head(uint32(n)), bytes.Repeat(event, n)...)
	}
	removed := msgp.AppendArrayHeader(msgp.AppendString(msgp.AppendArrayHeader(nil, 2), "BlockRemoved"), 0)
	hashes := msgp.AppendString(msgp.AppendArrayHeader(head(1), 2), "BlockRemoved")
	hashes = append(hashes, list([]byte{1}, size)...)
	return map[string][]byte{
		"extra keys of no block":   stored(one, "extra_keys", []byte{0xc0}),
		"extra keys of one block":  stored(one, "extra_keys", list([]byte{0xa0}, 1<<16-1)),
		"mm keys":                  stored(one, "mm_keys", list([]byte{0x80}, 1<<16-1)),
		"look-aheads of no block":  stored(one, "lookahead_token_ids", []byte{0x90}),
		"tokens that are text":     stored(list([]byte{0xa0}, size/2), "block_hashes", []byte{1}),
		"tokens of one byte":       stored(list([]byte{1}, size/2), "block_hashes", []byte{1}),
		"events of nothing":        many(removed),
		"hashes of one byte":       hashes,
		"unknown keys":             stored(one, "unknown", list([]byte{0xa0}, 1<<16-1)),
		"a list of lists of lists": stored(one, "extra_keys", bytes.Repeat([]byte{0x91}, 10_000)),
	}
}

// TestMessagesCostWhatTheyWeigh: what one message makes a subscriber allocate is bounded, whatever is in it. 60 MB of extra
// keys took 5 GB.
func TestMessagesCostWhatTheyWeigh(t *testing.T) {
	cost := func(payload []byte) (kept, made uint64, err error) {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		v, _ := newTestView(16)
		v.Register(0)
		batch := new(wire.Batch)
		if err = wire.DecodeBatch(batch, payload); err == nil {
			v.Apply(batch.Events)
		}
		runtime.ReadMemStats(&after)
		made = after.TotalAlloc - before.TotalAlloc
		_ = wire.DecodeBatch(batch, wire.AppendBatch(nil, &wire.Batch{})) // what the next message leaves of it
		runtime.GC()
		runtime.ReadMemStats(&after)
		runtime.KeepAlive(batch)
		return after.HeapAlloc - min(after.HeapAlloc, before.HeapAlloc), made, err
	}
	for name, payload := range bombs(wire.MaxBatchBytes - 1<<17) {
		if len(payload) > wire.MaxBatchBytes {
			payload = payload[:0]
			t.Errorf("%s: the test's message is too long", name)
		}
		kept, made, err := cost(payload)
		t.Logf("%-26s %4d MiB made, %3d MiB kept (%v)", name, made>>20, kept>>20, err)
		assert.True(t, made <= 256<<20 && kept <= 8<<20, "%s: %d MiB made, %d MiB kept", name, made>>20, kept>>20)
	}
	for name, payload := range bombs(wire.MaxBatchBytes + 1<<17) {
		if len(payload) <= wire.MaxBatchBytes {
			continue
		}
		_, made, err := cost(payload)
		assert.True(t, err != nil && made <= 1<<20, "%s of %d bytes: %d bytes made, error %v", name, len(payload), made, err)
	}
}

// TestOvergrownViews: a rank that names many times the blocks that it registered is not believed, until its cache is cleared.
func TestOvergrownViews(t *testing.T) {
	chain := func(base uint32, n, size int, medium string) wire.Event {
		e := testkit.Chain(base, n)
		e.BlockSize, e.Medium, e.Tokens = size, medium, testkit.IDs(int(base), n*size)
		return e
	}
	for _, c := range []struct {
		name             string
		registered, size int
		medium           string
		most             int // blocks of that size
	}{
		{"as many as registered", 1000, 16, "GPU", 4000},
		{"smaller ones", 1000, 4, "GPU", 16_000},
		{"larger ones", 1000, 32, "GPU", 2000},
		{"offloaded", 1000, 16, "CPU", 64_000},
		{"a small worker", 3, 16, "GPU", leastBound},
	} {
		v, part := newTestView(16)
		v.Register(c.registered)
		const step = 500
		blocks := 0
		for base := uint32(1); !v.Overgrown(); base++ {
			v.Apply([]wire.Event{chain(base, step, c.size, c.medium)})
			blocks = max(blocks, v.Blocks())
			require.True(t, blocks <= c.most, "%s: %d blocks, want at most %d", c.name, blocks, c.most)
		}
		assert.GreaterOrEqual(t, blocks+step, c.most, "%s: overgrown after %d blocks", c.name, blocks)
		for base := range uint32(100) {
			v.Apply([]wire.Event{chain(1<<20+base, step, c.size, c.medium)})
		}
		assert.True(t, v.Blocks() == 0 && part.Blocks() == 0, "%s: it holds %d blocks afterwards", c.name, v.Blocks())
		v.Apply([]wire.Event{{Kind: wire.Cleared}, chain(7, 3, c.size, "GPU")})
		assert.True(t, !v.Overgrown() && v.Blocks() == 3, "%s: cleared, it holds %d blocks", c.name, v.Blocks())
	}
	unregistered, _ := newTestView(16)
	unregistered.Register(0)
	assert.Equal(t, unregisteredBound, unregistered.bound.most, "a rank that registered no blocks may name")
	// Tails of odd blocks count as well: of blocks of one token under the router's of 4,096 each would keep 8 KB.
	v, _ := newTestView(4096)
	v.Register(10)
	v.Apply([]wire.Event{chain(1, 1<<20, 1, "GPU")})
	assert.True(t, v.Overgrown(), "a million blocks of one token take %d MiB", v.known.bytes()>>20)
}
