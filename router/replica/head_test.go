package replica

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/load"
)

// hearsay is books that list the heads that they receive, by peer and model.
type hearsay map[string][]Head

func (hearsay) ApplyShares(string, string, pools.Role, []load.Shared, time.Time) {}
func (hearsay) ApplySent(SlotSent, time.Time)                                    {}
func (hearsay) ApplyOpened(string, Slot)                                         {}
func (hearsay) ApplyBound(PoolBound, time.Time)                                  {}

func (h hearsay) ApplyHeads(peer, model string, heads []Head, _ time.Time) {
	if key := peer + " " + model; len(heads) == 0 {
		delete(h, key)
	} else {
		h[key] = slices.Clone(heads)
	}
}

// TestHeadsArePublished has heads come, change, stay and go: nothing is sent while there are none, the messages are 5 ms apart at least, and
// what stays is said each 20 ms.
func TestHeadsArePublished(t *testing.T) {
	own := NewLocal("a", 1)
	var m Message
	var script strings.Builder
	high, low := Head{"m", 0, false, 10, 0, 100}, Head{"m", 7, false, 1, 0, 5}
	var again time.Time
	for _, step := range []struct {
		ms    int
		heads []Head
	}{
		{0, nil}, {1, []Head{low, high}}, {2, []Head{high}}, {6, []Head{high}}, {7, []Head{high}}, {26, []Head{high}}, {27, nil}, {31, nil}, {90, nil}, {91, []Head{low}},
	} {
		now := noon.Add(time.Duration(step.ms) * time.Millisecond)
		data, next := own.Heads(slices.Clone(step.heads), now)
		again = next
		if fmt.Fprint(&script, step.ms, ":"); data != nil {
			require.NoError(t, m.read(data, map[string]string{}))
			fmt.Fprint(&script, m.Seq, m.Heads)
		}
		if !again.IsZero() {
			fmt.Fprint(&script, "→", again.Sub(noon).Milliseconds())
		}
		script.WriteByte(' ')
	}
	const want = "0: 1:1 [{m 0 false 10 0 100} {m 7 false 1 0 5}]→21 2:→6 6:2 [{m 0 false 10 0 100}]→26 7:→26 26:3 [{m 0 false 10 0 100}]→46 27:→31 31:4 [] 90: 91:5 [{m 7 false 1 0 5}]→111 "
	assert.Equal(t, want, script.String(), "said")
}

// TestHeadsComeAndGo: only the latest message counts, whatever is lost, doubled or reordered; a process that has ended has none, and
// one that says more than it may has those that it may.
func TestHeadsComeAndGo(t *testing.T) {
	h := hearsay{}
	p := NewPeers(Config{Join: time.Second, Expire: 10 * time.Second}, NewLocal("me", 1), h, noon)
	hear := func(from string, epoch, seq uint64, kind Kind, heads ...Head) {
		t.Helper()
		m := Message{Kind: kind, From: from, Epoch: epoch, Seq: seq, Heads: heads}
		_, err := hear(p, m.Append(nil), noon, nil)
		require.NoError(t, err)
	}
	is := func(want string) {
		t.Helper()
		assert.Equal(t, want, fmt.Sprint(h), "known")
	}
	x, y, z := Head{"m", 0, false, 10, 0, 1}, Head{"n", 0, false, 5, 0, 2}, Head{"m", 9, false, 3, 0, 3}
	hear("a", 5, 2, Heads, x, y, z)
	is("map[a m:[{m 0 false 10 0 1} {m 9 false 3 0 3}] a n:[{n 0 false 5 0 2}]]")
	hear("a", 5, 1, Heads, y)
	hear("a", 5, 2, Heads)
	is("map[a m:[{m 0 false 10 0 1} {m 9 false 3 0 3}] a n:[{n 0 false 5 0 2}]]") // late, and doubled
	hear("a", 5, 7, Heads, z)                                                     // 3 to 6 are lost
	is("map[a m:[{m 9 false 3 0 3}]]")
	hear("a", 4, 9, Heads, y) // of an earlier process
	hear("b", 1, 1, Heads, y)
	is("map[a m:[{m 9 false 3 0 3}] b n:[{n 0 false 5 0 2}]]")
	hear("a", 6, 1, Heads, x) // of the next
	is("map[a m:[{m 0 false 10 0 1}] b n:[{n 0 false 5 0 2}]]")
	hear("b", 1, 0, Leave)
	hear("b", 1, 2, Heads, y)
	is("map[a m:[{m 0 false 10 0 1}]]")
	hear("me", 1, 1, Heads, x) // its own words
	is("map[a m:[{m 0 false 10 0 1}]]")

	var flood []Head
	for i := range 10_000 {
		flood = append(flood, Head{fmt.Sprint("no such model ", i), uint64(i), false, 1, 0, 1})
	}
	hear("a", 6, 2, Heads, flood...)
	assert.True(t, len(h) == maxHeads && p.counts.Malformed == 0, "%d heads are known, want %d", len(h), maxHeads)
	for _, kind := range []Kind{Heads, Heads} {
		hear("a", 6, 3, kind)
	}
	is("map[]")
	data, _ := NewLocal("b", 1).Heads(flood, noon)
	assert.True(t, len(data) <= 100*maxHeads, "%d bytes are said", len(data))
	hear("c", 1, 1, Heads, x)
	for range 3 { // it cannot be reached
		p.Dialled("c", Unreachable, noon, p.Tick(noon.Add(20*time.Second), true, nil))
	}
	is("map[]")
}
