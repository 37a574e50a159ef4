package wire

import (
	"fmt"
	"slices"

	"github.com/tinylib/msgp/msgp"
)

// Dialect is an engine's own form of a batch, as its publisher sends it over ZMQ. [DecodeBatch] reads all of them.
type Dialect uint8

const (
	VLLM          Dialect = iota // since 0.24.0: maps, hashes unsigned. Replays carry the topic, as since 0.26.0
	VLLMArrays                   // 0.22.0 to 0.23.0: arrays of one length, nulls included. Replays carry no topic
	SGLang                       // since 0.5.22: maps, hashes signed. Replays carry the topic
	SGLangArrays                 // 0.5.9 to 0.5.17: arrays, an event for each page. Replays carry no topic
	SGLangMaps                   // 0.5.20 and 0.5.21: SGLang's maps. Replays carry no topic
	SGLangJoined                 // 0.5.18 and 0.5.19: arrays, neighbouring pages in one event, a salt in a map behind them
	SGLangFirst                  // 0.4.7 to 0.5.8: arrays without a medium, an event for each page
	TensorRT                     // TensorRT-LLM's kv_events_config: maps, hashes signed. Replays carry the topic
	VLLMMaps                     // 0.24.0 and 0.25: vLLM's maps. Replays carry no topic
	VLLMGroups                   // 0.20.0 and 0.21: arrays that end with the group
	VLLMExtraKeys                // 0.17.0 to 0.19: arrays that end with the extra keys
	VLLMLora                     // 0.14.0 to 0.16: arrays that end with the LoRA adapter's name
	VLLMMedium                   // 0.10.2 to 0.13: arrays that end with the medium
	VLLMFirst                    // 0.9.1 to 0.10.1: arrays without a medium, hashes signed
)

var dialects = [...]string{"vllm", "vllm-arrays", "sglang", "sglang-arrays", "sglang-maps", "sglang-joined", "sglang-first", "trtllm",
	"vllm-maps", "vllm-groups", "vllm-extra-keys", "vllm-lora", "vllm-medium", "vllm-first"}

// VLLMOf is the dialect of a vLLM release from 0.9.1 on; before reports whether the release is earlier than the one
// named.
func VLLMOf(before func(release string) bool) Dialect {
	return firstOf(before, VLLM, []generation{
		{"0.10.2", VLLMFirst}, {"0.14.0", VLLMMedium}, {"0.17.0", VLLMLora}, {"0.20.0", VLLMExtraKeys}, {"0.22.0", VLLMGroups},
		{"0.24.0", VLLMArrays}, {"0.26.0", VLLMMaps},
	})
}

// generation is the dialect of the releases before one.
type generation struct {
	until string
	Dialect
}

func firstOf(before func(release string) bool, latest Dialect, generations []generation) Dialect {
	for _, g := range generations {
		if before(g.until) {
			return g.Dialect
		}
	}
	return latest
}

// SGLangOf is the dialect of an SGLang release; before reports whether the release is earlier than the one named.
func SGLangOf(before func(release string) bool) Dialect {
	return firstOf(before, SGLang, []generation{
		{"0.5.9", SGLangFirst}, {"0.5.18", SGLangArrays}, {"0.5.20", SGLangJoined}, {"0.5.22", SGLangMaps},
	})
}

// ParseDialect is the dialect of a name, such as "vllm", "vllm-arrays", "sglang" or "sglang-arrays".
func ParseDialect(name string) (Dialect, error) {
	if d := slices.Index(dialects[:], name); d >= 0 {
		return Dialect(d), nil
	}
	return 0, fmt.Errorf("no dialect of KV events is called %q", name)
}

func (d Dialect) String() string { return dialects[d] }

// Valid reports whether d is one of them.
func (d Dialect) Valid() bool { return int(d) < len(dialects) }

// Arrays reports whether events are arrays, as older releases send them.
func (d Dialect) Arrays() bool {
	switch d {
	case VLLM, VLLMMaps, SGLang, SGLangMaps, TensorRT:
		return false
	}
	return true
}

// TopicInReplays reports whether the messages of a replay carry the topic, as in later releases.
func (d Dialect) TopicInReplays() bool { return d == VLLM || d == SGLang || d == TensorRT }

// Append appends b in this dialect. What the dialect has no field for is left out.
func (d Dialect) Append(dst []byte, b *Batch) []byte {
	switch d {
	case VLLMArrays, VLLMGroups, VLLMExtraKeys, VLLMLora, VLLMMedium, VLLMFirst:
		length := vllmLengths[d]
		return appendBatch(dst, b, b.Events, func(dst []byte, e *Event) []byte { return appendVLLMArray(dst, e, length) })
	case SGLang, SGLangMaps:
		return appendBatch(dst, b, b.Events, appendSGLangMap)
	case SGLangArrays:
		return appendBatch(dst, b, blockwise(b.Events), appendSGLangArray)
	case TensorRT:
		return appendBatch(dst, b, b.Events, appendTensorRTMap)
	case SGLangJoined:
		return appendBatch(dst, b, b.Events, appendSGLangJoined)
	case SGLangFirst:
		return appendBatch(dst, b, blockwise(b.Events), appendSGLangFirst)
	}
	return AppendBatch(dst, b)
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
			out = append(out, e.Blocks(at, at+1))
		}
	}
	return out
}

// vllmLengths are how many elements the arrays of stored and of removed events have.
var vllmLengths = map[Dialect][2]uint32{
	VLLMFirst: {6, 2}, VLLMMedium: {7, 3}, VLLMLora: {8, 3}, VLLMExtraKeys: {9, 3}, VLLMGroups: {10, 4}, VLLMArrays: {12, 4},
}

// appendVLLMArray writes an array of that length: each release appended to those of the release before.
func appendVLLMArray(dst []byte, e *Event, length [2]uint32) []byte {
	hash := appendUnsigned
	if length == vllmLengths[VLLMFirst] {
		hash = appendSigned
	}
	dst = appendArray(dst, e, length[0], length[1], hash)
	switch {
	case e.Kind == Removed && length[1] > 3:
		return appendOptInt(dst, e.GroupIdx)
	case e.Kind != Stored:
		return dst
	}
	if length[0] > 7 {
		dst = appendOptString(dst, e.LoraName)
	}
	switch {
	case length[0] <= 8:
	case e.ExtraKeys != nil:
		dst = appendList(dst, e.ExtraKeys, appendExtraKeys)
	default:
		dst = msgp.AppendNil(dst)
	}
	if length[0] > 9 {
		dst = appendOptInt(dst, e.GroupIdx)
	}
	if length[0] > 10 {
		dst = appendOptInt(appendOptString(dst, e.SpecKind), e.SlidingWindow)
	}
	return dst
}

func appendSGLangArray(dst []byte, e *Event) []byte { return appendArray(dst, e, 7, 3, appendSigned) }

func appendSGLangFirst(dst []byte, e *Event) []byte { return appendArray(dst, e, 6, 2, appendSigned) }

func appendSGLangJoined(dst []byte, e *Event) []byte {
	if e.CacheSalt == "" || e.Kind != Stored {
		return appendSGLangArray(dst, e)
	}
	dst = msgp.AppendMapHeader(appendArray(dst, e, 8, 3, appendSigned), 1)
	return msgp.AppendString(msgp.AppendString(dst, "cache_salt"), e.CacheSalt)
}

// appendArray writes the elements that both engines' arrays begin with, of so many in all. The shortest have no medium.
func appendArray(dst []byte, e *Event, stored, removed uint32, hash func([]byte, Hash) []byte) []byte {
	switch e.Kind {
	case Stored:
		dst = msgp.AppendString(msgp.AppendArrayHeader(dst, stored), "BlockStored")
		dst = appendHashes(dst, e.Hashes, hash)
		dst = appendParent(dst, e, hash)
		dst = appendTokens(dst, e)
		dst = appendInt(dst, int64(e.BlockSize))
		dst = appendOptInt(dst, e.LoraID)
		if stored > 6 {
			dst = appendOptString(dst, e.Medium)
		}
	case Removed:
		dst = msgp.AppendString(msgp.AppendArrayHeader(dst, removed), "BlockRemoved")
		dst = appendHashes(dst, e.Hashes, hash)
		if removed > 2 {
			dst = appendOptString(dst, e.Medium)
		}
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

// appendTensorRTMap writes an event as tensorrt_llm/_torch/pyexecutor/kv_cache_events.py does: vLLM's names, no name of
// a LoRA, multimodal keys only where there are any, and nothing of groups.
func appendTensorRTMap(dst []byte, e *Event) []byte {
	w := mapWriter{dst: dst, at: len(dst)}
	w.dst = append(w.dst, 0)
	w.dst = msgp.AppendString(w.key("type"), typeNames[e.Kind])
	if e.Kind == Cleared {
		return w.close()
	}
	w.dst = appendHashes(w.key("block_hashes"), e.Hashes, appendSigned)
	if e.Kind == Stored {
		w.dst = appendParent(w.key("parent_block_hash"), e, appendSigned)
		w.dst = appendTokens(w.key("token_ids"), e)
		w.dst = appendInt(w.key("block_size"), int64(e.BlockSize))
		w.nullableInt("lora_id", e.LoraID)
	}
	w.nullableString("medium", e.Medium)
	if e.Kind == Stored {
		w.nullableString("lora_name", "")
		if e.MMKeys != nil {
			w.dst = appendList(w.key("mm_keys"), e.MMKeys, appendTaggedMMKeys)
		}
	}
	return w.close()
}

var typeNames = [...]string{Stored: "BlockStored", Removed: "BlockRemoved", Cleared: "AllBlocksCleared"}

// appendTaggedMMKeys writes multimodal keys with their type.
func appendTaggedMMKeys(dst []byte, keys []MMKey) []byte {
	dst = msgp.AppendArrayHeader(dst, uint32(len(keys)))
	for _, k := range keys {
		w := mapWriter{dst: dst, at: len(dst)}
		w.dst = append(w.dst, 0)
		w.dst = msgp.AppendString(w.key("type"), "mm_key")
		w.dst = msgp.AppendString(w.key("hash"), k.Hash)
		w.dst = appendInt(w.key("start_offset"), k.StartOffset)
		w.optionalString("uuid", k.UUID)
		dst = w.close()
	}
	return dst
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
