package events

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tandem-pd/tandem/internal/tokens"
	"github.com/tandem-pd/tandem/router/index"
)

func newTestView(blockSize int) (*View, *index.Index, index.Owner) {
	idx := index.New(index.Config{})
	owner := idx.Owner("w", 0)
	return NewView(idx, owner, blockSize), idx, owner
}

// leading is how many blocks of a prompt the index says that owner has.
func leading(idx *index.Index, owner index.Owner, prompt []uint32, blockSize int, seed uint64) int {
	var m index.Matches
	idx.Match(tokens.SequenceHashes(nil, prompt, blockSize, seed), &m)
	return m.Leading(owner)
}

func TestViewFollowsAnEngine(t *testing.T) {
	for _, c := range []struct{ engine, router int }{{16, 16}, {32, 16}, {64, 16}, {16, 32}, {4, 16}, {1, 4}} {
		for seed := range uint64(20) {
			g := newFakeEngine(seed, c.engine)
			v, idx, owner := newTestView(c.router)
			for range 300 {
				v.Apply(g.step())
			}
			if text := g.mismatch(idx, owner, c.router); text != "" {
				t.Errorf("engine %d, router %d, seed %d: %s", c.engine, c.router, seed, text)
			}
			if v.Blocks() != len(g.blocks) || v.Tally().Orphans+v.Tally().BadSize+v.Tally().Ignored > 0 {
				t.Errorf("engine %d, router %d, seed %d: %d blocks of %d, %+v",
					c.engine, c.router, seed, v.Blocks(), len(g.blocks), v.Tally())
			}
			v.Apply([]Event{{Kind: Cleared}})
			if idx.Blocks(owner) != 0 || v.Blocks()+v.known.bytes() != 0 {
				t.Errorf("engine %d, router %d, seed %d: something outlives a clear", c.engine, c.router, seed)
			}
		}
	}
}

func TestViewLeavesNothingBehind(t *testing.T) {
	for _, size := range []int{1, 4, 16, 32} {
		g := newFakeEngine(9, size)
		v, idx, owner := newTestView(16)
		for range 100 {
			v.Apply([]Event{g.store(3)})
		}
		for len(g.blocks) > 0 {
			v.Apply([]Event{g.evict(5)})
		}
		if idx.Blocks(owner) != 0 || v.Blocks()+v.known.bytes() != 0 {
			t.Errorf("size %d: %d indexed, %d blocks, %d bytes", size, idx.Blocks(owner), v.Blocks(), v.known.bytes())
		}
	}
}

func ids(from, n int) []uint32 {
	out := make([]uint32, n)
	for i := range out {
		out[i] = uint32(from + i)
	}
	return out
}

func TestViewSeedsAndSkips(t *testing.T) {
	prompt := ids(100, 12)
	base := Event{Kind: Stored, Hashes: []Hash{1, 2, 3}, Tokens: prompt, BlockSize: 4, Medium: "GPU"}
	with := func(change func(*Event)) []Event {
		e := base
		change(&e)
		return []Event{e}
	}
	digest := ExtraKey{Bytes: []byte{1}}
	for _, c := range []struct {
		name       string
		events     []Event
		lora, salt string
		leading    int
		tally      Tally
	}{
		{"plain", with(func(*Event) {}), "", "", 3, Tally{Stored: 3}},
		{"LoRA", with(func(e *Event) { e.LoraName = "l" }), "l", "", 3, Tally{Stored: 3}},
		{"LoRA as extra key too", with(func(e *Event) {
			e.LoraName, e.ExtraKeys = "l", [][]ExtraKey{{{Text: "l"}}, {{Text: "l"}}, {{Text: "l"}}}
		}), "l", "", 3, Tally{Stored: 3}},
		{"salt, SGLang's", with(func(e *Event) { e.CacheSalt = "s" }), "", "s", 3, Tally{Stored: 3}},
		{"salt, vLLM's", with(func(e *Event) { e.ExtraKeys = [][]ExtraKey{{{Text: "s"}}, nil, nil} }), "", "s", 3, Tally{Stored: 3}},
		{"salt and LoRA, vLLM's", with(func(e *Event) {
			e.LoraName, e.ExtraKeys = "l", [][]ExtraKey{{{Text: "l"}, {Text: "s"}}, {{Text: "l"}}, nil}
		}), "l", "s", 3, Tally{Stored: 3}},
		{"salted is not plain", with(func(e *Event) { e.CacheSalt = "s" }), "", "", 0, Tally{Stored: 3}},
		{"image in the second block", with(func(e *Event) {
			e.ExtraKeys = [][]ExtraKey{nil, {{Text: "i", Offset: 1, HasOffset: true}}, nil}
		}), "", "", 1, Tally{Stored: 3, Unhashable: 2}},
		{"embedding", with(func(e *Event) { e.ExtraKeys = [][]ExtraKey{nil, nil, {digest}} }), "", "", 2, Tally{Stored: 3, Unhashable: 1}},
		{"multimodal key", with(func(e *Event) { e.MMKeys = [][]MMKey{{}, {{Hash: "ab"}}, {}} }), "", "", 1, Tally{Stored: 3, Unhashable: 2}},
		{"token that is text", with(func(e *Event) { e.Texts = []TextToken{{9, "x"}} }), "", "", 2, Tally{Stored: 3, Unhashable: 1}},
		{"bigrams count by their first", with(func(e *Event) { e.Seconds = ids(101, 12) }), "", "", 3, Tally{Stored: 3}},
		{"another group", with(func(e *Event) { e.GroupIdx = OptInt{1, true} }), "", "", 0, Tally{Ignored: 3}},
		{"first group", with(func(e *Event) { e.GroupIdx = OptInt{0, true} }), "", "", 3, Tally{Stored: 3}},
		{"too few tokens", with(func(e *Event) { e.Tokens = prompt[:11] }), "", "", 0, Tally{Ignored: 3}},
		{"orphan", with(func(e *Event) { e.Parent, e.HasParent = 99, true }), "", "", 0, Tally{Stored: 3, Orphans: 1}},
		{"size that does not go in", []Event{{Kind: Stored, Hashes: []Hash{1, 2}, Tokens: prompt, BlockSize: 6}}, "", "", 0, Tally{Stored: 2, BadSize: 2}},
		{"short last block", []Event{base, {Kind: Stored, Hashes: []Hash{4}, Parent: 3, HasParent: true, Tokens: ids(112, 3), BlockSize: 3}}, "", "", 3, Tally{Stored: 4}},
		{"unknown medium", with(func(e *Event) { e.Medium = "moon" }), "", "", 0, Tally{Stored: 3}},
		{"child of a salted block", []Event{
			{Kind: Stored, Hashes: []Hash{1}, Tokens: prompt[:4], BlockSize: 4, CacheSalt: "s"},
			{Kind: Stored, Hashes: []Hash{2, 3}, Parent: 1, HasParent: true, Tokens: prompt[4:], BlockSize: 4},
		}, "", "s", 3, Tally{Stored: 3}},
		{"announced twice, removed once", append(with(func(*Event) {}), base, Event{Kind: Removed, Hashes: []Hash{3}}), "", "", 2, Tally{Stored: 6, Removed: 1}},
		{"orphan, then announced with its parent", append(
			with(func(e *Event) { e.Parent, e.HasParent, e.Hashes, e.Tokens = 1, true, []Hash{2, 3}, prompt[4:] }), base),
			"", "", 3, Tally{Stored: 5, Orphans: 1}},
		{"a name used again for another block", append(
			[]Event{{Kind: Stored, Hashes: []Hash{1, 2}, Tokens: ids(500, 8), BlockSize: 4}}, base), "", "", 3, Tally{Stored: 5}},
		{"cleared", append(with(func(*Event) {}), Event{Kind: Cleared}), "", "", 0, Tally{Stored: 3, Cleared: 1}},
		{"removed before it was there", []Event{{Kind: Removed, Hashes: []Hash{1}}, base}, "", "", 3, Tally{Stored: 3, Unknown: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			v, idx, owner := newTestView(4)
			v.Apply(c.events)
			if got := leading(idx, owner, prompt, 4, tokens.Seed(c.lora, c.salt)); got != c.leading {
				t.Errorf("%d leading blocks, want %d", got, c.leading)
			}
			if v.Tally() != c.tally {
				t.Errorf("tally %+v, want %+v", v.Tally(), c.tally)
			}
		})
	}
}

func TestViewNameUsedAgainLeavesNothing(t *testing.T) {
	v, idx, owner := newTestView(4)
	v.Apply([]Event{
		{Kind: Stored, Hashes: []Hash{1, 2}, Tokens: ids(500, 8), BlockSize: 4},
		{Kind: Stored, Hashes: []Hash{1, 2}, Tokens: ids(600, 8), BlockSize: 4},
	})
	if got := leading(idx, owner, ids(500, 8), 4, tokens.Seed("", "")); got != 0 || idx.Blocks(owner) != 2 {
		t.Errorf("%d leading blocks of what was there before, %d indexed", got, idx.Blocks(owner))
	}
}

func TestViewOrphanThatFindsItsParentKeepsItsPlaces(t *testing.T) {
	prompt := ids(1, 8)
	v, idx, owner := newTestView(4)
	v.Apply([]Event{
		{Kind: Stored, Hashes: []Hash{2}, Parent: 1, HasParent: true, Tokens: prompt[4:], BlockSize: 4, Medium: "GPU"},
		{Kind: Stored, Hashes: []Hash{1, 2}, Tokens: prompt, BlockSize: 4, Medium: "CPU"},
		{Kind: Stored, Hashes: []Hash{1}, Medium: "GPU"},
	})
	if got := leading(idx, owner, prompt, 4, tokens.Seed("", "")); got != 2 {
		t.Errorf("%d leading blocks on the device, want 2", got)
	}
	v.Apply([]Event{{Kind: Removed, Hashes: []Hash{1, 2}, Medium: "GPU"}, {Kind: Removed, Hashes: []Hash{1, 2}, Medium: "CPU"}})
	if v.Blocks() != 0 || idx.Blocks(owner) != 0 {
		t.Errorf("%d blocks left, %d indexed", v.Blocks(), idx.Blocks(owner))
	}
}

func TestViewTiers(t *testing.T) {
	prompt := ids(1, 8)
	hashes := tokens.SequenceHashes(nil, prompt, 4, tokens.Seed("", ""))
	v, idx, owner := newTestView(4)
	steps := []struct {
		event        Event
		device, host int // leading blocks there: Tier counts those beyond the device's
	}{
		{Event{Kind: Stored, Hashes: []Hash{1, 2}, Tokens: prompt, BlockSize: 4, Medium: "GPU"}, 2, 0},
		{Event{Kind: Stored, Hashes: []Hash{1, 2}, Medium: "CPU"}, 2, 0}, // known by hash alone
		{Event{Kind: Removed, Hashes: []Hash{2}, Medium: "GPU"}, 1, 1},
		{Event{Kind: Removed, Hashes: []Hash{1}, Medium: "GPU"}, 0, 2},
		{Event{Kind: Removed, Hashes: []Hash{1}, Medium: "GPU"}, 0, 2},
		{Event{Kind: Stored, Hashes: []Hash{1}, Tokens: prompt[:4], BlockSize: 4}, 1, 1},
		{Event{Kind: Removed, Hashes: []Hash{1, 2}, Medium: "cpu"}, 1, 0},
		{Event{Kind: Removed, Hashes: []Hash{1}}, 0, 0},
	}
	for i, s := range steps {
		v.Apply([]Event{s.event})
		var m index.Matches
		idx.Match(hashes, &m)
		if m.Leading(owner) != s.device || m.Tier(owner, index.Host) != s.host {
			t.Errorf("step %d: %d on the device and %d on the host, want %d and %d",
				i, m.Leading(owner), m.Tier(owner, index.Host), s.device, s.host)
		}
	}
	if v.Blocks() != 0 {
		t.Errorf("%d blocks left", v.Blocks())
	}
}

// TestMirrorTellsWhatItWasTold plays an engine into a view and into a mirror, and the mirror's telling into a second
// view: both are the same, whatever the pages' size.
func TestMirrorTellsWhatItWasTold(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 3))
		g := newFakeEngine(seed, 4)
		m := newMirror()
		told, idx, owner := newTestView(4)
		play := func(events []Event) { m.apply(events); told.Apply(events) }
		for range 200 {
			play(g.step())
			if len(g.blocks) > 0 && rng.IntN(3) == 0 { // some of it lies on the host as well
				play([]Event{{Kind: Stored, Hashes: []Hash{g.blocks[rng.IntN(len(g.blocks))].hash}, Medium: "CPU"}})
			}
		}
		if len(g.blocks) > 2 { // a hole, with what follows on it still there
			play([]Event{{Kind: Removed, Hashes: []Hash{g.blocks[0].hash}, Medium: "GPU"}})
		}
		salted := Event{Kind: Stored, Hashes: []Hash{1, 2}, Tokens: ids(7, 8), BlockSize: 4,
			ExtraKeys: [][]ExtraKey{{{Text: "salt"}}, {{Text: "i", Offset: 2, HasOffset: true}}}}
		play([]Event{salted})

		again, idx2, owner2 := newTestView(4)
		p := packer{limit: 4096 + rng.IntN(100_000), rank: 0}
		m.image().tell(&p)
		var b Batch
		for _, payload := range p.out {
			if err := DecodeBatch(&b, payload); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			again.Apply(b.Events)
		}
		if again.Tally().Orphans != 0 || again.Tally().Unhashable != 1 {
			t.Errorf("seed %d: %+v", seed, again.Tally())
		}
		after := again.known.all()
		for h, b := range told.known.all() {
			if after[h] != b {
				t.Fatalf("seed %d: block %x is %+v, told %+v", seed, h, b, after[h])
			}
		}
		if again.Blocks() != told.Blocks() || idx.Blocks(owner) != idx2.Blocks(owner2) {
			t.Errorf("seed %d: %d blocks told of %d, %d indexed of %d",
				seed, again.Blocks(), told.Blocks(), idx2.Blocks(owner2), idx.Blocks(owner))
		}
	}
}

func TestMirrorLeavesNothingBehind(t *testing.T) {
	g := newFakeEngine(4, 4)
	m := newMirror()
	for range 300 {
		m.apply(g.step())
	}
	// Parents first, so that each stays for a while only for its children.
	hashes := []Hash{}
	for _, b := range g.blocks {
		hashes = append(hashes, b.hash)
	}
	for part := range slices.Chunk(hashes, 3) {
		m.apply([]Event{{Kind: Removed, Hashes: part, Medium: "GPU"}})
	}
	if len(m.blocks) != 0 {
		t.Errorf("%d blocks left of %d", len(m.blocks), len(hashes))
	}
}

func BenchmarkViewApply(b *testing.B) {
	g := newFakeEngine(1, 16)
	v, _, _ := newTestView(16)
	stored := g.store(1000)
	stored.HasParent = false
	removed := Event{Kind: Removed, Hashes: stored.Hashes, Medium: "GPU"}
	events := []Event{stored, removed}
	b.ReportAllocs()
	for b.Loop() {
		v.Apply(events)
	}
	b.ReportMetric(2000*float64(b.N)/b.Elapsed().Seconds(), "blocks/s")
}
