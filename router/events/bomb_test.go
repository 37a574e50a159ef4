package events

import (
	"bytes"
	"runtime"
	"testing"

	"github.com/tinylib/msgp/msgp"
)

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
		"keys that nobody knows":   stored(one, "nobody", list([]byte{0xa0}, 1<<16-1)),
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
		v, _, _ := newTestView(16)
		v.Register(0)
		batch := new(Batch)
		if err = DecodeBatch(batch, payload); err == nil {
			v.Apply(batch.Events)
		}
		runtime.ReadMemStats(&after)
		made = after.TotalAlloc - before.TotalAlloc
		_ = DecodeBatch(batch, AppendBatch(nil, &Batch{})) // what the next message leaves of it
		runtime.GC()
		runtime.ReadMemStats(&after)
		runtime.KeepAlive(batch)
		return after.HeapAlloc - min(after.HeapAlloc, before.HeapAlloc), made, err
	}
	for name, payload := range bombs(MaxBatchBytes - 1<<17) {
		if len(payload) > MaxBatchBytes {
			payload = payload[:0]
			t.Errorf("%s: the test's message is too long", name)
		}
		kept, made, err := cost(payload)
		t.Logf("%-26s %4d MiB made, %3d MiB kept (%v)", name, made>>20, kept>>20, err)
		if made > 256<<20 || kept > 8<<20 {
			t.Errorf("%s: %d MiB made, %d MiB kept", name, made>>20, kept>>20)
		}
	}
	for name, payload := range bombs(60 << 20) {
		if len(payload) <= MaxBatchBytes {
			continue
		}
		if _, made, err := cost(payload); err == nil || made > 1<<20 {
			t.Errorf("%s of %d bytes: %d bytes made, error %v", name, len(payload), made, err)
		}
	}
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
		if err := DecodeBatch(&b, AppendBatch(nil, &Batch{Events: []Event{e, good}})); err != nil {
			t.Fatal(err)
		}
		if b.Skipped != 1 || len(b.Events) != 1 || b.Events[0].Kind != Removed {
			t.Errorf("%s: %d events, %d skipped", name, len(b.Events), b.Skipped)
		}
	}
}

// TestOvergrownViews: a rank that names many times the blocks that it registered is not believed, until its cache is cleared.
func TestOvergrownViews(t *testing.T) {
	chain := func(base uint32, n, size int, medium string) Event {
		e := Event{Kind: Stored, BlockSize: size, Medium: medium, Tokens: make([]uint32, n*size)}
		for i := range n {
			e.Hashes = append(e.Hashes, Hash(uint64(base)<<32|uint64(i)+1))
		}
		for i := range e.Tokens {
			e.Tokens[i] = base + uint32(i)
		}
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
		v, idx, owner := newTestView(16)
		v.Register(c.registered)
		const step = 500
		blocks := 0
		for base := uint32(1); !v.Overgrown(); base++ {
			v.Apply([]Event{chain(base, step, c.size, c.medium)})
			if blocks = max(blocks, v.Blocks()); blocks > c.most {
				t.Fatalf("%s: %d blocks, want at most %d", c.name, blocks, c.most)
			}
		}
		if blocks+step < c.most {
			t.Errorf("%s: overgrown after %d blocks, want %d", c.name, blocks, c.most)
		}
		for base := range uint32(100) {
			v.Apply([]Event{chain(1<<20+base, step, c.size, c.medium)})
		}
		if v.Blocks() != 0 || idx.Blocks(owner) != 0 {
			t.Errorf("%s: it holds %d blocks afterwards", c.name, v.Blocks())
		}
		v.Apply([]Event{{Kind: Cleared}, chain(7, 3, c.size, "GPU")})
		if v.Overgrown() || v.Blocks() != 3 {
			t.Errorf("%s: cleared, it holds %d blocks", c.name, v.Blocks())
		}
	}
	unregistered, _, _ := newTestView(16)
	unregistered.Register(0)
	if unregistered.bound.most != unregisteredBound {
		t.Errorf("a rank that registered no blocks may name %d", unregistered.bound.most)
	}
	// Tails of odd blocks count as well: of blocks of one token under the router's of 4,096 each would keep 8 KB.
	v, _, _ := newTestView(4096)
	v.Register(10)
	v.Apply([]Event{chain(1, 1<<20, 1, "GPU")})
	if !v.Overgrown() {
		t.Errorf("a million blocks of one token take %d MiB", v.known.bytes()>>20)
	}
}

// chainOf is a chain of n blocks that begins with base.
func chainOf(base, n int) Event {
	e := Event{Kind: Stored, BlockSize: 16, Medium: "GPU", Tokens: make([]uint32, 16*n)}
	for i := range n {
		e.Hashes = append(e.Hashes, Hash(base<<32|i+1))
	}
	for i := range e.Tokens {
		e.Tokens[i] = uint32(base + i)
	}
	return e
}

// TestOvergrownIsPredicted: over NATS and over a bridge as well, and neither index nor bridge keeps what was named.
func TestOvergrownIsPredicted(t *testing.T) {
	publishes := func(r *rig, status func() SourceStatus, publish func(...Event) error) {
		t.Helper()
		next := 0
		r.until("predicted", func() bool {
			if next < 100 {
				next++
				if err := publish(chainOf(next, 1000)); err != nil {
					t.Fatal(err)
				}
			}
			return status().State == Predicted
		})
		r.until("nothing is kept", func() bool { return r.idx.Blocks(r.idx.Owner("w", 0)) == 0 && status().Blocks == 0 })
		if err := publish(Event{Kind: Cleared}, chainOf(7, 3)); err != nil {
			t.Fatal(err)
		}
		r.until("believed again", func() bool { return status().State == Live && r.idx.Blocks(r.idx.Owner("w", 0)) == 3 })
	}
	t.Run("nats", func(t *testing.T) {
		bus := memoryBus(t)
		r := newRig(t, SubscriberConfig{}, bus, bus)
		p, _ := r.publisher(PublisherConfig{Source: Source{testPool, "w", 0}})
		r.sub.Track(testPool, "w", []int{0}, 16, 1000)
		publishes(r, func() SourceStatus { return r.status("w") }, func(es ...Event) error { return p.Publish(es) })
	})
	t.Run("bridge", func(t *testing.T) {
		e := newZMQEngine(t, 1, ZMQPublisherConfig{ReplayEndpoint: "tcp://*:0"})
		r := natsRig(t, memoryBus(t))
		b := r.bridge(e.at(), 1, 1000)
		r.until("connected", func() bool { return e.pub.pub.Subscribers() > 0 })
		publishes(r, func() SourceStatus { return r.status("w") }, func(es ...Event) error { return e.pub.Publish(es) })
		if got := b.Status()[0]; got.Blocks > 4000+1000 {
			t.Errorf("the bridge keeps %d blocks", got.Blocks)
		}
	})
	// Blocks that others follow on are mirrored after their removal: leaves alone would keep all chains.
	t.Run("leaves", func(t *testing.T) {
		e := newZMQEngine(t, 1, ZMQPublisherConfig{ReplayEndpoint: "tcp://*:0"})
		r := natsRig(t, memoryBus(t))
		b := r.bridge(e.at(), 1, 1000)
		r.until("connected", func() bool { return e.pub.pub.Subscribers() > 0 })
		for i := range 200 {
			chain := chainOf(i+1, 1000)
			if err := e.pub.Publish([]Event{chain, {Kind: Removed, Hashes: chain.Hashes[:999]}}); err != nil {
				t.Fatal(err)
			}
		}
		r.until("all was heard", func() bool { return b.caughtUp(e) })
		if got := b.Status()[0]; got.Blocks > offloadedShare*1000 || !got.Partial {
			t.Errorf("%+v", got)
		}
	})
}
