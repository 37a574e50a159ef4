package view

import (
	"time"

	"github.com/tandem-pd/tandem/internal/tokens"
	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/kv/wire"
)

// View tracks the blocks of one rank and keeps an index in sync. An engine's hashes mean nothing to the router, so each
// event's tokens are hashed again as the router hashes a prompt. A map from engine hash to own hash serves events
// without tokens: removals, and children.
//
// An engine whose blocks are a multiple or a divisor of the router's works as well: a block of the router's belongs
// to the engine's block that ends it or covers it, and comes and goes with that.
//
// View is a core, for one goroutine at a time.
type View struct {
	part      index.Part
	blockSize int // the router's, in tokens
	tally     Tally
	largest   int // tokens in the engine's largest block so far
	bound     bound
	misfit    int   // tokens in a block refused for its size, the last one since the view was empty
	fitting   int   // blocks since then whose size was good, less those whose size was not
	known     known // the engine's blocks
	group     group
	copies    copies // further ones
	again     int    // of copies, those on the device
	ages      ages
	now       time.Time // of Age

	tail   []uint32 // for use within one call, as all that follows
	tokens []uint32
	hashes []uint64
	taken  []uint64
	one    [1]uint64
}

// Tally counts what a View applied, since it was made.
type Tally struct {
	Stored  uint64 // engine blocks, counting each time and place
	Removed uint64 // engine blocks
	Cleared uint64 // events
	Unknown uint64 // blocks of the KV-cache group that is followed, removed though not known: the view is not whole

	// Orphans are events whose parent is unknown, Unhashable blocks whose hash covers more than tokens, a LoRA name and a
	// salt (images, for example). Both, and what follows on them, are not indexed: the first want a snapshot, the second
	// would be taken for their likes.
	Orphans, Unhashable uint64
	BadSize             uint64 // blocks refused: their size neither divides the router's nor is a multiple
	// Again counts blocks stored twice in the same place: a copy, or announced again. Reannounced counts chains with such
	// blocks from their beginning.
	Again, Reannounced uint64
	// Ignored are blocks of other KV-cache groups than the one followed, blocks without tokens that were not announced
	// before, and blocks with a wrong number of tokens.
	Ignored uint64
}

// block is what is known of one of the engine's blocks.
type block struct {
	seq  uint64 // sequence hash of the last of the router's blocks that ends at or before this one's end
	seed uint64 // of its chain's local hashes
	tail uint16 // tokens behind that, which fill no block of the router's yet; see known.tail
	own  ownership
	held tierSet
}

// ownership marks which of the router's blocks belong to an engine's block.
type ownership uint8

const (
	ownNone ownership = 0 // none ends here
	ownOne  ownership = 1 // seq
	ownMany ownership = 2 // known.run
	ownMask ownership = 3
	hasSeq  ownership = 4 // seq counts: a block of the router's ended here or before
	lost    ownership = 8 // cannot be hashed, nor can what follows
)

// New returns an empty view that feeds a part of an index. blockSize is the router's, in tokens, 1 to 65,535.
func New(part index.Part, blockSize int) *View {
	v := &View{part: part, blockSize: blockSize}
	v.Clear()
	return v
}

// Tally returns the counts so far.
func (v *View) Tally() Tally { return v.tally }

// Blocks is how many of the engine's blocks are held, whether indexed or not.
func (v *View) Blocks() int { return v.known.n }

// EngineBlock is how many tokens the engine's largest block has had so far, 0 before the first.
func (v *View) EngineBlock() int { return v.largest }

// Clear empties the view, and its part of the index.
func (v *View) Clear() {
	v.part.Clear()
	v.known.clear()
	v.misfit, v.fitting = 0, 0
	v.group, v.ages = group{}, nil
	v.Uncount()
	v.bound.begin(v.blockSize)
}

// Pieces is the kind of KV-cache group of all events so far if it holds no prefixes; else "". No prompt can be looked
// up then.
func (v *View) Pieces() string { return v.group.pieces }

// Misfit is how many tokens the engine's blocks have if that does not fit; else 0. It does not fit if most blocks
// since the view was empty were refused: it neither divides the router's block size nor is a multiple.
func (v *View) Misfit() int {
	if v.fitting < 0 {
		return v.misfit
	}
	return 0
}

// Apply brings the view up to date with events, in their order. It keeps nothing of them.
func (v *View) Apply(events []wire.Event) {
	for i := range events {
		e := &events[i]
		switch {
		case e.Kind == wire.Cleared:
			v.tally.Cleared++
			v.Clear()
		case v.bound.over || !v.follows(e):
			v.tally.Ignored += uint64(len(e.Hashes))
		case e.Kind == wire.Removed:
			v.ages.stop(e)
			v.remove(e)
		case e.Kind == wire.Stored && len(e.Tokens) == 0:
			v.place(e)
		case e.Kind == wire.Stored:
			v.store(e)
		}
	}
}

// follows reports whether e is of the group that is followed. It empties the view where that is another one now.
func (v *View) follows(e *wire.Event) bool {
	ok, changed := v.group.takes(e)
	if changed {
		now := v.group
		v.Clear()
		v.group = now
	}
	return ok
}

// store applies blocks with their tokens.
func (v *View) store(e *wire.Event) {
	if len(e.Tokens) != len(e.Hashes)*e.BlockSize {
		if len(e.Tokens) > len(e.Hashes)*e.BlockSize {
			v.group.window()
		}
		v.tally.Ignored += uint64(len(e.Hashes))
		return
	}
	v.tally.Stored += uint64(len(e.Hashes))
	v.largest = max(v.largest, e.BlockSize)
	c := v.after(e)
	whole := hashable(e)
	v.tally.Unhashable += uint64(len(e.Hashes) - whole)
	v.fitting += len(e.Hashes)
	if !fits(e, v.blockSize) {
		v.tally.BadSize += uint64(len(e.Hashes))
		v.fitting -= 2 * len(e.Hashes)
		v.misfit = e.BlockSize
		c.lost = true
	}
	if c.lost {
		whole = 0
	}

	ids := e.Tokens[:whole*e.BlockSize]
	if len(c.tail) > 0 {
		v.tokens = append(append(v.tokens[:0], c.tail...), ids...)
		ids = v.tokens
	}
	v.hashes = tokens.LocalHashes(v.hashes[:0], ids, v.blockSize, c.seed)
	seq, hadSeq := c.seq, c.hasSeq
	for i, local := range v.hashes {
		if hadSeq {
			local = tokens.Chain(seq, local)
		}
		seq, hadSeq = local, true
		v.hashes[i] = seq
	}

	held := tierOf(e)
	v.ages.of(e).add(e.Hashes, v.now)
	v.bound.widen(e.BlockSize, held, v.blockSize)
	start, done := len(c.tail), 0 // tokens and own blocks before the engine's block
	before := v.tally.Again
	for i, h := range e.Hashes {
		if i%reads == 0 {
			if v.outgrown() {
				return
			}
			v.known.touch(e.Hashes[i:])
		}
		b := block{seed: c.seed, own: lost, held: held}
		var run []uint64
		var tail []uint32
		if i < whole {
			end := start + e.BlockSize
			upTo := end / v.blockSize
			run, tail = v.hashes[done:upTo], ids[upTo*v.blockSize:end]
			b.own = ownership(min(len(run), int(ownMany)))
			b.tail = uint16(len(tail))
			if upTo > 0 {
				b.seq = v.hashes[upTo-1]
			} else {
				b.seq = c.seq
			}
			if upTo > 0 || c.hasSeq {
				b.own |= hasSeq
			}
			start, done = end, upTo
		}
		v.put(h, b, run, tail, len(e.Hashes)-i)
	}
	if v.outgrown() {
		return
	}
	v.recount()
	if !e.HasParent && v.tally.Again > before {
		v.tally.Reannounced++
	}
	switch t, ok := held.one(); {
	case ok && c.hasSeq:
		v.part.Extend(t, c.seq, v.hashes)
	case ok:
		v.part.Store(t, v.hashes)
	}
}

// put applies one of coming blocks. The caller puts its own hashes into the index.
func (v *View) put(h wire.Hash, b block, run []uint64, tail []uint32, coming int) {
	at, ok := v.known.find(h)
	if !ok {
		v.known.add(h, b, run, tail, coming)
		return
	}
	old := v.known.at(at)
	if old.held&b.held != 0 {
		v.tally.Again++
		v.copied(h, b.held)
	}
	if old.seq == b.seq && old.own == b.own && old.tail == b.tail || b.own&lost != 0 {
		v.known.place(at, old.held|b.held)
		if b.own&lost != 0 {
			v.index(at, &old, b.held)
		}
		return
	}
	// It was an orphan, or the engine gave the name to another block.
	v.unindex(at, &old, old.held)
	v.known.drop(at)
	b.held |= old.held
	v.known.add(h, b, run, tail, coming)
	at, _ = v.known.find(h)
	v.index(at, &b, old.held)
}

// place notes a further place of blocks announced before.
func (v *View) place(e *wire.Event) {
	held, ages := tierOf(e), v.ages.of(e)
	v.bound.widen(0, held, v.blockSize)
	for i, h := range e.Hashes {
		if i%reads == 0 {
			v.known.touch(e.Hashes[i:])
		}
		at, ok := v.known.find(h)
		if !ok {
			v.tally.Ignored++
			continue
		}
		v.tally.Stored++
		ages.add(e.Hashes[i:i+1], v.now)
		b := v.known.at(at)
		if b.held&held != 0 {
			v.copied(h, held)
		}
		v.known.place(at, b.held|held)
		v.index(at, &b, held)
	}
	v.recount()
}

func (v *View) remove(e *wire.Event) {
	from := tierOf(e)
	v.taken = v.taken[:0]
	for i, h := range e.Hashes {
		if i%reads == 0 {
			v.known.touch(e.Hashes[i:])
		}
		at, ok := v.known.find(h)
		if !ok {
			v.tally.Unknown++
			continue
		}
		b := v.known.at(at)
		if b.held&from == 0 {
			continue
		}
		v.tally.Removed++
		if v.copies.take(h, uint64(from)) {
			if from == onDevice {
				v.again--
			}
			continue
		}
		v.taken = append(v.taken, v.ownOf(at, &b)...)
		if b.held &^= from; b.held == 0 {
			v.known.drop(at)
		} else {
			v.known.place(at, b.held)
		}
	}
	if t, ok := from.one(); ok && len(v.taken) > 0 {
		v.part.Remove(t, v.taken)
	}
}

// ownOf are the own hashes that belong to b, the block at at. They are to be used at once.
func (v *View) ownOf(at int, b *block) []uint64 {
	switch b.own & ownMask {
	case ownOne:
		v.one[0] = b.seq
		return v.one[:]
	case ownMany:
		return v.known.run(at)
	}
	return nil
}

// index and unindex put what belongs to b into the given places of the index, and take it out.
func (v *View) index(at int, b *block, where tierSet) {
	for t := index.Device; t <= index.Shared; t++ {
		if where&(1<<t) != 0 {
			v.part.Place(t, v.ownOf(at, b))
		}
	}
}

func (v *View) unindex(at int, b *block, where tierSet) {
	for t := index.Device; t <= index.Shared; t++ {
		if where&(1<<t) != 0 {
			v.part.Remove(t, v.ownOf(at, b))
		}
	}
}

// chain is where a chain stands: what the next of its blocks follows on.
type chain struct {
	seq    uint64
	seed   uint64
	tail   []uint32
	hasSeq bool
	lost   bool
}

// after is the chain that e's blocks follow on.
func (v *View) after(e *wire.Event) chain {
	if !e.HasParent {
		return chain{seed: tokens.Seed(e.LoraName, saltOf(e))}
	}
	at, ok := v.known.find(e.Parent)
	if !ok {
		v.tally.Orphans++
		return chain{lost: true}
	}
	p := v.known.at(at)
	v.tail = v.known.tail(v.tail[:0], at)
	return chain{seq: p.seq, seed: p.seed, tail: v.tail, hasSeq: p.own&hasSeq != 0, lost: p.own&lost != 0}
}
