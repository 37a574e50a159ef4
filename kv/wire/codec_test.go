package wire

import (
	"encoding/hex"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// goldenHex is a batch by hand: a stored event as a map, the same as an array, and a removal.
var goldenHex = strings.Join([]string{
	"93", "cb41d954fc40000000", // [1700000000.0, …, 2]
	"93",
	"88", "a474797065", "ab426c6f636b53746f726564", // {"type": "BlockStored",
	"ac626c6f636b5f686173686573", "92", "05", "cfffffffffffffffff", // "block_hashes": [5, 2^64-1],
	"b1706172656e745f626c6f636b5f68617368", "03", // "parent_block_hash": 3,
	"a9746f6b656e5f696473", "94", "01", "cd0100", "ce00010000", "ceffffffff", // "token_ids": [1, 256, 65536, 2^32-1],
	"aa626c6f636b5f73697a65", "02", // "block_size": 2,
	"a76c6f72615f6964", "c0", // "lora_id": null,
	"a66d656469756d", "a3475055", // "medium": "GPU",
	"a96c6f72615f6e616d65", "c0", // "lora_name": null}
	"98", "ab426c6f636b53746f726564", // ["BlockStored", [5, -1], 3, the tokens, 2, null, "GPU", null]
	"92", "05", "ff", "03", "94", "01", "cd0100", "ce00010000", "ceffffffff", "02", "c0", "a3475055", "c0",
	"83", "a474797065", "ac426c6f636b52656d6f766564", // {"type": "BlockRemoved",
	"ac626c6f636b5f686173686573", "94", "05", // "block_hashes": [5,
	"c400", "c4020102", "c40aff000102030405060708", // and bytes, of which the last eight count],
	"a66d656469756d", "a3475055", // "medium": "GPU"}
	"02",
}, "")

func goldenBatch() Batch {
	stored := Event{
		Kind: Stored, Hashes: []Hash{5, 1<<64 - 1}, Parent: 3, HasParent: true,
		Tokens: []uint32{1, 256, 65536, 1<<32 - 1}, BlockSize: 2, Medium: "GPU",
	}
	return Batch{TS: 1700000000, Rank: 2, Events: []Event{
		stored, stored, {Kind: Removed, Hashes: []Hash{5, 0, 0x102, 0x102030405060708}, Medium: "GPU"},
	}}
}

func TestDecodeBatchByHand(t *testing.T) {
	payload, err := hex.DecodeString(goldenHex)
	require.NoError(t, err)
	var b Batch
	require.NoError(t, DecodeBatch(&b, payload))
	want := goldenBatch()
	assert.Equal(t, want.Events, b.Events)
	assert.Equal(t, [4]any{want.TS, want.Rank, 0, 0}, [4]any{b.TS, b.Rank, b.Skipped, b.SkippedFields})
	assert.True(t, b.Time().Equal(time.Unix(1700000000, 0)), b.Time())
}

func TestDecodeBatchSkips(t *testing.T) {
	const cleared = "81a474797065b0416c6c426c6f636b73436c6561726564"
	const key = "ac626c6f636b5f686173686573" // "block_hashes"
	const removed = "a474797065ac426c6f636b52656d6f766564" + key + "9105"
	for _, c := range []struct {
		name            string
		event           string
		events          int // beside the one that follows
		skipped, fields int
	}{
		{"type unknown", "81a474797065a3416263", 0, 1, 0},
		{"no event", "c3", 0, 1, 0},
		{"hash is a float", "82a474797065ac426c6f636b52656d6f766564" + key + "91cb3ff8000000000000", 0, 1, 0},
		{"field unknown", "83" + removed + "a178c3", 1, 0, 1},
		{"key is a number", "83" + removed + "07a179", 1, 0, 1},
		{"medium is a number", "83" + removed + "a66d656469756d05", 1, 0, 1},
		{"medium is null", "83" + removed + "a66d656469756dc0", 1, 0, 0},
		{"group is text", "83" + removed + "a967726f75705f696478a130", 1, 0, 1},
		{"pairs among plain ids", "95ab426c6f636b53746f7265649105c0920192010201", 0, 1, 0},
		{"id too big", "95ab426c6f636b53746f7265649105c091cf000000010000000001", 0, 1, 0},
		{"id negative", "95ab426c6f636b53746f7265649105c091ff01", 0, 1, 0},
		{"block size negative", "95ab426c6f636b53746f7265649105c09101ff", 0, 1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			payload, err := hex.DecodeString("930092" + c.event + cleared + "00")
			require.NoError(t, err)
			var b Batch
			require.NoError(t, DecodeBatch(&b, payload))
			assert.True(t, len(b.Events) == c.events+1 && b.Skipped == c.skipped && b.SkippedFields == c.fields,
				"%d events, %d skipped, %d fields skipped", len(b.Events), b.Skipped, b.SkippedFields)
			assert.True(t, b.HasCleared(), "the event behind it is gone")
		})
	}
}

func TestDecodeBatchRefuses(t *testing.T) {
	deep := "930091" + strings.Repeat("91", 1_000_000) + "c0" + "00"
	for name, text := range map[string]string{
		"nothing": "", "map": "80", "one element": "9100", "events a map": "93008000", "ts text": "93a1309000",
		"a byte left over": "9300900000", "event cut short": "93009192", "length a lie": "9300ddffffffff",
		"hashes' length a lie": "93009192ac426c6f636b52656d6f766564ddffffffff0102", "a million deep": deep,
	} {
		payload, err := hex.DecodeString(text)
		require.NoError(t, err)
		b := Batch{Events: make([]Event, 1)}
		assert.ErrorIs(t, DecodeBatch(&b, payload), ErrNotBatch, "%s: error", name)
		assert.Empty(t, b.Events, "%s events all the same", name)
	}
}

func TestAppendBatchKeepsEverything(t *testing.T) {
	five := OptInt{5, true}
	want := Batch{TS: 0.25, Rank: NoRank, Events: []Event{
		{
			Kind: Stored, Hashes: []Hash{1, 1 << 63}, Parent: 9, HasParent: true, Tokens: []uint32{1, 0, 3, 4},
			Texts: []TextToken{{1, "im:0"}}, BlockSize: 2, LoraName: "l", LoraID: OptInt{-7, true}, Medium: "CPU",
			CacheSalt: "s", SessionID: "t", GroupIdx: five, SpecKind: "full_attention", SlidingWindow: five,
			Locality: "LOCAL", Ownership: "o",
			ExtraKeys: [][]ExtraKey{nil, {{Text: "l"}, {Text: "i", Offset: -3, HasOffset: true}, {Bytes: []byte{1}}}},
			MMKeys:    [][]MMKey{{{Hash: "ab", StartOffset: 4, UUID: "u"}}, {}},
			Lookahead: [][]uint32{{7}, {}},
		},
		{Kind: Stored, Hashes: []Hash{2}, Tokens: []uint32{5, 6}, Seconds: []uint32{6, 7}, BlockSize: 2},
		{Kind: Removed, Hashes: []Hash{1}, Medium: "x", GroupIdx: five, Locality: "REMOTE", Ownership: "p"},
		{Kind: Cleared},
	}}
	var got Batch
	require.NoError(t, DecodeBatch(&got, AppendBatch(nil, &want)))
	assert.Equal(t, want.Events, got.Events)
	assert.Equal(t, [2]any{want.TS, want.Rank}, [2]any{got.TS, got.Rank})
}

// TestListsFollowTheBlocks: an event that says something of more blocks than it names is none.
func TestListsFollowTheBlocks(t *testing.T) {
	for name, e := range map[string]Event{
		"extra keys":  {ExtraKeys: make([][]ExtraKey, 3)},
		"mm keys":     {MMKeys: make([][]MMKey, 3)},
		"look-aheads": {Lookahead: make([][]uint32, 3)},
	} {
		e.Kind, e.Hashes, e.Tokens, e.BlockSize = Stored, []Hash{1, 2}, make([]uint32, 32), 16
		good := Event{Kind: Removed, Hashes: []Hash{9}}
		var b Batch
		require.NoError(t, DecodeBatch(&b, AppendBatch(nil, &Batch{Events: []Event{e, good}})))
		assert.True(t, b.Skipped == 1 && len(b.Events) == 1 && b.Events[0].Kind == Removed,
			"%s: %d events, %d skipped", name, len(b.Events), b.Skipped)
	}
}

func TestPackerCutsBetweenBlocks(t *testing.T) {
	const blocks, size, limit = 1000, 16, 4096
	e := Event{Kind: Stored, Parent: 77, HasParent: true, BlockSize: size, Medium: "GPU", Texts: []TextToken{{size * 500, "x"}}}
	for i := range blocks {
		e.Hashes = append(e.Hashes, Hash(i+1000))
		for j := range size {
			e.Tokens = append(e.Tokens, uint32(i*size+j)*1e5)
		}
	}
	e.Tokens[size*500] = 0
	p := NewPacker(limit, time.Now(), 1)
	p.Add(e)
	p.Add(Event{Kind: Removed, Hashes: e.Hashes})
	p.Add(Event{Kind: Cleared})

	var whole, removed Event
	var b Batch
	cleared := 0
	for _, payload := range p.Batches() {
		assert.LessOrEqual(t, len(payload), limit, "a batch of N bytes")
		require.NoError(t, DecodeBatch(&b, payload))
		for _, part := range b.Events {
			switch part.Kind {
			case Stored:
				if n := len(whole.Hashes); n > 0 && (!part.HasParent || part.Parent != whole.Hashes[n-1]) {
					t.Errorf("part at block %d follows on %d", n, part.Parent)
				}
				for _, text := range part.Texts {
					text.Index += len(whole.Tokens)
					whole.Texts = append(whole.Texts, text)
				}
				whole.Hashes = append(whole.Hashes, part.Hashes...)
				whole.Tokens = append(whole.Tokens, part.Tokens...)
			case Removed:
				removed.Hashes = append(removed.Hashes, part.Hashes...)
			case Cleared:
				cleared++
			}
		}
	}
	assert.Equal(t, [3]any{e.Hashes, e.Tokens, e.Texts}, [3]any{whole.Hashes, whole.Tokens, whole.Texts}, "the parts are not the whole")
	assert.Equal(t, e.Hashes, removed.Hashes)
	assert.Equal(t, 1, cleared)
}

func FuzzDecodeBatch(f *testing.F) {
	golden, err := hex.DecodeString(goldenHex)
	require.NoError(f, err)
	f.Add(golden)
	f.Add(golden[:len(golden)/2])
	f.Add([]byte{0x93, 0, 0xdd, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, payload []byte) {
		var b, again Batch
		if err := DecodeBatch(&b, payload); err != nil {
			require.True(t, errors.Is(err, ErrNotBatch) && len(b.Events) == 0, "%v with %d events", err, len(b.Events))
			return
		}
		if b.TS != b.TS {
			b.TS = 0 // not a number, and so not equal to itself
		}
		out := AppendBatch(nil, &b)
		require.NoError(t, DecodeBatch(&again, out), "what was decoded does not survive\n%x", out)
		require.True(t, len(again.Events) == len(b.Events) && again.TS == b.TS && again.Rank == b.Rank && again.Skipped == 0,
			"\n got %+v\nwant %+v", again, b)
		for i := range b.Events {
			require.Equal(t, b.Events[i], again.Events[i], "event %d", i)
			require.LessOrEqual(t, len(appendEvent(nil, &b.Events[i])), sizeOf(&b.Events[i]), "bytes, at most N expected")
		}
	})
}
