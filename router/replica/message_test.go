package replica

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/load"
)

func messages() []Message {
	share := SlotShare{Slot{"model", pools.Decode, "worker", 3}, load.Share{
		Account: load.Account{Requests: 1, ActiveBlocks: 2, PrefillTokens: 3, Faded: 4}, Left: 9 * time.Second, First: 2 * time.Microsecond, Computed: 5, FirstTokens: 6,
	}}
	promised := SlotShare{Slot{"model", pools.Decode, "", 0}, load.Share{Account: load.Account{ActiveBlocks: 77}}}
	return []Message{
		{Kind: Delta, From: "a", Epoch: 1 << 60, Seq: 7, Shares: []SlotShare{share, promised}, Sends: []SlotSent{{share.Slot, true, []uint64{1, 1 << 63}}}, Opened: []Slot{share.Slot}, Bound: []PoolBound{
			{"model", pools.Decode, 1 << 40, []load.SessionBinding{{Session: 1 << 63, Worker: 2, Rank: 3, Moves: 4, Born: 5, Idle: 6}, {Session: 7, Moves: math.MaxInt32, Born: load.MaxSessionMillis}}},
		}},
		{Kind: Heartbeat, From: "a", Epoch: 1, Seq: 7, Digest: 1 << 63, Addr: "a:8080", Booked: 9, Stamp: time.Second, Echoes: []Echo{{"b", time.Second, time.Millisecond}}, Bound: []PoolBound{{Model: "model", Role: pools.Both, Clock: 9}}},
		{Kind: Page, From: "a", Epoch: 1, After: share.Slot, Last: true, Shares: []SlotShare{share}},
		{Kind: Page, From: "a", Epoch: 1, Seq: 7, After: Slot{Role: pools.Prefill}, Shares: []SlotShare{share}},
		{Kind: Leave, From: "a", Epoch: 1},
		{Kind: Heads, From: "a", Epoch: 1, Seq: 3, Heads: []Head{{"model", 0, false, 10, 77, 4096}, {"model", 1 << 63, true, math.MaxUint32, math.MaxUint64, math.MaxInt32}, {"other", 5, false, 1, 1, 0}}},
	}
}

func TestMessagesComeAsTheyWere(t *testing.T) {
	for _, want := range messages() {
		var got Message
		assert.NoError(t, got.read(want.Append(nil), map[string]string{}))
		assert.Equal(t, want, got)
	}
	after := Slot{"m", pools.Both, "w", 2}
	got, err := ReadPageRequest(PageRequest(after))
	assert.True(t, err == nil && got == after, "asked for what comes after %v, %v", got, err)
}

// TestUnknownItemsAreSkipped: a later version may say more in a message.
func TestUnknownItemsAreSkipped(t *testing.T) {
	m := messages()[0]
	m.Sends, m.Opened, m.Bound = nil, nil, nil
	data := append(m.Append(nil), 99, 2, 0, 'x', 'y')
	data = appendShare(data, &m.Shares[0])
	var got Message
	err := got.read(data, map[string]string{})
	assert.True(t, err == nil && len(got.Shares) == 3, "%d shares, %v", len(got.Shares), err)
}

// TestPagesThatLeadNowhere: a page that is not the last is refused unless it has shares after those that it was asked for, and the peer's
// other messages count as before.
func TestPagesThatLeadNowhere(t *testing.T) {
	first := Slot{Role: roles[0]}
	share := SlotShare{Slot{"model", pools.Decode, "worker", 3}, load.Share{Account: load.Account{Requests: 1}}}
	for name, page := range map[string]Message{
		"no shares":        {After: first},
		"the slot itself":  {After: first, Shares: []SlotShare{{Slot: first}}},
		"those before":     {After: first, Shares: []SlotShare{share, {Slot: first}}},
		"the last, whole":  {After: first, Shares: []SlotShare{share}, Last: true},
		"the last, empty":  {After: first, Last: true},
		"one of several":   {After: first, Shares: []SlotShare{share}},
		"after the latest": {After: share.Slot, Shares: []SlotShare{share}},
	} {
		page.Kind, page.From, page.Epoch, page.Seq = Page, "a", 1, 1
		leads := page.Last || name == "one of several"
		heard := ledger{}
		p := NewPeers(Config{Join: time.Second, Expire: time.Second}, NewLocal("me", 1), heard, noon)
		say := Message{Kind: Delta, From: "a", Epoch: 1, Seq: 1, Shares: []SlotShare{share}}
		if do, _ := hear(p, say.Append(nil), noon, nil); len(do) == 0 || do[len(do)-1] != (Effect{Do: RequestPage, Peer: "a", After: first}) {
			t.Fatalf("a new gateway is asked for no page: %+v", do)
		}
		_, err := hear(p, page.Append(nil), noon, nil)
		assert.True(t, (err == nil) == leads, "%s: %v", name, err)
		say.Seq = 2
		_, err = hear(p, say.Append(nil), noon, nil)
		assert.True(t, err == nil && heard["a"][share.Slot] == share.Account, "%s: then %v, %v", name, err, heard)
	}
}

// FuzzMessage: whatever comes, nothing panics or grows without bound, and what is taken can be said again.
func FuzzMessage(f *testing.F) {
	for _, m := range messages() {
		f.Add(m.Append(nil))
	}
	f.Add([]byte{version, 9})
	f.Fuzz(func(t *testing.T, data []byte) {
		var m, again Message
		names := map[string]string{}
		if m.read(data, names) == nil {
			assert.NoError(t, again.read(m.Append(nil), names), "%+v cannot be read again", m)
			assert.Equal(t, again, m, "became")
		}
		p := NewPeers(Config{Join: time.Second, Expire: time.Second}, NewLocal("me", 1), books{ledger{}, load.NewSessions(bindingTTL, true)}, noon)
		said := messages()[0]
		do, _ := hear(p, said.Append(nil), noon, nil) // which has a page asked for
		for range 2 {
			do, _ = hear(p, data, noon, do)
		}
		do = p.Tick(noon.Add(time.Hour), true, do)
		p.Tick(noon.Add(2*time.Hour), true, do)
		_, _ = ReadPageRequest(data)
	})
}
