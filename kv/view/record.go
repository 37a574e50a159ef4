package view

import (
	"cmp"
	"maps"
	"math/bits"
	"slices"
	"time"

	"github.com/tandem-pd/tandem/kv/wire"
)

// Record is what an engine holds, by its own events: the tree of its blocks, with their tokens, so that a subscriber that
// missed the events can be given events that amount to the same. Applied to an empty [View], those make it what a View is
// that applied all events. It holds blocks of one KV-cache group only, as a View does, and costs about 200 bytes a
// block of 16 tokens. It is a core, for one goroutine at a time.
//
// A removed block stays as long as blocks that follow on it do, because these cannot be described without it.
type Record struct {
	blocks map[wire.Hash]*recordedBlock
	group  group
	copies copies // further ones, by a medium's bit
	born   uint64
	media  []medium // each once; a bit of recordedBlock.media is a place in it
}

// medium is where blocks are, as events name it.
type medium struct{ name, locality string }

// kind is what a chain's blocks have in common. A block shares its parent's if it is the same. It is never changed.
type kind struct {
	lora, salt string
	loraID     wire.OptInt
	blockSize  int
	groupIdx   wire.OptInt
	specKind   string
}

// recordedBlock is one block. What is set when it is made is never changed, so that it may be read without a lock; media
// and children are changed.
type recordedBlock struct {
	hash, parent wire.Hash
	hasParent    bool
	kind         *kind
	tokens       []uint32
	odd          *wire.Event    // the block as an event, where more than tokens and kind belong to it
	up           *recordedBlock // the parent, if it was known
	born         uint64         // ascending, so that a parent comes before its children

	media    uint64 // where it is; none: it was removed
	children int
}

// maxMedia bounds the media of a Record: blocks in further ones are not recorded.
const maxMedia = 64

// NewRecord returns the record of an engine that holds nothing.
func NewRecord() *Record {
	r := &Record{}
	r.clear()
	return r
}

// Blocks is how many blocks are recorded, those included that are there only because others follow on them.
func (r *Record) Blocks() int { return len(r.blocks) }

func (r *Record) clear() {
	*r = Record{blocks: map[wire.Hash]*recordedBlock{}, born: r.born}
}

// Apply applies events in order, and does not retain them.
func (r *Record) Apply(events []wire.Event) {
	for i := range events {
		e := &events[i]
		switch {
		case e.Kind == wire.Cleared:
			r.clear()
		case !r.follows(e):
		case e.Kind == wire.Stored:
			r.store(e)
		case e.Kind == wire.Removed:
			r.remove(e)
		}
	}
}

func (r *Record) follows(e *wire.Event) bool {
	ok, changed := r.group.takes(e)
	if changed {
		now := r.group
		r.clear()
		r.group = now
	}
	return ok
}

func (r *Record) store(e *wire.Event) {
	in := r.medium(medium{e.Medium, e.Locality})
	withTokens := len(e.Tokens) > 0 && len(e.Tokens) == len(e.Hashes)*e.BlockSize
	parent, hasParent := e.Parent, e.HasParent
	for i, h := range e.Hashes {
		b := r.blocks[h]
		if b == nil && withTokens && in != 0 {
			b = r.make(e, i, parent, hasParent)
		}
		if b != nil && in != 0 && b.media&in != 0 {
			r.copies.add(h, in)
		} else if b != nil {
			b.media |= in
		}
		parent, hasParent = h, true
	}
}

func (r *Record) make(e *wire.Event, i int, parent wire.Hash, hasParent bool) *recordedBlock {
	r.born++
	b := &recordedBlock{
		hash: e.Hashes[i], parent: parent, hasParent: hasParent, born: r.born,
		tokens: slices.Clone(e.Tokens[i*e.BlockSize : (i+1)*e.BlockSize]),
	}
	if hasParent {
		if b.up = r.blocks[parent]; b.up != nil {
			b.up.children++
		}
	}
	k := kind{e.LoraName, e.CacheSalt, e.LoraID, e.BlockSize, e.GroupIdx, e.SpecKind}
	if b.up != nil && *b.up.kind == k {
		b.kind = b.up.kind
	} else {
		b.kind = &k
	}
	if e.Seconds != nil || e.Texts != nil || e.ExtraKeys != nil || e.MMKeys != nil {
		odd := e.Blocks(i, i+1)
		odd.Hashes, odd.Tokens = []wire.Hash{b.hash}, b.tokens
		odd.Seconds, odd.Texts = slices.Clone(odd.Seconds), slices.Clone(odd.Texts)
		odd.ExtraKeys, odd.MMKeys = slices.Clone(odd.ExtraKeys), slices.Clone(odd.MMKeys)
		odd.Lookahead = nil
		b.odd = &odd
	}
	r.blocks[b.hash] = b
	return b
}

func (r *Record) remove(e *wire.Event) {
	in := r.medium(medium{e.Medium, e.Locality})
	for _, h := range e.Hashes {
		b := r.blocks[h]
		if b == nil || r.copies.take(h, in) {
			continue
		}
		b.media &^= in
		for b != nil && b.media == 0 && b.children == 0 {
			delete(r.blocks, b.hash)
			if b = b.up; b != nil {
				b.children--
			}
		}
	}
}

// Uncount sets each block's count to one, as [View.Uncount] does.
func (r *Record) Uncount() { r.copies = nil }

// medium is the bit of a medium, 0 if there are too many.
func (r *Record) medium(name medium) uint64 {
	at := slices.Index(r.media, name)
	if at < 0 {
		if at = len(r.media); at == maxMedia {
			return 0
		}
		r.media = append(r.media, name)
	}
	return 1 << at
}

// Image is a [Record] at one moment: quick to take, so that the Record is not held up while events are made of it.
type Image struct {
	blocks []imaged
	media  []medium
	copies copies
}

type imaged struct {
	*recordedBlock
	media uint64
}

// Image returns what is recorded now. It may be used while the Record goes on.
func (r *Record) Image() *Image {
	img := &Image{blocks: make([]imaged, 0, len(r.blocks)), media: slices.Clone(r.media), copies: maps.Clone(r.copies)}
	for _, b := range r.blocks {
		img.blocks = append(img.blocks, imaged{b, b.media})
	}
	return img
}

// Batches returns the events that make an empty cache what the image shows, as batches that [wire.DecodeBatch] reads, each of at
// most limit bytes unless a single block takes more: the blocks, each where it is first; then the other places of those that
// are in several and the further copies; then the removal of those that are only there for their children.
func (img *Image) Batches(limit int, ts time.Time, rank int) [][]byte {
	p := wire.NewPacker(limit, ts, rank)
	slices.SortFunc(img.blocks, func(a, b imaged) int { return cmp.Compare(a.born, b.born) })
	var run wire.Event
	var runKind kind
	for _, b := range img.blocks {
		var place medium
		if b.media != 0 {
			place = img.media[bits.TrailingZeros64(b.media)]
		}
		if b.odd != nil {
			e := *b.odd
			e.Medium, e.Locality = place.name, place.locality
			p.Add(run)
			p.Add(e)
			run = wire.Event{}
			continue
		}
		follows := len(run.Hashes) > 0 && b.hasParent && run.Hashes[len(run.Hashes)-1] == b.parent
		if !follows || runKind != *b.kind || (medium{run.Medium, run.Locality}) != place {
			p.Add(run)
			runKind = *b.kind
			run = wire.Event{
				Kind: wire.Stored, Parent: b.parent, HasParent: b.hasParent, Medium: place.name, Locality: place.locality, BlockSize: b.kind.blockSize,
				LoraName: b.kind.lora, LoraID: b.kind.loraID, CacheSalt: b.kind.salt, GroupIdx: b.kind.groupIdx, SpecKind: b.kind.specKind,
			}
		}
		run.Hashes = append(run.Hashes, b.hash)
		run.Tokens = append(run.Tokens, b.tokens...)
	}
	p.Add(run)

	for at, name := range img.media {
		p.Add(img.pick(wire.Stored, name, func(b imaged) bool { return b.media&^(b.media&-b.media)&(1<<at) != 0 }))
	}
	for n, left := 1, len(img.copies) > 0; left; n++ {
		left = false
		for at, name := range img.media {
			p.Add(img.pick(wire.Stored, name, func(b imaged) bool {
				has := img.copies[spot{b.hash, 1 << at}]
				left = left || has > n
				return has >= n
			}))
		}
	}
	p.Add(img.pick(wire.Removed, medium{}, func(b imaged) bool { return b.media == 0 }))
	return p.Batches()
}

// pick is an event of all blocks that are like that, without their tokens.
func (img *Image) pick(k wire.Kind, in medium, like func(imaged) bool) wire.Event {
	e := wire.Event{Kind: k, Medium: in.name, Locality: in.locality}
	for _, b := range img.blocks {
		if like(b) {
			e.Hashes = append(e.Hashes, b.hash)
		}
	}
	return e
}
