package replica

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/natsbus"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router/load"
)

// headList is books that list the heads that they receive, by peer and model.
type headList map[string][]queue.Head

func (headList) ApplyShares(string, string, pools.Role, []load.Shared, time.Time) {}
func (headList) ApplySent(SlotSent, time.Time)                                    {}
func (headList) ApplyOpened(string, Slot)                                         {}
func (headList) ApplyBound(PoolBound, time.Time)                                  {}

func (h headList) ApplyHeads(peer, model string, heads []queue.Head, _ time.Time) {
	if key := peer + " " + model; len(heads) == 0 {
		delete(h, key)
	} else {
		h[key] = slices.Clone(heads)
	}
}

// TestHeadsArePublished has heads come, change, stay and go: nothing is sent while there are none, the messages are 5 ms apart at least, and
// what stays is repeated each 20 ms.
func TestHeadsArePublished(t *testing.T) {
	own := NewLocal("a", 1)
	var m Message
	var script strings.Builder
	high, low := queue.Head{Strict: 10, Tokens: 100}, queue.Head{Lane: 7, Strict: 1, Tokens: 5}
	var again time.Time
	for _, step := range []struct {
		ms    int
		heads []queue.Head
	}{
		{0, nil}, {1, []queue.Head{low, high}}, {2, []queue.Head{high}}, {6, []queue.Head{high}}, {7, []queue.Head{high}},
		{26, []queue.Head{high}}, {27, nil}, {31, nil}, {90, nil}, {91, []queue.Head{low}},
	} {
		now := noon.Add(time.Duration(step.ms) * time.Millisecond)
		data, next := own.Heads(map[string][]queue.Head{"m": step.heads}, now)
		again = next
		if fmt.Fprint(&script, step.ms, ":"); data != nil {
			require.NoError(t, m.read(data))
			fmt.Fprint(&script, m.Seq, m.Heads)
		}
		if !again.IsZero() {
			fmt.Fprint(&script, "→", again.Sub(noon).Milliseconds())
		}
		script.WriteByte(' ')
	}
	const want = "0: 1:1 [{m {0 false 10 0 100}} {m {7 false 1 0 5}}]→21 2:→6 6:2 [{m {0 false 10 0 100}}]→26 7:→26 26:3 [{m {0 false 10 0 100}}]→46 27:→31 31:4 [] 90: 91:5 [{m {7 false 1 0 5}}]→111 "
	assert.Equal(t, want, script.String(), "published")
}

// TestHeadsComeAndGo: only the latest message counts, whatever is lost, doubled or reordered; a process that has ended
// has none.
func TestHeadsComeAndGo(t *testing.T) {
	h := headList{}
	p := NewPeers(Config{Join: time.Second, Expire: 10 * time.Second}, NewLocal("me", 1), h, noon)
	receive := func(from string, epoch, seq uint64, kind natsbus.Kind, heads ...ModelHead) {
		t.Helper()
		m := Message{Kind: kind, From: from, Epoch: epoch, Seq: seq, Heads: heads}
		_, err := receive(p, m.Append(nil), noon, nil)
		require.NoError(t, err)
	}
	is := func(want string) {
		t.Helper()
		assert.Equal(t, want, fmt.Sprint(h), "known")
	}
	x, y := ModelHead{"m", queue.Head{Strict: 10, Tokens: 1}}, ModelHead{"n", queue.Head{Strict: 5, Tokens: 2}}
	z := ModelHead{"m", queue.Head{Lane: 9, Strict: 3, Tokens: 3}}
	receive("a", 5, 2, natsbus.Heads, x, y, z)
	is("map[a m:[{0 false 10 0 1} {9 false 3 0 3}] a n:[{0 false 5 0 2}]]")
	receive("a", 5, 1, natsbus.Heads, y)
	receive("a", 5, 2, natsbus.Heads)
	is("map[a m:[{0 false 10 0 1} {9 false 3 0 3}] a n:[{0 false 5 0 2}]]") // late, and doubled
	receive("a", 5, 7, natsbus.Heads, z)                                    // 3 to 6 are lost
	is("map[a m:[{9 false 3 0 3}]]")
	receive("a", 4, 9, natsbus.Heads, y) // of an earlier process
	receive("b", 1, 1, natsbus.Heads, y)
	is("map[a m:[{9 false 3 0 3}] b n:[{0 false 5 0 2}]]")
	receive("a", 6, 1, natsbus.Heads, x) // of the next
	is("map[a m:[{0 false 10 0 1}] b n:[{0 false 5 0 2}]]")
	receive("b", 1, 0, natsbus.Leave)
	receive("b", 1, 2, natsbus.Heads, y)
	is("map[a m:[{0 false 10 0 1}]]")
	receive("me", 1, 1, natsbus.Heads, x) // its own message
	is("map[a m:[{0 false 10 0 1}]]")

	var flood []queue.Head
	for i := range 10_000 {
		flood = append(flood, queue.Head{Lane: uint64(i), Strict: 1, Tokens: 1})
	}
	data, _ := NewLocal("b", 1).Heads(map[string][]queue.Head{"m": flood}, noon)
	assert.True(t, len(data) <= 100*maxHeads, "%d bytes are sent", len(data))
	receive("a", 6, 3, natsbus.Heads)
	is("map[]")
	receive("c", 1, 1, natsbus.Heads, x)
	for range 3 { // it cannot be reached
		p.Dialled("c", Unreachable, noon, p.Tick(noon.Add(20*time.Second), true, nil))
	}
	is("map[]")
}
