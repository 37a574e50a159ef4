package view

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/lab/testkit"
)

// recordings are messages of a running vLLM 0.32. They lie beside the checkout, not in it.
const recordings = "../../../shared/vectors/kvevents-vllm-0.32/"

// recorded returns the payloads of a recording, and reads what is said of it into about. It skips where there is none.
func recorded(t *testing.T, name string, about any) (payloads [][]byte) {
	data, err := os.ReadFile(recordings + name + ".bin")
	if errors.Is(err, os.ErrNotExist) {
		t.Skipf("reads %s, skipped when absent", recordings)
	}
	text, err2 := os.ReadFile(recordings + name + ".json")
	require.NoError(t, errors.Join(err, err2, json.Unmarshal(text, about)))
	for frame := 0; len(data) > 0; frame++ {
		size := binary.BigEndian.Uint32(data)
		if frame%3 == 2 {
			payloads = append(payloads, data[4:4+size])
		}
		data = data[4+size:]
	}
	return payloads
}

// replayed plays a recording into a view: whole, and with a snapshot, and with another gateway's copy, in the place of the
// first of its messages, for each number of these. All must end alike.
func replayed(t *testing.T, payloads [][]byte, check func(v *View, part *testkit.Part, how string)) {
	for cut := range len(payloads) + 1 {
		first, _ := newTestView(32)
		record := NewRecord()
		for _, p := range payloads[:cut] {
			first.Apply(decoded(t, p))
			record.Apply(decoded(t, p))
		}
		goOn := func(how string, v *View, part *testkit.Part) {
			for _, p := range payloads[cut:] {
				v.Apply(decoded(t, p))
			}
			check(v, part, how+" after "+strconv.Itoa(cut))
		}
		snapshot, part := viewOf(t, record, 32, 1<<16)
		goOn("snapshot", snapshot, part)
		copied, part := restored(t, first, time.Time{})
		goOn("copy", copied, part)
	}
}

// A hybrid model, Gemma 3's form: group 5 of six has full attention, and what it stores is what counts. The sliding windows'
// events name fewer blocks than their tokens fill.
func TestRecordedHybrid(t *testing.T) {
	var about struct {
		Messages []struct {
			Events []struct {
				Hashes []string `json:"block_hashes"`
				Kind   string   `json:"kv_cache_spec_kind"`
			}
		}
	}
	payloads := recorded(t, "hybrid-sliding-first", &about)
	full := map[string]bool{}
	for _, m := range about.Messages {
		for _, e := range m.Events {
			for _, h := range e.Hashes {
				full[h] = full[h] || e.Kind == "full_attention"
			}
		}
	}
	replayed(t, payloads, func(v *View, part *testkit.Part, how string) {
		if v.Blocks() != 45 || v.Blocks() != len(full) || part.Blocks() != 45 || v.Tally().Orphans+v.Tally().Unknown != 0 || v.Pieces() != "" {
			t.Errorf("%s: %d blocks, %d indexed, want 45; %+v", how, v.Blocks(), part.Blocks(), v.Tally())
		}
	})
}

// A prompt's last block is stored twice and removed once. The engine's own pool shows what is left.
func TestRecordedTwins(t *testing.T) {
	var about struct {
		Pool []string `json:"pool_at_end"`
	}
	payloads := recorded(t, "stored-twice-evicted-once", &about)
	replayed(t, payloads, func(v *View, part *testkit.Part, how string) {
		for _, h := range about.Pool {
			n, err := strconv.ParseUint(h, 10, 64)
			_, ok := v.known.find(wire.Hash(n))
			require.True(t, ok && err == nil, "%s: the engine holds %s, and the view does not (%v)", how, h, err)
		}
		assert.True(t, v.Blocks() == len(about.Pool) && part.Blocks() == len(about.Pool) && v.Tally().Unknown == 0,
			"%s: %d blocks, %d indexed, want %d; %+v", how, v.Blocks(), part.Blocks(), len(about.Pool), v.Tally())
	})
}

// Chains that an engine announces again, which look as if they were stored again, are found out when they come to more blocks
// than it has; from then on, and while events are missing, each counts once.
func TestReannouncedAreNoCopies(t *testing.T) {
	chain := wire.Event{Kind: wire.Stored, Hashes: []wire.Hash{1, 2, 3}, Tokens: testkit.IDs(1, 12), BlockSize: 4}
	removed := wire.Event{Kind: wire.Removed, Hashes: chain.Hashes}
	for _, c := range []struct {
		times, registered int // of the router's 2 tokens
		missing           bool
		blocks            int
	}{{3, 18, false, 3}, {4, 18, false, 0}, {402, 18, false, 3}, {400, 0, false, 3}, {3, 18, true, 0}, {1, 18, false, 0}} {
		v, part := newTestView(2)
		v.Register(c.registered)
		for range c.times {
			v.Apply([]wire.Event{chain})
			if c.missing {
				v.Uncount()
			}
		}
		v.Apply([]wire.Event{removed})
		assert.True(t, v.Blocks() == c.blocks && part.Blocks() == 2*c.blocks,
			"%+v: %d blocks are left, %d indexed", c, v.Blocks(), part.Blocks())
		v.Apply([]wire.Event{{Kind: wire.Cleared}})
		assert.True(t, v.copies == nil && v.again == 0 && v.known.device == 0, "%+v: copies outlive a clear", c)
	}
}

// A group is followed by its kind: the first whose blocks are prefixes; the first of all where no kind is named.
func TestViewFollowsOneGroup(t *testing.T) {
	stored := func(group int64, kind string, blocks int, hashes ...wire.Hash) wire.Event {
		return wire.Event{Kind: wire.Stored, Hashes: hashes, Tokens: testkit.IDs(1, 4*blocks), BlockSize: 4,
			GroupIdx: wire.OptInt{Value: group, Set: group >= 0}, SpecKind: kind}
	}
	removed := func(group int64, h wire.Hash) wire.Event {
		return wire.Event{Kind: wire.Removed, Hashes: []wire.Hash{h}, GroupIdx: wire.OptInt{Value: group, Set: group >= 0}}
	}
	window, mamba, full := stored(0, "sliding_window", 3, 2, 3), stored(0, "mamba", 3, 3), stored(2, "full_attention", 3, 1, 2, 3)
	for _, c := range []struct {
		name   string
		events []wire.Event
		blocks int
		pieces string
	}{
		{"full behind a window", []wire.Event{window, full, removed(0, 2), removed(2, 3)}, 2, ""},
		{"full behind Mamba", []wire.Event{mamba, full, removed(0, 3)}, 3, ""},
		{"MLA", []wire.Event{window, stored(1, "mla_attention", 2, 1, 2)}, 2, ""},
		{"sink", []wire.Event{window, stored(1, "sink_full_attention", 2, 1, 2)}, 2, ""},
		{"the first of two", []wire.Event{full, stored(3, "full_attention", 3, 1, 2, 3), removed(3, 1)}, 3, ""},
		{"no kinds", []wire.Event{stored(1, "", 3, 1, 2, 3), stored(0, "", 2, 1, 2), removed(1, 1)}, 2, ""},
		{"no groups", []wire.Event{stored(-1, "", 3, 1, 2, 3), removed(-1, 3)}, 2, ""},
		{"no group in a removal", []wire.Event{window, full, removed(-1, 3)}, 2, ""},
		{"a window alone", []wire.Event{stored(0, "sliding_window", 3, 1, 2, 3), removed(0, 1)}, 0, "sliding_window"},
		{"a window without a kind", []wire.Event{stored(0, "", 3, 3)}, 0, "sliding_window"},
		{"local chunks", []wire.Event{stored(0, "chunked_local_attention", 3, 3)}, 0, "chunked_local_attention"},
		{"cross-attention before full", []wire.Event{stored(0, "cross_attention", 3, 7, 8, 9), full}, 3, ""},
		{"a kind of the future", []wire.Event{stored(0, "attention_2030", 3, 1, 2, 3)}, 0, "attention_2030"},
		{"a number below 0", []wire.Event{stored(0, "", 3, 1, 2, 3),
			{Kind: wire.Stored, Hashes: []wire.Hash{1}, GroupIdx: wire.OptInt{Value: -1, Set: true}, SpecKind: "full_attention"}}, 3, ""},
		{"the number means another kind", []wire.Event{full, stored(2, "mamba", 3, 3), stored(0, "full_attention", 1, 9)}, 1, ""},
		{"kinds are named later", []wire.Event{stored(0, "", 3, 1, 2, 3), stored(1, "full_attention", 2, 1, 2)}, 2, ""},
		{"cleared and restarted", []wire.Event{full, {Kind: wire.Cleared}, stored(0, "full_attention", 1, 9)}, 1, ""},
	} {
		v, part := newTestView(4)
		v.Apply(c.events)
		if v.Blocks() != c.blocks || part.Blocks() != c.blocks || v.Pieces() != c.pieces {
			t.Errorf("%s: %d blocks, %d indexed, pieces %q; want %d, %q", c.name, v.Blocks(), part.Blocks(), v.Pieces(), c.blocks, c.pieces)
		}
		record := NewRecord()
		record.Apply(c.events)
		again, _ := viewOf(t, record, 4, 1<<16)
		assert.Equal(t, c.blocks, again.Blocks(), "%s: by its snapshot", c.name)
	}
}
