package view

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/tokens"
	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/lab/testkit"
)

func newTestView(blockSize int) (*View, *testkit.Part) {
	part := &testkit.Part{}
	return New(part, blockSize), part
}

// decoded is a message's events.
func decoded(t *testing.T, payload []byte) []wire.Event {
	t.Helper()
	var b wire.Batch
	require.NoError(t, wire.DecodeBatch(&b, payload))
	return b.Events
}

// viewOf returns a view of a record, in messages of at most limit bytes.
func viewOf(t *testing.T, r *Record, blockSize, limit int) (*View, *testkit.Part) {
	t.Helper()
	v, part := newTestView(blockSize)
	for _, payload := range r.Image().Batches(limit, time.Unix(0, 0), 0) {
		v.Apply(decoded(t, payload))
	}
	return v, part
}

// restored is a view that was restored from v's copy, at a time of the ages.
func restored(t *testing.T, v *View, now time.Time) (*View, *testkit.Part) {
	t.Helper()
	c, err := ReadCopy(v.Copy().Append(nil), v.blockSize)
	require.NoError(t, err)
	again, part := newTestView(v.blockSize)
	again.Age(now)
	require.True(t, again.Restore(c))
	return again, part
}

// leading is how many blocks of a prompt a part has on the device.
func leading(part *testkit.Part, prompt []uint32, blockSize int, seed uint64) int {
	return part.Leading(index.Device, tokens.SequenceHashes(nil, prompt, blockSize, seed))
}

func TestViewFollowsAnEngine(t *testing.T) {
	for _, c := range []struct{ engine, router int }{{16, 16}, {32, 16}, {64, 16}, {16, 32}, {4, 16}, {1, 4}} {
		for seed := range uint64(20) {
			g := testkit.NewEngine(seed, c.engine)
			v, part := newTestView(c.router)
			for range 300 {
				v.Apply(g.Step())
			}
			assert.Empty(t, g.Mismatch(part, c.router), "engine %d, router %d, seed %d", c.engine, c.router, seed)
			if v.Blocks() != len(g.Blocks) || v.Tally().Orphans+v.Tally().BadSize+v.Tally().Ignored > 0 {
				t.Errorf("engine %d, router %d, seed %d: %d blocks of %d, %+v",
					c.engine, c.router, seed, v.Blocks(), len(g.Blocks), v.Tally())
			}
			v.Apply([]wire.Event{{Kind: wire.Cleared}})
			assert.True(t, part.Blocks() == 0 && v.Blocks()+v.known.bytes() == 0,
				"engine %d, router %d, seed %d: something outlives a clear", c.engine, c.router, seed)
		}
	}
}

func TestViewSeedsAndSkips(t *testing.T) {
	prompt := testkit.IDs(100, 12)
	base := wire.Event{Kind: wire.Stored, Hashes: []wire.Hash{1, 2, 3}, Tokens: prompt, BlockSize: 4, Medium: "GPU"}
	with := func(change func(*wire.Event)) []wire.Event {
		e := base
		change(&e)
		return []wire.Event{e}
	}
	removed3 := wire.Event{Kind: wire.Removed, Hashes: []wire.Hash{3}}
	digest := wire.ExtraKey{Bytes: []byte{1}}
	for _, c := range []struct {
		name       string
		events     []wire.Event
		lora, salt string
		leading    int
		tally      Tally
	}{
		{"plain", with(func(*wire.Event) {}), "", "", 3, Tally{Stored: 3}},
		{"LoRA", with(func(e *wire.Event) { e.LoraName = "l" }), "l", "", 3, Tally{Stored: 3}},
		{"LoRA as extra key too", with(func(e *wire.Event) {
			e.LoraName, e.ExtraKeys = "l", [][]wire.ExtraKey{{{Text: "l"}}, {{Text: "l"}}, {{Text: "l"}}}
		}), "l", "", 3, Tally{Stored: 3}},
		{"LoRA by number alone", with(func(e *wire.Event) { e.LoraID = wire.OptInt{Value: 7, Set: true} }), "", "", 0,
			Tally{Stored: 3, Unhashable: 3}},
		{"LoRA by number alone, and what follows", append(with(func(e *wire.Event) { e.LoraID = wire.OptInt{Value: 0, Set: true} }),
			wire.Event{Kind: wire.Stored, Hashes: []wire.Hash{4}, Parent: 3, HasParent: true, Tokens: prompt[:4], BlockSize: 4}), "", "", 0,
			Tally{Stored: 4, Unhashable: 3}},
		{"salt, SGLang's", with(func(e *wire.Event) { e.CacheSalt = "s" }), "", "s", 3, Tally{Stored: 3}},
		{"salt, vLLM's", with(func(e *wire.Event) { e.ExtraKeys = [][]wire.ExtraKey{{{Text: "s"}}, nil, nil} }), "", "s", 3, Tally{Stored: 3}},
		{"salt and LoRA, vLLM's", with(func(e *wire.Event) {
			e.LoraName, e.ExtraKeys = "l", [][]wire.ExtraKey{{{Text: "l"}, {Text: "s"}}, {{Text: "l"}}, nil}
		}), "l", "s", 3, Tally{Stored: 3}},
		{"salted is not plain", with(func(e *wire.Event) { e.CacheSalt = "s" }), "", "", 0, Tally{Stored: 3}},
		{"image in the second block", with(func(e *wire.Event) {
			e.ExtraKeys = [][]wire.ExtraKey{nil, {{Text: "i", Offset: 1, HasOffset: true}}, nil}
		}), "", "", 1, Tally{Stored: 3, Unhashable: 2}},
		{"embedding", with(func(e *wire.Event) { e.ExtraKeys = [][]wire.ExtraKey{nil, nil, {digest}} }), "", "", 2,
			Tally{Stored: 3, Unhashable: 1}},
		{"multimodal key", with(func(e *wire.Event) { e.MMKeys = [][]wire.MMKey{{}, {{Hash: "ab"}}, {}} }), "", "", 1,
			Tally{Stored: 3, Unhashable: 2}},
		{"token that is text", with(func(e *wire.Event) { e.Texts = []wire.TextToken{{Index: 9, Text: "x"}} }), "", "", 2,
			Tally{Stored: 3, Unhashable: 1}},
		{"bigrams count by their first", with(func(e *wire.Event) { e.Seconds = testkit.IDs(101, 12) }), "", "", 3, Tally{Stored: 3}},
		{"another group", with(func(e *wire.Event) { e.GroupIdx = wire.OptInt{Value: 1, Set: true} }), "", "", 0, Tally{Ignored: 3}},
		{"first group", with(func(e *wire.Event) { e.GroupIdx = wire.OptInt{Value: 0, Set: true} }), "", "", 3, Tally{Stored: 3}},
		{"too few tokens", with(func(e *wire.Event) { e.Tokens = prompt[:11] }), "", "", 0, Tally{Ignored: 3}},
		{"orphan", with(func(e *wire.Event) { e.Parent, e.HasParent = 99, true }), "", "", 0, Tally{Stored: 3, Orphans: 1}},
		{"size that does not go in", []wire.Event{{Kind: wire.Stored, Hashes: []wire.Hash{1, 2}, Tokens: prompt, BlockSize: 6}}, "", "",
			0, Tally{Stored: 2, BadSize: 2}},
		{"short last block", []wire.Event{base,
			{Kind: wire.Stored, Hashes: []wire.Hash{4}, Parent: 3, HasParent: true, Tokens: testkit.IDs(112, 3), BlockSize: 3}}, "", "", 3,
			Tally{Stored: 4}},
		{"remote", with(func(e *wire.Event) { e.Locality = "REMOTE" }), "", "", 0, Tally{Stored: 3}},
		{"unknown locality", with(func(e *wire.Event) { e.Locality = "NEARBY" }), "", "", 0, Tally{Stored: 3}},
		{"unknown medium", with(func(e *wire.Event) { e.Medium = "moon" }), "", "", 0, Tally{Stored: 3}},
		{"child of a salted block", []wire.Event{
			{Kind: wire.Stored, Hashes: []wire.Hash{1}, Tokens: prompt[:4], BlockSize: 4, CacheSalt: "s"},
			{Kind: wire.Stored, Hashes: []wire.Hash{2, 3}, Parent: 1, HasParent: true, Tokens: prompt[4:], BlockSize: 4},
		}, "", "s", 3, Tally{Stored: 3}},
		{"held twice, removed once", append(with(func(*wire.Event) {}), base, removed3), "", "", 3,
			Tally{Stored: 6, Removed: 1, Again: 3, Reannounced: 1}},
		{"held twice, removed twice", append(with(func(*wire.Event) {}), base, removed3, removed3), "", "", 2,
			Tally{Stored: 6, Removed: 2, Again: 3, Reannounced: 1}},
		{"held twice, and on the host, removed once of each", append(with(func(*wire.Event) {}), base,
			wire.Event{Kind: wire.Stored, Hashes: []wire.Hash{3}, Medium: "CPU"}, removed3,
			wire.Event{Kind: wire.Removed, Hashes: []wire.Hash{3}, Medium: "CPU"}),
			"", "", 3, Tally{Stored: 7, Removed: 2, Again: 3, Reannounced: 1}},
		{"orphan, then announced with its parent", append(
			with(func(e *wire.Event) {
				e.Parent, e.HasParent, e.Hashes, e.Tokens = 1, true, []wire.Hash{2, 3}, prompt[4:]
			}), base),
			"", "", 3, Tally{Stored: 5, Orphans: 1, Again: 2, Reannounced: 1}},
		{"a name used again for another block", append(
			[]wire.Event{{Kind: wire.Stored, Hashes: []wire.Hash{1, 2}, Tokens: testkit.IDs(500, 8), BlockSize: 4}}, base), "", "", 3,
			Tally{Stored: 5, Again: 2, Reannounced: 1}},
		{"cleared", append(with(func(*wire.Event) {}), wire.Event{Kind: wire.Cleared}), "", "", 0, Tally{Stored: 3, Cleared: 1}},
		{"removed before it was there", []wire.Event{{Kind: wire.Removed, Hashes: []wire.Hash{1}}, base}, "", "", 3,
			Tally{Stored: 3, Unknown: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			v, part := newTestView(4)
			v.Apply(c.events)
			assert.Equal(t, c.leading, leading(part, prompt, 4, tokens.Seed(c.lora, c.salt)), "leading blocks")
			assert.True(t, v.Tally() == c.tally, "tally %+v, want %+v", v.Tally(), c.tally)
		})
	}
}

// TestMirrorEqualsTheEvents plays an engine into a view and into a mirror, and the mirror's telling into a second
// view: both are the same, whatever the pages' size.
func TestMirrorEqualsTheEvents(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 3))
		g := testkit.NewEngine(seed, 4)
		m := NewRecord()
		heard, part := newTestView(4)
		play := func(events []wire.Event) { m.Apply(events); heard.Apply(events) }
		for range 200 {
			play(g.Step())
			if len(g.Blocks) > 0 && rng.IntN(3) == 0 { // some of it lies on the host as well
				play([]wire.Event{{Kind: wire.Stored, Hashes: []wire.Hash{g.Blocks[rng.IntN(len(g.Blocks))].Hash}, Medium: "CPU"}})
			}
		}
		if len(g.Blocks) > 2 { // a hole, with what follows on it still there
			play([]wire.Event{{Kind: wire.Removed, Hashes: []wire.Hash{g.Blocks[0].Hash}, Medium: "GPU"}})
		}
		salted := wire.Event{Kind: wire.Stored, Hashes: []wire.Hash{1, 2}, Tokens: testkit.IDs(7, 8), BlockSize: 4,
			ExtraKeys: [][]wire.ExtraKey{{{Text: "salt"}}, {{Text: "i", Offset: 2, HasOffset: true}}}}
		play([]wire.Event{salted})

		limit := 4096 + rng.IntN(100_000)
		if seed == 0 {
			limit = 1 // an event a message
		}
		again, part2 := viewOf(t, m, 4, limit)
		assert.True(t, again.Tally().Orphans == 0 && again.Tally().Unhashable == 1, "seed %d: %+v", seed, again.Tally())
		assert.Equal(t, heard.known.all(), again.known.all(), "seed %d", seed)
		assert.Equal(t, part.Blocks(), part2.Blocks(), "blocks indexed, seed %d", seed)
	}
}

func TestMirrorLeavesNothingBehind(t *testing.T) {
	g := testkit.NewEngine(4, 4)
	m := NewRecord()
	for range 300 {
		m.Apply(g.Step())
	}
	for _, b := range g.Blocks { // parents first, so that each stays for a while only for its children
		m.Apply([]wire.Event{{Kind: wire.Removed, Hashes: []wire.Hash{b.Hash}, Medium: "GPU"}})
	}
	assert.Zero(t, m.Blocks())
}

// Of an event sent as an array whose parent is 0, the first block begins a chain: such publishers have no null there. In a map
// 0 is a hash, for a chain's beginning leaves it out or sends null.
func TestParentZeroOfArraysIsNone(t *testing.T) {
	tokens := testkit.IDs(0, 32)
	stored := wire.Event{Kind: wire.Stored, Hashes: []wire.Hash{11, 12}, Parent: 0, HasParent: true, Tokens: tokens, BlockSize: 16,
		Medium: "GPU"}
	follows := wire.Event{Kind: wire.Stored, Hashes: []wire.Hash{13}, Parent: 12, HasParent: true, Tokens: tokens[:16], BlockSize: 16,
		Medium: "GPU"}
	for d := range wire.SGLangFirst + 1 {
		events := decoded(t, d.Append(nil, &wire.Batch{Rank: wire.NoRank, Events: []wire.Event{stored, follows}}))
		v, part := newTestView(16)
		v.Apply(events)
		begins, follows, indexed := !events[0].HasParent, len(events) > 1 && events[len(events)-1].HasParent, part.Blocks() == 3
		assert.Equal(t, [3]bool{d.Arrays(), true, d.Arrays()}, [3]bool{begins, follows, indexed}, "%v: %+v", d, v.Tally())
	}
}

// What an engine marks as remote is a peer's or a store's: it counts as shared, whatever its medium, and as no one's where
// its medium or locality is not known. It is removed from there alone, also after a snapshot.
func TestLocalities(t *testing.T) {
	for _, c := range []struct {
		medium, locality string
		on               index.Tier // wire.Tiers for none
	}{
		{"STORAGE", "", index.Disk}, {"STORAGE", "LOCAL", index.Disk}, {"STORAGE", "REMOTE", index.Shared}, {"STORAGE", "ELSEWHERE", index.Tiers},
		{"CPU", "REMOTE", index.Shared}, {"GPU", "REMOTE", index.Shared}, {"", "REMOTE", index.Shared}, {"", "LOCAL", index.Device},
		{"moon", "LOCAL", index.Tiers}, {"moon", "REMOTE", index.Tiers}, {"GPU", "remote", index.Tiers},
	} {
		stored := wire.Event{Kind: wire.Stored, Hashes: []wire.Hash{1, 2}, Tokens: testkit.IDs(1, 8), BlockSize: 4, Medium: c.medium,
			Locality: c.locality}
		r := NewRecord()
		r.Apply([]wire.Event{stored})
		snapshot := decoded(t, r.Image().Batches(1<<16, time.Unix(0, 0), 0)[0])[0]
		for how, e := range map[string]wire.Event{"event": stored, "snapshot": snapshot} {
			v, part := newTestView(4)
			v.Apply([]wire.Event{e})
			for at := index.Device; at <= index.Shared; at++ {
				assert.Equal(t, map[bool]int{true: 2}[at == c.on], len(part.On(at)),
					"%s of %q, %q blocks on tier %d", how, c.medium, c.locality, at)
			}
			v.Apply([]wire.Event{{Kind: wire.Removed, Hashes: stored.Hashes, Medium: c.medium, Locality: c.locality}})
			assert.Zero(t, v.Blocks()+part.Blocks(), "%s of %q, %q: %d blocks are left", how, c.medium, c.locality, v.Blocks())
		}
	}
}

// In no engine's form are an adapter's blocks the base model's.
func TestAdaptersAreNotTheBaseModel(t *testing.T) {
	prompt := testkit.IDs(1, 8)
	stored := wire.Event{Kind: wire.Stored, Hashes: []wire.Hash{1, 2}, Tokens: prompt, BlockSize: 4, Medium: "GPU", LoraName: "ad",
		LoraID: wire.OptInt{Value: 3, Set: true}}
	for d := wire.Dialect(0); d.Valid(); d++ {
		events := decoded(t, d.Append(nil, &wire.Batch{Events: []wire.Event{stored}}))
		v, part := newTestView(4)
		v.Apply(events)
		named := map[bool]int{true: 2}[events[0].LoraName != ""]
		got := [3]int{v.Blocks(), leading(part, prompt, 4, tokens.Seed("", "")), leading(part, prompt, 4, tokens.Seed("ad", ""))}
		assert.Equal(t, [3]int{2, 0, named}, got, "%v: blocks, of the base model, of the adapter", d)
	}
}
