package wire

import (
	"github.com/tinylib/msgp/msgp"
)

// AppendBatch appends b as vLLM sends it since 0.24.0: the outer array, and a map for each event, with vLLM's keys in
// vLLM's order. Keys that vLLM always sends are null when empty; others are left out. Additional fields of other
// engines follow. [DecodeBatch] reads it back equal.
func AppendBatch(dst []byte, b *Batch) []byte { return appendBatch(dst, b, b.Events, appendEvent) }

func appendBatch(dst []byte, b *Batch, events []Event, write func([]byte, *Event) []byte) []byte {
	dst = msgp.AppendArrayHeader(dst, 3)
	dst = msgp.AppendFloat64(dst, b.TS)
	dst = msgp.AppendArrayHeader(dst, uint32(len(events)))
	for i := range events {
		dst = write(dst, &events[i])
	}
	if b.Rank < 0 {
		return msgp.AppendNil(dst)
	}
	return appendInt(dst, int64(b.Rank))
}

// batchHead is room for what AppendBatch writes in addition to the events, and eventHead for what it writes of an event
// in addition to what sizeOf counts, in bytes.
const (
	batchHead = 32
	eventHead = 400
)

// sizeOf is an upper bound of e's bytes as AppendBatch writes it.
func sizeOf(e *Event) int {
	size := eventHead + 9*len(e.Hashes) + 5*len(e.Tokens) + 6*len(e.Seconds) + 5*len(e.ExtraKeys) + 5*len(e.MMKeys) +
		5*len(e.Lookahead) + len(e.LoraName) + len(e.Medium) + len(e.CacheSalt) + len(e.SessionID) + len(e.SpecKind) +
		len(e.Locality) + len(e.Ownership)
	for _, t := range e.Texts {
		size += 5 + len(t.Text)
	}
	for _, keys := range e.ExtraKeys {
		for _, k := range keys {
			size += 20 + len(k.Text) + len(k.Bytes)
		}
	}
	for _, keys := range e.MMKeys {
		for _, k := range keys {
			size += 50 + len(k.Hash) + len(k.UUID)
		}
	}
	for _, ids := range e.Lookahead {
		size += 5 * len(ids)
	}
	return size
}

func appendEvent(dst []byte, e *Event) []byte {
	w := mapWriter{dst: dst, at: len(dst)}
	w.dst = append(w.dst, 0) // the map's header, once its size is known
	switch e.Kind {
	case Stored:
		w.dst = msgp.AppendString(w.key("type"), "BlockStored")
		w.hashes(e.Hashes)
		w.dst = appendParent(w.key("parent_block_hash"), e, appendUnsigned)
		w.dst = appendTokens(w.key("token_ids"), e)
		w.dst = appendInt(w.key("block_size"), int64(e.BlockSize))
		w.nullableInt("lora_id", e.LoraID)
		w.nullableString("medium", e.Medium)
		w.nullableString("lora_name", e.LoraName)
		if e.ExtraKeys != nil {
			w.dst = appendList(w.key("extra_keys"), e.ExtraKeys, appendExtraKeys)
		}
		w.optionalInt("group_idx", e.GroupIdx)
		w.optionalString("kv_cache_spec_kind", e.SpecKind)
		w.optionalInt("kv_cache_spec_sliding_window", e.SlidingWindow)
		w.optionalString("locality", e.Locality)
		w.optionalString("ownership", e.Ownership)
		w.optionalString("session_id", e.SessionID)
		if e.Lookahead != nil {
			w.dst = appendList(w.key("lookahead_token_ids"), e.Lookahead, appendIDs)
		}
		w.optionalString("cache_salt", e.CacheSalt)
		if e.MMKeys != nil {
			w.dst = appendList(w.key("mm_keys"), e.MMKeys, appendMMKeys)
		}
	case Removed:
		w.dst = msgp.AppendString(w.key("type"), "BlockRemoved")
		w.hashes(e.Hashes)
		w.nullableString("medium", e.Medium)
		w.optionalInt("group_idx", e.GroupIdx)
		w.optionalString("locality", e.Locality)
		w.optionalString("ownership", e.Ownership)
	case Cleared:
		w.dst = msgp.AppendString(w.key("type"), "AllBlocksCleared")
	}
	return w.close()
}

// mapWriter writes a map whose size is known at its end.
type mapWriter struct {
	dst  []byte
	at   int // of the header's one byte
	keys int
}

// key writes a key and returns dst, for the value to be appended and assigned back.
func (w *mapWriter) key(name string) []byte {
	w.keys++
	w.dst = msgp.AppendString(w.dst, name)
	return w.dst
}

func (w *mapWriter) hashes(hs []Hash) {
	w.dst = msgp.AppendArrayHeader(w.key("block_hashes"), uint32(len(hs)))
	for _, h := range hs {
		w.dst = msgp.AppendUint64(w.dst, uint64(h))
	}
}

func (w *mapWriter) nullableString(key, s string) { w.dst = appendOptString(w.key(key), s) }

func (w *mapWriter) optionalString(key, s string) {
	if s != "" {
		w.dst = msgp.AppendString(w.key(key), s)
	}
}

func (w *mapWriter) nullableInt(key string, i OptInt) { w.dst = appendOptInt(w.key(key), i) }

func (w *mapWriter) optionalInt(key string, i OptInt) {
	if i.Set {
		w.dst = appendInt(w.key(key), i.Value)
	}
}

// close puts the header in: one byte up to 15 keys, which is nearly always, else three.
func (w *mapWriter) close() []byte {
	if w.keys < 16 {
		w.dst[w.at] = 0x80 | byte(w.keys)
		return w.dst
	}
	w.dst = append(w.dst, 0, 0)
	copy(w.dst[w.at+3:], w.dst[w.at+1:])
	w.dst[w.at], w.dst[w.at+1], w.dst[w.at+2] = 0xde, 0, byte(w.keys)
	return w.dst
}

// appendInt writes the shortest form, unsigned where it can be, as msgspec does.
func appendInt(dst []byte, i int64) []byte {
	if i >= 0 {
		return msgp.AppendUint64(dst, uint64(i))
	}
	return msgp.AppendInt64(dst, i)
}

func appendTokens(dst []byte, e *Event) []byte {
	dst = msgp.AppendArrayHeader(dst, uint32(len(e.Tokens)))
	texts := e.Texts
	for i, id := range e.Tokens {
		switch {
		case len(texts) > 0 && texts[0].Index == i:
			dst = msgp.AppendString(dst, texts[0].Text)
			texts = texts[1:]
		case e.Seconds != nil:
			dst = msgp.AppendArrayHeader(dst, 2)
			dst = msgp.AppendUint32(dst, id)
			dst = msgp.AppendUint32(dst, e.Seconds[i])
		default:
			dst = msgp.AppendUint32(dst, id)
		}
	}
	return dst
}

// appendList writes an array; an element that is a nil slice becomes null.
func appendList[T any](dst []byte, list [][]T, write func([]byte, []T) []byte) []byte {
	dst = msgp.AppendArrayHeader(dst, uint32(len(list)))
	for _, v := range list {
		if v == nil {
			dst = msgp.AppendNil(dst)
		} else {
			dst = write(dst, v)
		}
	}
	return dst
}

func appendIDs(dst []byte, ids []uint32) []byte {
	dst = msgp.AppendArrayHeader(dst, uint32(len(ids)))
	for _, id := range ids {
		dst = msgp.AppendUint32(dst, id)
	}
	return dst
}

func appendExtraKeys(dst []byte, keys []ExtraKey) []byte {
	dst = msgp.AppendArrayHeader(dst, uint32(len(keys)))
	for _, k := range keys {
		switch {
		case k.Bytes != nil:
			dst = msgp.AppendBytes(dst, k.Bytes)
		case k.HasOffset:
			dst = msgp.AppendArrayHeader(dst, 2)
			dst = msgp.AppendString(dst, k.Text)
			dst = appendInt(dst, k.Offset)
		default:
			dst = msgp.AppendString(dst, k.Text)
		}
	}
	return dst
}

func appendMMKeys(dst []byte, keys []MMKey) []byte {
	dst = msgp.AppendArrayHeader(dst, uint32(len(keys)))
	for _, k := range keys {
		w := mapWriter{dst: dst, at: len(dst)}
		w.dst = append(w.dst, 0)
		w.optionalString("hash", k.Hash)
		w.dst = appendInt(w.key("start_offset"), k.StartOffset)
		w.optionalString("uuid", k.UUID)
		dst = w.close()
	}
	return dst
}
