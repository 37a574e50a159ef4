package wire

import (
	"errors"
	"fmt"

	"github.com/tinylib/msgp/msgp"
)

// ErrNotBatch is wrapped by every refusal of [DecodeBatch]: the payload as a whole is no batch of events.
var ErrNotBatch = errors.New("not a batch of KV events")

// MaxBatchBytes is how long a message may be. An engine's step of a million tokens fits.
const MaxBatchBytes = 4 << 20

// Bounds of one message, far above what engines send.
const (
	maxBatchEvents = 1 << 16
	// maxItems bounds the items of a message that take more memory than bytes: text tokens, per-block data, and lists
	// of them.
	maxItems = 1 << 18
)

// DecodeBatch reads one message of an engine into dst, whose memory it uses again: what dst held before is gone.
// Nothing in dst points into payload.
//
// The message is msgpack: [ts, [event…], rank], where rank may be absent and further elements are ignored. Each
// event is a map with a "type", as vLLM sends since 0.24.0 and SGLang since 0.5.20. Before, it was an array whose first
// element is the type. Each is recognised by its form, not by the engine. An event of unknown type,
// or without what it needs, is skipped and counted; so are fields. Only what cannot be followed at all is refused as
// a whole, with [ErrNotBatch]: cut short, bytes left over, no batch, longer than [MaxBatchBytes]. A false length
// costs nothing: memory grows with the bytes that are there, and what is small as bytes and large in memory is
// bounded by number.
func DecodeBatch(dst *Batch, payload []byte) error {
	dst.reset()
	if len(payload) > MaxBatchBytes {
		return fmt.Errorf("%w: %d bytes", ErrNotBatch, len(payload))
	}
	rest, err := dst.decode(payload)
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("%d bytes left over", len(rest))
	}
	if err != nil {
		dst.reset()
		return fmt.Errorf("%w: %w", ErrNotBatch, err)
	}
	return nil
}

// reset empties b for the next message, and keeps its memory unless the last one needed very much.
func (b *Batch) reset() {
	const keptEvents, keptHashes, keptTokens = 1 << 10, 1 << 17, 1 << 20
	clear(b.Events) // nothing that they point to is kept
	next := Batch{Rank: NoRank, Events: b.Events[:0], hashes: b.hashes[:0], tokens: b.tokens[:0]}
	if cap(next.Events) > keptEvents {
		next.Events = nil
	}
	if cap(next.hashes) > keptHashes {
		next.hashes = nil
	}
	if cap(next.tokens) > keptTokens {
		next.tokens = nil
	}
	*b = next
}

func (b *Batch) decode(p []byte) ([]byte, error) {
	n, p, err := msgp.ReadArrayHeaderBytes(p)
	if err != nil {
		return p, err
	}
	if n < 2 {
		return p, fmt.Errorf("an array of %d", n)
	}
	if b.TS, p, err = readNumber(p); err != nil {
		return p, err
	}
	events, p, err := msgp.ReadArrayHeaderBytes(p)
	if err != nil {
		return p, err
	}
	if events > maxBatchEvents {
		return p, fmt.Errorf("%d events", events)
	}
	for range events {
		if p, err = b.decodeEvent(p); err != nil {
			return p, err
		}
	}
	for i := uint32(2); i < n; i++ {
		if i == 2 {
			if rank, rest, err := msgp.ReadInt32Bytes(p); err == nil && rank >= 0 {
				b.Rank, p = int(rank), rest
				continue
			}
		}
		if p, err = msgp.Skip(p); err != nil {
			return p, err
		}
	}
	return p, nil
}

// decodeEvent reads one event, or steps over it. It fails only where its end cannot be found.
func (b *Batch) decodeEvent(p []byte) ([]byte, error) {
	hashes, tokens, fields := len(b.hashes), len(b.tokens), b.SkippedFields
	d := eventDecoder{batch: b}
	rest, err := d.decode(p)
	if err == nil && d.complete() {
		b.Events = append(b.Events, d.event)
		return rest, nil
	}
	b.hashes, b.tokens, b.SkippedFields = b.hashes[:hashes], b.tokens[:tokens], fields
	b.Skipped++
	return msgp.Skip(p)
}

// field is a field of an event, whatever its key or position.
type field uint8

const (
	fieldUnknown field = iota
	fieldHashes
	fieldParent
	fieldTokens
	fieldBlockSize
	fieldLoraID
	fieldMedium
	fieldLoraNameOrMap // position 7: vLLM's LoRA name, a string, or SGLang's further fields, a map
	fieldLoraName
	fieldExtraKeys
	fieldGroupIdx
	fieldSpecKind
	fieldSlidingWindow
	fieldLocality
	fieldOwnership
	fieldCacheSalt
	fieldSessionID
	fieldLookahead
	fieldMMKeys
)

// required are the fields without which, or with which unreadable, an event is none.
const required = 1<<fieldHashes | 1<<fieldParent | 1<<fieldTokens | 1<<fieldBlockSize

// What the positions of an event sent as an array mean, behind the type.
var (
	storedPositions = []field{fieldHashes, fieldParent, fieldTokens, fieldBlockSize, fieldLoraID, fieldMedium,
		fieldLoraNameOrMap, fieldExtraKeys, fieldGroupIdx, fieldSpecKind, fieldSlidingWindow}
	removedPositions = []field{fieldHashes, fieldMedium, fieldGroupIdx}
)

type eventDecoder struct {
	batch *Batch
	event Event
	seen  uint32 // bit set of fields
}

// complete reports whether the event has the required fields, and clears those its kind does not have.
func (d *eventDecoder) complete() bool {
	switch d.event.Kind {
	case Stored:
		const needs = required &^ (1 << fieldParent)
		e := &d.event
		return d.seen&needs == needs && max(len(e.ExtraKeys), len(e.MMKeys), len(e.Lookahead)) <= len(e.Hashes)
	case Removed: // whatever else was sent
		e := &d.event
		d.event = Event{
			Kind: Removed, Hashes: e.Hashes, Medium: e.Medium, GroupIdx: e.GroupIdx, Locality: e.Locality, Ownership: e.Ownership,
		}
		return d.seen&(1<<fieldHashes) != 0
	case Cleared:
		d.event = Event{Kind: Cleared}
		return true
	}
	return false
}

func (d *eventDecoder) decode(p []byte) ([]byte, error) {
	if msgp.NextType(p) == msgp.MapType {
		return d.decodeMap(p, true)
	}
	return d.decodeArray(p)
}

func (d *eventDecoder) decodeArray(p []byte) ([]byte, error) {
	n, p, err := msgp.ReadArrayHeaderBytes(p)
	if err != nil || n == 0 {
		return p, errors.Join(err, errUnreadable)
	}
	if d.event.Kind, p, err = readKind(p); err != nil {
		return p, err
	}
	var positions []field
	switch d.event.Kind {
	case Stored:
		positions = storedPositions
	case Removed:
		positions = removedPositions
	}
	for i := range n - 1 {
		f := fieldUnknown
		if int(i) < len(positions) {
			f = positions[i]
		}
		if p, err = d.decodeField(f, p); err != nil {
			return p, err
		}
	}
	// An array has a place for the parent and for the adapter always, and publishers without a null in their type write 0 there.
	d.event.HasParent = d.event.HasParent && d.event.Parent != 0
	if d.event.LoraID.Value == 0 {
		d.event.LoraID = OptInt{}
	}
	return p, nil
}

// decodeMap reads an event sent as a map, or (typed false) the map of further fields in one sent as an array.
func (d *eventDecoder) decodeMap(p []byte, typed bool) ([]byte, error) {
	n, p, err := msgp.ReadMapHeaderBytes(p)
	if err != nil {
		return p, err
	}
	for range n {
		key, rest, err := msgp.ReadStringZC(p)
		if err != nil { // a key of another type is as good as unknown
			if rest, err = msgp.Skip(p); err != nil {
				return p, err
			}
		}
		p = rest
		if typed && string(key) == "type" {
			if d.event.Kind, p, err = readKind(p); err != nil {
				return p, err
			}
			continue
		}
		if p, err = d.decodeField(fieldNamed(key), p); err != nil {
			return p, err
		}
	}
	return p, nil
}

// decodeField reads one field, or steps over it when it is unknown, null, or optional and unreadable. It fails when
// a required one is unreadable, and where the field's end cannot be found.
func (d *eventDecoder) decodeField(f field, p []byte) ([]byte, error) {
	if msgp.IsNil(p) {
		return p[1:], nil
	}
	if f != fieldUnknown {
		rest, err := d.readField(f, p)
		if err == nil {
			d.seen |= 1 << f
			return rest, nil
		}
		if required&(1<<f) != 0 || errors.Is(err, errTooMany) {
			return p, err
		}
	}
	d.batch.SkippedFields++
	return msgp.Skip(p)
}

func (d *eventDecoder) readField(f field, p []byte) (rest []byte, err error) {
	e := &d.event
	switch f {
	case fieldHashes:
		e.Hashes, rest, err = d.readHashes(p)
	case fieldParent:
		e.Parent, rest, err = readHash(p)
		e.HasParent = err == nil
	case fieldTokens:
		rest, err = d.readTokens(p)
	case fieldBlockSize:
		e.BlockSize, rest, err = readCount(p)
	case fieldLoraID:
		e.LoraID, rest, err = readOptInt(p)
	case fieldMedium:
		e.Medium, rest, err = readString(p)
	case fieldLoraNameOrMap:
		if msgp.NextType(p) == msgp.MapType {
			return d.decodeMap(p, false)
		}
		e.LoraName, rest, err = readString(p)
	case fieldLoraName:
		e.LoraName, rest, err = readString(p)
	case fieldExtraKeys:
		e.ExtraKeys, rest, err = readList(p, &d.batch.items, readExtraKeys)
	case fieldGroupIdx:
		e.GroupIdx, rest, err = readOptInt(p)
	case fieldSpecKind:
		e.SpecKind, rest, err = readString(p)
	case fieldSlidingWindow:
		e.SlidingWindow, rest, err = readOptInt(p)
	case fieldLocality:
		e.Locality, rest, err = readString(p)
	case fieldOwnership:
		e.Ownership, rest, err = readString(p)
	case fieldCacheSalt:
		e.CacheSalt, rest, err = readString(p)
	case fieldSessionID:
		e.SessionID, rest, err = readString(p)
	case fieldLookahead:
		e.Lookahead, rest, err = readList(p, &d.batch.items, readIDs)
	case fieldMMKeys:
		e.MMKeys, rest, err = readList(p, &d.batch.items, readMMKeys)
	}
	return rest, err
}

func (d *eventDecoder) readHashes(p []byte) ([]Hash, []byte, error) {
	n, p, err := msgp.ReadArrayHeaderBytes(p)
	if err != nil {
		return nil, p, err
	}
	b := d.batch
	start := len(b.hashes)
	for range n {
		var h Hash
		if h, p, err = readHash(p); err != nil {
			return nil, p, err
		}
		b.hashes = append(b.hashes, h)
	}
	return b.hashes[start:len(b.hashes):len(b.hashes)], p, nil
}

// readTokens reads ids, pairs of ids, and strings, in any mixture but pairs with others.
func (d *eventDecoder) readTokens(p []byte) ([]byte, error) {
	n, p, err := msgp.ReadArrayHeaderBytes(p)
	if err != nil {
		return p, err
	}
	b, e := d.batch, &d.event
	start := len(b.tokens)
	for i := range n {
		var id uint32
		switch {
		case len(p) >= 5 && p[0] == 0xce: // nearly all ids are of these two forms
			id, p = uint32(p[1])<<24|uint32(p[2])<<16|uint32(p[3])<<8|uint32(p[4]), p[5:]
		case len(p) >= 3 && p[0] == 0xcd:
			id, p = uint32(p[1])<<8|uint32(p[2]), p[3:]
		default:
			switch msgp.NextType(p) {
			case msgp.ArrayType:
				var second uint32
				if id, second, p, err = readPair(p); err == nil {
					e.Seconds = append(e.Seconds, second)
				}
			case msgp.StrType:
				var text string
				if text, p, err = readString(p); err == nil {
					if b.items++; b.items > maxItems {
						return p, errTooMany
					}
					e.Texts = append(e.Texts, TextToken{int(i), text})
				}
			default:
				id, p, err = msgp.ReadUint32Bytes(p)
			}
			if err != nil {
				return p, err
			}
		}
		b.tokens = append(b.tokens, id)
	}
	e.Tokens = b.tokens[start:len(b.tokens):len(b.tokens)]
	if e.Seconds != nil && len(e.Seconds) != len(e.Tokens) {
		return p, errUnreadable
	}
	return p, nil
}
