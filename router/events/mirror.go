package events

import (
	"cmp"
	"math/bits"
	"slices"
)

// mirror is what an engine holds, as its own events say it: the tree of its blocks, with their tokens, so that it
// can be told to someone who missed the events. It is a core. It holds blocks of the first KV-cache group only, as a
// [View] does, and costs about 200 bytes a block of 16 tokens.
//
// A block that was removed stays as long as blocks that follow on it do, because they cannot be told without it.
type mirror struct {
	blocks map[Hash]*mirrored
	born   uint64
	media  []string // each once; a bit of mirrored.media is a place in it
}

// kind is what a chain's blocks have in common. A block shares its parent's if it is the same. It is never changed.
type kind struct {
	lora, salt string
	loraID     OptInt
	blockSize  int
}

// mirrored is one block. What is set when it is made is never changed, so that it may be read without a lock; media
// and children are changed.
type mirrored struct {
	hash, parent Hash
	hasParent    bool
	kind         *kind
	tokens       []uint32
	odd          *Event    // the block as an event, where more than tokens and kind belong to it
	up           *mirrored // the parent, if it was known
	born         uint64    // ascending, so that a parent comes before its children

	media    uint64 // where it is; none: it was removed
	children int
}

// maxMedia is how many media a mirror tells apart: those of blocks in further ones are not mirrored.
const maxMedia = 64

func newMirror() *mirror {
	m := &mirror{}
	m.clear()
	return m
}

func (m *mirror) clear() {
	*m = mirror{blocks: map[Hash]*mirrored{}, born: m.born}
}

func (m *mirror) apply(events []Event) {
	for i := range events {
		e := &events[i]
		switch {
		case e.Kind == Cleared:
			m.clear()
		case e.GroupIdx.Value != 0:
		case e.Kind == Stored:
			m.store(e)
		case e.Kind == Removed:
			m.remove(e)
		}
	}
}

func (m *mirror) store(e *Event) {
	medium := m.medium(e.Medium)
	withTokens := len(e.Tokens) > 0 && len(e.Tokens) == len(e.Hashes)*e.BlockSize
	parent, hasParent := e.Parent, e.HasParent
	for i, h := range e.Hashes {
		b := m.blocks[h]
		if b == nil && withTokens && medium != 0 {
			b = m.make(e, i, parent, hasParent)
		}
		if b != nil {
			b.media |= medium
		}
		parent, hasParent = h, true
	}
}

func (m *mirror) make(e *Event, i int, parent Hash, hasParent bool) *mirrored {
	m.born++
	b := &mirrored{
		hash: e.Hashes[i], parent: parent, hasParent: hasParent, born: m.born,
		tokens: slices.Clone(e.Tokens[i*e.BlockSize : (i+1)*e.BlockSize]),
	}
	if hasParent {
		if b.up = m.blocks[parent]; b.up != nil {
			b.up.children++
		}
	}
	k := kind{e.LoraName, e.CacheSalt, e.LoraID, e.BlockSize}
	if b.up != nil && *b.up.kind == k {
		b.kind = b.up.kind
	} else {
		b.kind = &k
	}
	if e.Seconds != nil || e.Texts != nil || e.ExtraKeys != nil || e.MMKeys != nil {
		odd := e.blocks(i, i+1)
		odd.Hashes, odd.Tokens = []Hash{b.hash}, b.tokens
		odd.Seconds, odd.Texts = slices.Clone(odd.Seconds), slices.Clone(odd.Texts)
		odd.ExtraKeys, odd.MMKeys = slices.Clone(odd.ExtraKeys), slices.Clone(odd.MMKeys)
		odd.Lookahead = nil
		b.odd = &odd
	}
	m.blocks[b.hash] = b
	return b
}

func (m *mirror) remove(e *Event) {
	medium := m.medium(e.Medium)
	for _, h := range e.Hashes {
		b := m.blocks[h]
		if b == nil {
			continue
		}
		b.media &^= medium
		for b != nil && b.media == 0 && b.children == 0 {
			delete(m.blocks, b.hash)
			if b = b.up; b != nil {
				b.children--
			}
		}
	}
}

// medium is the bit of a medium, 0 if there are too many.
func (m *mirror) medium(name string) uint64 {
	at := slices.Index(m.media, name)
	if at < 0 {
		if at = len(m.media); at == maxMedia {
			return 0
		}
		m.media = append(m.media, name)
	}
	return 1 << at
}

// image is a mirror at one moment, quick to take, to be told without holding the mirror up.
type image struct {
	blocks []imaged
	media  []string
}

type imaged struct {
	*mirrored
	media uint64
}

func (m *mirror) image() *image {
	img := &image{blocks: make([]imaged, 0, len(m.blocks)), media: slices.Clone(m.media)}
	for _, b := range m.blocks {
		img.blocks = append(img.blocks, imaged{b, b.media})
	}
	return img
}

// tell adds to p the events that make an empty cache what the image shows: the blocks, each where it is first; then
// the other places of those that are in several; then the removal of those that are only there for their children.
func (img *image) tell(p *packer) {
	slices.SortFunc(img.blocks, func(a, b imaged) int { return cmp.Compare(a.born, b.born) })
	var run Event
	var runKind kind
	for _, b := range img.blocks {
		place := ""
		if b.media != 0 {
			place = img.media[bits.TrailingZeros64(b.media)]
		}
		if b.odd != nil {
			e := *b.odd
			e.Medium = place
			p.add(run)
			p.add(e)
			run = Event{}
			continue
		}
		follows := len(run.Hashes) > 0 && b.hasParent && run.Hashes[len(run.Hashes)-1] == b.parent
		if !follows || runKind != *b.kind || run.Medium != place {
			p.add(run)
			runKind = *b.kind
			run = Event{
				Kind: Stored, Parent: b.parent, HasParent: b.hasParent, Medium: place, BlockSize: b.kind.blockSize,
				LoraName: b.kind.lora, LoraID: b.kind.loraID, CacheSalt: b.kind.salt,
			}
		}
		run.Hashes = append(run.Hashes, b.hash)
		run.Tokens = append(run.Tokens, b.tokens...)
	}
	p.add(run)

	for at, name := range img.media {
		p.add(img.pick(Stored, name, func(media uint64) bool { return media&^(media&-media)&(1<<at) != 0 }))
	}
	p.add(img.pick(Removed, "", func(media uint64) bool { return media == 0 }))
	p.flush()
}

// pick is an event of all blocks whose places are as told, without their tokens.
func (img *image) pick(k Kind, medium string, like func(media uint64) bool) Event {
	e := Event{Kind: k, Medium: medium}
	for _, b := range img.blocks {
		if like(b.media) {
			e.Hashes = append(e.Hashes, b.hash)
		}
	}
	return e
}
