package view

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tandem-pd/tandem/internal/tokens"
	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/lab/testkit"
)

// slowView is a View as one would write it without a care for memory: Go maps by the engine's hash.
type slowView struct {
	part      *testkit.Part
	blockSize int
	tally     Tally
	blocks    map[wire.Hash]block
	runs      map[wire.Hash][]uint64
	tails     map[wire.Hash][]uint32
	held      map[wire.Hash]map[tierSet]int // copies
}

func (v *slowView) clear() {
	v.part.Clear()
	v.blocks, v.runs, v.tails = map[wire.Hash]block{}, map[wire.Hash][]uint64{}, map[wire.Hash][]uint32{}
	v.held = map[wire.Hash]map[tierSet]int{}
}

func (v *slowView) count(h wire.Hash, in tierSet, by int) (left int) {
	if v.held[h] == nil {
		v.held[h] = map[tierSet]int{}
	}
	v.held[h][in] += by
	return v.held[h][in]
}

func (v *slowView) apply(e *wire.Event) {
	n := uint64(len(e.Hashes))
	switch {
	case e.Kind == wire.Cleared:
		v.tally.Cleared++
		v.clear()
	case e.GroupIdx.Value != 0 && e.SpecKind == "":
		v.tally.Ignored += n
	case e.Kind == wire.Removed:
		for _, h := range e.Hashes {
			v.remove(h, tierOf(e))
		}
	case e.Kind == wire.Stored && len(e.Tokens) == 0:
		for _, h := range e.Hashes {
			v.place(h, tierOf(e))
		}
	case e.Kind == wire.Stored && len(e.Tokens) != len(e.Hashes)*e.BlockSize:
		v.tally.Ignored += n
	case e.Kind == wire.Stored:
		v.store(e)
	}
}

func (v *slowView) store(e *wire.Event) {
	v.tally.Stored += uint64(len(e.Hashes))
	p := block{seed: tokens.Seed(e.LoraName, saltOf(e))}
	var tail []uint32
	if e.HasParent {
		var ok bool
		if p, ok = v.blocks[e.Parent]; !ok {
			v.tally.Orphans++
			p.own = lost
		}
		tail = v.tails[e.Parent]
	}
	whole := hashable(e)
	v.tally.Unhashable += uint64(len(e.Hashes) - whole)
	if !fits(e, v.blockSize) {
		v.tally.BadSize += uint64(len(e.Hashes))
		whole = 0
	}
	var chain []uint64
	before := v.tally.Again
	follows, parent := p.own&hasSeq != 0, p.seq
	last := p
	for i, h := range e.Hashes {
		b := block{seed: p.seed, own: lost, held: tierOf(e)}
		var run []uint64
		if i < whole && p.own&lost == 0 {
			tail = slices.Concat(tail, e.Tokens[i*e.BlockSize:(i+1)*e.BlockSize])
			for len(tail) >= v.blockSize {
				local := tokens.LocalHashes(nil, tail[:v.blockSize], v.blockSize, p.seed)[0]
				if last.own&hasSeq != 0 {
					local = tokens.Chain(last.seq, local)
				}
				last.seq, last.own = local, hasSeq
				run, tail = append(run, local), tail[v.blockSize:]
			}
			b.seq, b.own, b.tail = last.seq, last.own&hasSeq|ownership(min(len(run), 2)), uint16(len(tail))
			chain = append(chain, run...)
		}
		v.put(h, b, run, tail)
	}
	if !e.HasParent && v.tally.Again > before {
		v.tally.Reannounced++
	}
	t, ok := tierOf(e).one()
	switch {
	case ok && follows:
		v.part.Extend(t, parent, chain)
	case ok:
		v.part.Store(t, chain)
	}
}

func (v *slowView) put(h wire.Hash, b block, run []uint64, tail []uint32) {
	old, ok := v.blocks[h]
	v.count(h, b.held, 1)
	if old.held&b.held != 0 {
		v.tally.Again++
	}
	if ok && (old.seq == b.seq && old.own == b.own && old.tail == b.tail || b.own&lost != 0) {
		old.held |= b.held
		v.blocks[h] = old
		if b.own&lost != 0 {
			v.each(b.held, func(t index.Tier) { v.part.Place(t, v.ownOf(h)) })
		}
		return
	}
	if ok {
		v.each(old.held, func(t index.Tier) { v.part.Remove(t, v.ownOf(h)) })
		v.forget(h)
		b.held |= old.held
	}
	v.blocks[h] = b
	if b.own&ownMask == ownMany {
		v.runs[h] = slices.Clone(run)
	}
	if b.tail > 0 {
		v.tails[h] = slices.Clone(tail)
	}
	if ok {
		v.each(old.held, func(t index.Tier) { v.part.Place(t, v.ownOf(h)) })
	}
}

func (v *slowView) place(h wire.Hash, held tierSet) {
	b, ok := v.blocks[h]
	if !ok {
		v.tally.Ignored++
		return
	}
	v.tally.Stored++
	v.count(h, held, 1)
	b.held |= held
	v.blocks[h] = b
	v.each(held, func(t index.Tier) { v.part.Place(t, v.ownOf(h)) })
}

func (v *slowView) remove(h wire.Hash, from tierSet) {
	b, ok := v.blocks[h]
	if !ok {
		v.tally.Unknown++
	}
	if b.held&from == 0 {
		return
	}
	v.tally.Removed++
	if v.count(h, from, -1) > 0 {
		return
	}
	v.each(from, func(t index.Tier) { v.part.Remove(t, v.ownOf(h)) })
	if b.held &^= from; b.held == 0 {
		v.forget(h)
	} else {
		v.blocks[h] = b
	}
}

func (v *slowView) forget(h wire.Hash) {
	delete(v.blocks, h)
	delete(v.runs, h)
	delete(v.tails, h)
}

func (v *slowView) ownOf(h wire.Hash) []uint64 {
	switch v.blocks[h].own & ownMask {
	case ownOne:
		return []uint64{v.blocks[h].seq}
	case ownMany:
		return v.runs[h]
	}
	return nil
}

func (v *slowView) each(where tierSet, do func(index.Tier)) {
	for t := index.Device; t <= index.Shared; t++ {
		if where&(1<<t) != 0 {
			do(t)
		}
	}
}

// all are the blocks by key.
func (k *known) all() map[uint64]block {
	all := map[uint64]block{}
	for i, m := range k.marks {
		if m != 0 {
			all[k.slots[i].key] = k.at(i)
		}
	}
	return all
}

// differs says in what a view is not what its twin is, "" for nothing.
func (v *slowView) differs(fast *View) string {
	if fast.Tally() != v.tally {
		return fmt.Sprintf("tally %+v, twin's %+v", fast.Tally(), v.tally)
	}
	if fast.Blocks() != len(v.blocks) || len(fast.known.all()) != len(v.blocks) {
		return fmt.Sprintf("%d blocks, %d found, twin's %d", fast.Blocks(), len(fast.known.all()), len(v.blocks))
	}
	for h, b := range v.blocks {
		at, ok := fast.known.find(h)
		if !ok {
			return fmt.Sprintf("block %x is not found", h)
		}
		if got := fast.known.at(at); got != b {
			return fmt.Sprintf("block %x is %+v, twin's %+v", h, got, b)
		}
		if run := fast.known.run(at); !slices.Equal(run, v.runs[h]) {
			return fmt.Sprintf("block %x has run %x, twin's %x", h, run, v.runs[h])
		}
		if tail := fast.known.tail(nil, at); !slices.Equal(tail, v.tails[h]) {
			return fmt.Sprintf("block %x has tail %d, twin's %d", h, tail, v.tails[h])
		}
	}
	for t := index.Device; t <= index.Shared; t++ {
		if got, want := fast.part.(*testkit.Part).On(t), v.part.On(t); !slices.Equal(got, want) {
			return fmt.Sprintf("tier %d: %d blocks indexed, twin's %d, or others", t, len(got), len(want))
		}
	}
	return ""
}

// playView does to a view and to its twin what data says, and compares the two. names is how many hashes the engine
// gives its blocks, at most.
func playView(t interface{ Fatalf(string, ...any) }, data []byte, names int) {
	next := func() int {
		if len(data) == 0 {
			return 0
		}
		b := data[0]
		data = data[1:]
		return int(b)
	}
	const blockSize = 4
	v, _ := newTestView(blockSize)
	slow := &slowView{part: &testkit.Part{}, blockSize: blockSize}
	slow.clear()
	hash := func() wire.Hash { // small ones and negative ones
		n := (next()<<8 | next()) % names
		return wire.Hash(int64(n) - int64(n%3*names))
	}
	hashes := func(most int) []wire.Hash {
		var all []wire.Hash
		for range 1 + next()%most {
			all = append(all, hash())
		}
		return all
	}
	media := []string{"GPU", "GPU", "GPU", "GPU", "", "CPU", "DISK", "SHARED", "moon"}
	localities := []string{"", "", "", "", "LOCAL", "REMOTE", "far"}
	sizes := []int{4, 4, 4, 4, 8, 16, 2, 1, 3, 6}
	for ops := 0; len(data) > 0; ops++ {
		e := wire.Event{Kind: wire.Stored, Medium: media[next()%len(media)], Locality: localities[next()%len(localities)]}
		switch op := next(); {
		case op < 120:
			e.Hashes, e.BlockSize = hashes(6), sizes[next()%len(sizes)]
			e.Parent, e.HasParent = hash(), op%4 > 0
			salt := next()
			if !e.HasParent && salt > 100 {
				e.CacheSalt = fmt.Sprint(salt) // more of them than a mark has numbers for
			}
			first := uint32(next() % 8)
			for i := range len(e.Hashes) * e.BlockSize {
				e.Tokens = append(e.Tokens, first+uint32(i))
			}
			switch op {
			case 1:
				e.Tokens = e.Tokens[1:]
			case 2:
				e.Texts = []wire.TextToken{{Index: next() % len(e.Tokens), Text: "x"}}
			}
		case op < 150:
			e.Hashes = hashes(4)
		case op < 254:
			e.Kind, e.Hashes = wire.Removed, hashes(12)
		case op < 255:
			e.GroupIdx, e.Hashes = wire.OptInt{Value: 1, Set: true}, hashes(2)
		case next() == 0:
			e = wire.Event{Kind: wire.Cleared}
		}
		v.Apply([]wire.Event{e})
		slow.apply(&e)
		if ops%64 == 0 || len(data) == 0 {
			if text := slow.differs(v); text != "" {
				t.Fatalf("after %d events: %s", ops+1, text)
			}
			if text := differsCopied(v); text != "" {
				t.Fatalf("after %d events, the copy: %s", ops+1, text)
			}
		}
	}
}

// TestViewTwin compares the view with its twin over long histories, of few names, which are used again and again, and of
// many, with which tables grow and shrink; FuzzView does more.
func TestViewTwin(t *testing.T) {
	for _, names := range []int{40, 1000, 30_000} {
		for seed := range byte(2) {
			rng := rand.NewChaCha8([32]byte{seed})
			history := make([]byte, 20_000)
			_, _ = rng.Read(history)
			t.Logf("%d names, seed %d", names, seed)
			playView(t, history, names)
		}
	}
}

// FuzzView is TestViewTwin under the fuzzer's histories.
func FuzzView(f *testing.F) {
	f.Add([]byte("\x00\x00\x02\x00\x01\x00\x02\x00\x03\x04\x00\x00\x00\x05\x05\xc8\x01\x00\x01\x00\x02"), uint16(40))
	f.Add([]byte("\x00\x01\x02\x00\x01\x00\x02\x00\x03\x05\x00\x00\xc8\x05\x06\x80\x01\x00\x01\x00\x02"), uint16(7))
	f.Fuzz(func(t *testing.T, history []byte, names uint16) {
		playView(t, history[:min(len(history), 4000)], int(names)+1)
	})
}
