package replica

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/tinylib/msgp/msgp"

	"github.com/tandem-pd/tandem/internal/natsbus"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router/load"
)

func messages() []Message {
	share := SlotShare{Slot{"model", pools.Decode, "worker", 3}, load.Share{
		Account: load.Account{Requests: 1, ActiveBlocks: 2, PrefillTokens: 3, Faded: 4}, Left: 9 * time.Second,
		First: 2 * time.Microsecond, Computed: 5, FirstTokens: 6,
	}}
	promised := SlotShare{Slot{"model", pools.Decode, "", 0}, load.Share{Account: load.Account{ActiveBlocks: 77}}}
	return []Message{
		{Kind: natsbus.Delta, From: "a", Epoch: 1 << 60, Seq: 7, Shares: []SlotShare{share, promised},
			Sends: []SlotSent{{share.Slot, true, []uint64{1, 1 << 63}}}, Opened: []Slot{share.Slot}, Bound: []PoolBound{
				{"model", pools.Decode, 1 << 40, []load.SessionBinding{{Session: 1 << 63, Worker: 2, Rank: 3, Moves: 4, Born: 5, Idle: 6},
					{Session: 7, Moves: math.MaxInt32, Born: load.MaxSessionMillis}}},
			}},
		{Kind: natsbus.Heartbeat, From: "a", Epoch: 1, Seq: 7, Digest: 1 << 63, Addr: "a:8080", Booked: 9, Stamp: time.Second,
			Echoes: []Echo{{"b", time.Second, time.Millisecond}}, Bound: []PoolBound{{Model: "model", Role: pools.Both, Clock: 9}}},
		{Kind: natsbus.Page, From: "a", Epoch: 1, After: share.Slot, Last: true, Shares: []SlotShare{share}},
		{Kind: natsbus.Page, From: "a", Epoch: 1, Seq: 7, After: Slot{Role: pools.Prefill}, Shares: []SlotShare{share}},
		{Kind: natsbus.Leave, From: "a", Epoch: 1},
		{Kind: natsbus.Heads, From: "a", Epoch: 1, Seq: 3, Heads: []ModelHead{
			{"model", queue.Head{Strict: 10, Key: 77, Tokens: 4096}},
			{"model", queue.Head{Lane: 1 << 63, Retry: true, Strict: math.MaxUint32, Key: math.MaxUint64, Tokens: math.MaxInt32}},
			{"other", queue.Head{Lane: 5, Strict: 1, Key: 1}},
		}},
	}
}

func TestMessagesAreDecodedAsEncoded(t *testing.T) {
	for _, want := range messages() {
		var got Message
		assert.NoError(t, got.read(want.Append(nil)))
		assert.Equal(t, want, got)
	}
	after := Slot{"m", pools.Both, "w", 2}
	got, err := readPageRequest(NewLocal("a", 1).PageRequest(after))
	assert.True(t, err == nil && got == after, "requested what comes after %v, %v", got, err)
}

// TestLaterBuildsMayAppend: an unknown key of a body and a further element of an array are skipped, so that a build of
// the same version can add to both.
func TestLaterBuildsMayAppend(t *testing.T) {
	data := natsbus.Seal(nil, natsbus.Delta, "a")
	data[0]++ // one element more
	data = msgp.AppendString(data, "new in the envelope")
	data = msgp.AppendMapHeader(data, 3)
	data = msgp.AppendUint64(msgp.AppendString(data, "epoch"), 7)
	data = msgp.AppendMapStrStr(msgp.AppendString(data, "new in the body"), map[string]string{"x": "y"})
	data = msgp.AppendArrayHeader(msgp.AppendString(data, "opened"), 1)
	data = msgp.AppendArrayHeader(data, 5)
	data = msgp.AppendInt(msgp.AppendString(msgp.AppendUint8(msgp.AppendString(data, "m"), 1), "w"), 3)
	data = msgp.AppendString(data, "new in the slot")
	var got Message
	require.NoError(t, got.read(data))
	assert.Equal(t, Message{
		Kind: natsbus.Delta, From: "a", Epoch: 7, Opened: []Slot{{"m", pools.Decode, "w", 3}}, After: Slot{},
	}, got)
}

// TestOtherVersions: in a rolling update, gateways whose messages have another version are logged once each, count for
// nothing, and disturb nothing of the others. Version 1 is the format of earlier builds, here a whole heartbeat of one.
func TestOtherVersions(t *testing.T) {
	p := NewPeers(Config{Join: time.Second, Expire: time.Second}, NewLocal("me", 1), ledger{}, noon)
	next, _ := (&natsbus.Envelope{Version: natsbus.Version + 1, Kind: 77, From: "next"}).MarshalMsg(nil)
	next = append(next, 0xc1) // which MessagePack never uses
	first := append([]byte{1, byte(natsbus.Heartbeat), 5}, "first\x01\x00........\x06a:8080\x00\x00\x00"...)
	var do []Effect
	for range 3 {
		var err error
		for from, data := range map[string][]byte{"next": next, "first": first} {
			do, err = p.Receive(from, data, noon, do)
			require.NoError(t, err)
		}
	}
	assert.ElementsMatch(t, []Effect{{Do: OtherVersion, Peer: "next"}, {Do: OtherVersion, Peer: "first"}}, do)
	assert.Zero(t, p.Len())
	assert.Zero(t, p.Counts())
	m := messages()[1]
	_, err := receive(p, m.Append(nil), noon, nil)
	assert.True(t, err == nil && p.Len() == 1, "%v, %d gateways", err, p.Len())
}

// TestHostileNumbers: what no gateway sends is refused before anything is allocated for it.
func TestHostileNumbers(t *testing.T) {
	for name, m := range map[string]Message{
		"a rank below 0": {Opened: []Slot{{Rank: -1}}},
		"a long name":    {Opened: []Slot{{Worker: strings.Repeat("x", 1025)}}},
		"many heads":     {Heads: make([]ModelHead, maxHeads+1)},
		"many shares":    {Shares: make([]SlotShare, maxShares+1)},
		"many hashes":    {Sends: []SlotSent{{Hashes: make([]uint64, maxHashes+1)}}},
		"many bindings":  {Bound: []PoolBound{{Bindings: make([]load.SessionBinding, load.SessionBatch+1)}}},
	} {
		m.Kind, m.From = natsbus.Delta, "a"
		assert.Error(t, new(Message).read(m.Append(nil)), name)
	}
	data := natsbus.Seal(nil, natsbus.Delta, "a")
	data = msgp.AppendArrayHeader(msgp.AppendString(msgp.AppendMapHeader(data, 1), "shares"), math.MaxUint32)
	assert.Less(t, testing.AllocsPerRun(100, func() { _ = new(Message).read(data) }), 10.0)
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
		page.Kind, page.From, page.Epoch, page.Seq = natsbus.Page, "a", 1, 1
		leads := page.Last || name == "one of several"
		got := ledger{}
		p := NewPeers(Config{Join: time.Second, Expire: time.Second}, NewLocal("me", 1), got, noon)
		delta := Message{Kind: natsbus.Delta, From: "a", Epoch: 1, Seq: 1, Shares: []SlotShare{share}}
		if do, _ := receive(p, delta.Append(nil), noon, nil); len(do) == 0 ||
			do[len(do)-1] != (Effect{Do: RequestPage, Peer: "a", After: first}) {
			t.Fatalf("a new gateway is asked for no page: %+v", do)
		}
		_, err := receive(p, page.Append(nil), noon, nil)
		assert.True(t, (err == nil) == leads, "%s: %v", name, err)
		delta.Seq = 2
		_, err = receive(p, delta.Append(nil), noon, nil)
		assert.True(t, err == nil && got["a"][share.Slot] == share.Account, "%s: then %v, %v", name, err, got)
	}
}

// FuzzMessage: whatever comes, nothing panics or grows without bound, and what is accepted can be encoded again.
func FuzzMessage(f *testing.F) {
	for _, m := range messages() {
		f.Add(m.Append(nil))
	}
	f.Add([]byte{1, 9})
	f.Fuzz(func(t *testing.T, data []byte) {
		var m, again Message
		if m.read(data) == nil {
			assert.NoError(t, again.read(m.Append(nil)), "%+v cannot be read again", m)
			assert.Equal(t, again, m, "became")
		}
		p := NewPeers(Config{Join: time.Second, Expire: time.Second}, NewLocal("me", 1),
			books{ledger{}, load.NewSessions(bindingTTL, true)}, noon)
		first := messages()[0]
		do, _ := receive(p, first.Append(nil), noon, nil) // which requests a page
		for range 2 {
			do, _ = receive(p, data, noon, do)
		}
		do = p.Tick(noon.Add(time.Hour), true, do)
		p.Tick(noon.Add(2*time.Hour), true, do)
		_, _ = readPageRequest(data)
	})
}

// BenchmarkDelta encodes and decodes a delta of two shares, what one booking of two legs sends.
func BenchmarkDelta(b *testing.B) {
	m := Message{Kind: natsbus.Delta, From: "gateway-1:8000", Epoch: 1 << 60, Seq: 7,
		Shares: []SlotShare{messages()[0].Shares[0], messages()[0].Shares[0]}}
	var got Message
	var data []byte
	for b.Loop() {
		data = m.Append(data[:0])
		if err := got.read(data); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(len(data)), "bytes")
}
