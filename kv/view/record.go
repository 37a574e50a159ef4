package view

import (
	"cmp"
	"maps"
	"math/bits"
	"slices"
	"time"

	"github.com/tandem-pd/tandem/kv/wire"
)

// Record is an engine's cache by its own events: the tree of its blocks with their tokens, for snapshots to subscribers
// that missed events. A snapshot makes an empty [View] equal to one that applied all events. Like a View it holds one
// KV-cache group, at about 200 bytes per block of 16 tokens. It is a core, for one goroutine at a time.
//
// A removed block stays while it has children, which cannot be described without it.
type Record struct {
	blocks map[wire.Hash]*recordedBlock
	group  group
	copies copies // by a medium's bit
	born   uint64
	media  []medium // unique; bit i of recordedBlock.media is media[i]
}

// medium is a place of blocks, as events name it.
type medium struct{ name, locality string }

// kind is what the blocks of a chain have in common. It is immutable, and shared with the parent if equal.
type kind struct {
	lora, salt string
	loraID     wire.OptInt
	blockSize  int
	groupIdx   wire.OptInt
	specKind   string
}

// recordedBlock is one block. All fields but media and children are immutable, so that they may be read without a lock.
type recordedBlock struct {
	hash, parent wire.Hash
	hasParent    bool
	kind         *kind
	tokens       []uint32
	odd          *wire.Event    // the block as an event, if it has more than tokens and kind
	up           *recordedBlock // the parent, if known
	born         uint64         // ascending: a parent is older than its children

	media    uint64 // its places; 0: removed
	children int
}

// maxMedia bounds the media of a Record; others are ignored.
const maxMedia = 64

// NewRecord returns the record of an empty engine.
func NewRecord() *Record {
	r := &Record{}
	r.clear()
	return r
}

// Blocks returns the number of recorded blocks, removed parents included.
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

// medium returns the bit of a medium, 0 if there are too many.
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

// Image is a point-in-time copy of a [Record], cheap to take, from which events are encoded.
type Image struct {
	blocks []imaged
	media  []medium
	copies copies
}

type imaged struct {
	*recordedBlock
	media uint64
}

// Image returns a copy of the record. It may be used while the Record changes.
func (r *Record) Image() *Image {
	img := &Image{blocks: make([]imaged, 0, len(r.blocks)), media: slices.Clone(r.media), copies: maps.Clone(r.copies)}
	for _, b := range r.blocks {
		img.blocks = append(img.blocks, imaged{b, b.media})
	}
	return img
}

// Batches returns the events that turn an empty cache into the image, as batches that [wire.DecodeBatch] reads. Each has
// at most limit bytes unless a single block takes more. The blocks in their first place come first, then other places
// and copies, then the removal of blocks that exist only for their children.
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

// pick returns an event of all matching blocks, without their tokens.
func (img *Image) pick(k wire.Kind, in medium, like func(imaged) bool) wire.Event {
	e := wire.Event{Kind: k, Medium: in.name, Locality: in.locality}
	for _, b := range img.blocks {
		if like(b) {
			e.Hashes = append(e.Hashes, b.hash)
		}
	}
	return e
}
