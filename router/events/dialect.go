package events

import (
	"fmt"

	"github.com/tinylib/msgp/msgp"
)

// Dialect is an engine's own form of a batch, as its publisher sends it over ZMQ. [DecodeBatch] reads all of them.
type Dialect uint8

const (
	// VLLM is vLLM's since 0.24.0: maps, hashes unsigned. Its replays carry the topic, as since 0.26.0.
	VLLM Dialect = iota
	// VLLMArrays is vLLM's of 0.22.0 to 0.23.0: arrays of one length, nulls included. Its replays carry no topic.
	VLLMArrays
	// SGLang is SGLang's since 0.5.20: maps, hashes signed. Its replays carry the topic, as since 0.5.22.
	SGLang
	// SGLangArrays is SGLang's of 0.5.9 to 0.5.17: arrays, an event for each page. Its replays carry no topic.
	SGLangArrays
)

// dialects are their names.
var dialects = [...]string{"vllm", "vllm-arrays", "sglang", "sglang-arrays"}

// ParseDialect is the dialect of a name: "vllm", "vllm-arrays", "sglang" or "sglang-arrays".
func ParseDialect(name string) (Dialect, error) {
	for d, n := range dialects {
		if n == name {
			return Dialect(d), nil
		}
	}
	return 0, fmt.Errorf("no dialect of KV events is called %q", name)
}

func (d Dialect) String() string { return dialects[d] }

// Arrays reports whether events are arrays, as older releases send them.
func (d Dialect) Arrays() bool { return d == VLLMArrays || d == SGLangArrays }

// Append appends b in this dialect. What the dialect has no field for is left out.
func (d Dialect) Append(dst []byte, b *Batch) []byte {
	if d == VLLM {
		return AppendBatch(dst, b)
	}
	events := b.Events
	if d == SGLangArrays {
		events = blockwise(events)
	}
	dst = msgp.AppendArrayHeader(dst, 3)
	dst = msgp.AppendFloat64(dst, b.TS)
	dst = msgp.AppendArrayHeader(dst, uint32(len(events)))
	for i := range events {
		switch d {
		case VLLMArrays:
			dst = appendVLLMArray(dst, &events[i])
		case SGLangArrays:
			dst = appendSGLangArray(dst, &events[i])
		default:
			dst = appendSGLangMap(dst, &events[i])
		}
	}
	if b.Rank < 0 {
		return msgp.AppendNil(dst)
	}
	return appendInt(dst, int64(b.Rank))
}

// blockwise has an event for each block that is stored or removed.
func blockwise(events []Event) []Event {
	var out []Event
	for i := range events {
		e := &events[i]
		if e.Kind == Cleared {
			out = append(out, *e)
		}
		for at := range e.Hashes {
			out = append(out, e.blocks(at, at+1))
		}
	}
	return out
}

func appendVLLMArray(dst []byte, e *Event) []byte {
	switch e.Kind {
	case Stored:
		dst = msgp.AppendString(msgp.AppendArrayHeader(dst, 12), "BlockStored")
		dst = appendHashes(dst, e.Hashes, appendUnsigned)
		dst = appendParent(dst, e, appendUnsigned)
		dst = appendTokens(dst, e)
		dst = appendInt(dst, int64(e.BlockSize))
		dst = appendOptInt(dst, e.LoraID)
		dst = appendOptString(dst, e.Medium)
		dst = appendOptString(dst, e.LoraName)
		if e.ExtraKeys != nil {
			dst = appendList(dst, e.ExtraKeys, appendExtraKeys)
		} else {
			dst = msgp.AppendNil(dst)
		}
		dst = appendOptInt(dst, e.GroupIdx)
		dst = appendOptString(dst, e.SpecKind)
		dst = appendOptInt(dst, e.SlidingWindow)
	case Removed:
		dst = msgp.AppendString(msgp.AppendArrayHeader(dst, 4), "BlockRemoved")
		dst = appendHashes(dst, e.Hashes, appendUnsigned)
		dst = appendOptString(dst, e.Medium)
		dst = appendOptInt(dst, e.GroupIdx)
	case Cleared:
		dst = msgp.AppendString(msgp.AppendArrayHeader(dst, 1), "AllBlocksCleared")
	}
	return dst
}

func appendSGLangArray(dst []byte, e *Event) []byte {
	switch e.Kind {
	case Stored:
		dst = msgp.AppendString(msgp.AppendArrayHeader(dst, 7), "BlockStored")
		dst = appendHashes(dst, e.Hashes, appendSigned)
		dst = appendParent(dst, e, appendSigned)
		dst = appendTokens(dst, e)
		dst = appendInt(dst, int64(e.BlockSize))
		dst = appendOptInt(dst, e.LoraID)
		dst = appendOptString(dst, e.Medium)
	case Removed:
		dst = msgp.AppendString(msgp.AppendArrayHeader(dst, 3), "BlockRemoved")
		dst = appendHashes(dst, e.Hashes, appendSigned)
		dst = appendOptString(dst, e.Medium)
	case Cleared:
		dst = msgp.AppendString(msgp.AppendArrayHeader(dst, 1), "AllBlocksCleared")
	}
	return dst
}

func appendSGLangMap(dst []byte, e *Event) []byte {
	w := mapWriter{dst: dst, at: len(dst)}
	w.dst = append(w.dst, 0)
	switch e.Kind {
	case Stored:
		w.dst = msgp.AppendString(w.key("type"), "BlockStored")
		w.dst = appendHashes(w.key("block_hashes"), e.Hashes, appendSigned)
		w.dst = appendParent(w.key("parent_block_hash"), e, appendSigned)
		w.dst = appendTokens(w.key("token_ids"), e)
		w.dst = appendInt(w.key("block_size"), int64(e.BlockSize))
		w.nullableInt("lora_id", e.LoraID)
		w.optionalString("medium", e.Medium)
		w.optionalString("cache_salt", e.CacheSalt)
		w.optionalString("session_id", e.SessionID)
		w.optionalString("lora_name", e.LoraName)
	case Removed:
		w.dst = msgp.AppendString(w.key("type"), "BlockRemoved")
		w.dst = appendHashes(w.key("block_hashes"), e.Hashes, appendSigned)
		w.optionalString("medium", e.Medium)
	case Cleared:
		w.dst = msgp.AppendString(w.key("type"), "AllBlocksCleared")
	}
	return w.close()
}

func appendUnsigned(dst []byte, h Hash) []byte { return msgp.AppendUint64(dst, uint64(h)) }

func appendSigned(dst []byte, h Hash) []byte { return appendInt(dst, int64(h)) }

func appendHashes(dst []byte, hs []Hash, write func([]byte, Hash) []byte) []byte {
	dst = msgp.AppendArrayHeader(dst, uint32(len(hs)))
	for _, h := range hs {
		dst = write(dst, h)
	}
	return dst
}

func appendParent(dst []byte, e *Event, write func([]byte, Hash) []byte) []byte {
	if !e.HasParent {
		return msgp.AppendNil(dst)
	}
	return write(dst, e.Parent)
}

func appendOptInt(dst []byte, i OptInt) []byte {
	if !i.Set {
		return msgp.AppendNil(dst)
	}
	return appendInt(dst, i.Value)
}

func appendOptString(dst []byte, s string) []byte {
	if s == "" {
		return msgp.AppendNil(dst)
	}
	return msgp.AppendString(dst, s)
}
