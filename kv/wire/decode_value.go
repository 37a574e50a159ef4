package wire

import (
	"bytes"
	"errors"

	"github.com/tinylib/msgp/msgp"
)

// errUnreadable is a value of a form that its place does not allow. It costs its event at most.
var errUnreadable = errors.New("unreadable value")

// errTooMany is more small things than a message may hold. It costs the event.
var errTooMany = errors.New("too many items")

func readKind(p []byte) (Kind, []byte, error) {
	name, p, err := msgp.ReadStringZC(p)
	if err != nil {
		return 0, p, err
	}
	switch string(name) {
	case "BlockStored":
		return Stored, p, nil
	case "BlockRemoved":
		return Removed, p, nil
	case "AllBlocksCleared":
		return Cleared, p, nil
	}
	return 0, p, errUnreadable
}

func fieldNamed(key []byte) field {
	switch string(key) {
	case "block_hashes":
		return fieldHashes
	case "parent_block_hash":
		return fieldParent
	case "token_ids":
		return fieldTokens
	case "block_size":
		return fieldBlockSize
	case "lora_id":
		return fieldLoraID
	case "medium":
		return fieldMedium
	case "lora_name":
		return fieldLoraName
	case "extra_keys":
		return fieldExtraKeys
	case "group_idx":
		return fieldGroupIdx
	case "kv_cache_spec_kind":
		return fieldSpecKind
	case "kv_cache_spec_sliding_window":
		return fieldSlidingWindow
	case "locality":
		return fieldLocality
	case "ownership":
		return fieldOwnership
	case "cache_salt":
		return fieldCacheSalt
	case "session_id":
		return fieldSessionID
	case "lookahead_token_ids":
		return fieldLookahead
	case "mm_keys":
		return fieldMMKeys
	}
	return fieldUnknown
}

func readNumber(p []byte) (float64, []byte, error) {
	switch msgp.NextType(p) {
	case msgp.IntType:
		i, p, err := msgp.ReadInt64Bytes(p)
		return float64(i), p, err
	case msgp.UintType:
		u, p, err := msgp.ReadUint64Bytes(p)
		return float64(u), p, err
	case msgp.Float32Type:
		f, p, err := msgp.ReadFloat32Bytes(p)
		return float64(f), p, err
	default:
		return msgp.ReadFloat64Bytes(p)
	}
}

func readHash(p []byte) (Hash, []byte, error) {
	switch msgp.NextType(p) {
	case msgp.IntType:
		i, p, err := msgp.ReadInt64Bytes(p)
		return Hash(i), p, err
	case msgp.UintType:
		u, p, err := msgp.ReadUint64Bytes(p)
		return Hash(u), p, err
	case msgp.BinType:
		b, p, err := msgp.ReadBytesZC(p)
		return bytesHash(b), p, err
	}
	return 0, p, errUnreadable
}

func readOptInt(p []byte) (OptInt, []byte, error) {
	i, p, err := msgp.ReadInt64Bytes(p)
	return OptInt{i, err == nil}, p, err
}

// readCount reads an int that is not negative and fits 32 bits.
func readCount(p []byte) (int, []byte, error) {
	i, p, err := msgp.ReadInt32Bytes(p)
	if err == nil && i < 0 {
		err = errUnreadable
	}
	return int(i), p, err
}

// readString reads a string; those that nearly all events carry are not allocated again.
func readString(p []byte) (string, []byte, error) {
	b, p, err := msgp.ReadStringZC(p)
	if err != nil {
		return "", p, err
	}
	switch string(b) {
	case "GPU":
		return "GPU", p, nil
	case "CPU":
		return "CPU", p, nil
	case "full_attention":
		return "full_attention", p, nil
	}
	return string(b), p, nil
}

func readPair(p []byte) (first, second uint32, rest []byte, err error) {
	n, p, err := msgp.ReadArrayHeaderBytes(p)
	if err != nil {
		return 0, 0, p, err
	}
	if n != 2 {
		return 0, 0, p, errUnreadable
	}
	if first, p, err = msgp.ReadUint32Bytes(p); err != nil {
		return 0, 0, p, err
	}
	second, p, err = msgp.ReadUint32Bytes(p)
	return first, second, p, err
}

// readList reads an array whose elements are null (which gives the zero T) or what read reads. It is not nil. items counts
// them, up to [maxItems].
func readList[T any](p []byte, items *int, read func([]byte, *int) (T, []byte, error)) ([]T, []byte, error) {
	n, p, err := msgp.ReadArrayHeaderBytes(p)
	if err != nil {
		return nil, p, err
	}
	list := []T{}
	for range n {
		var v T
		if msgp.IsNil(p) {
			p = p[1:]
		} else if v, p, err = read(p, items); err != nil {
			return nil, p, err
		}
		if *items++; *items > maxItems {
			return nil, p, errTooMany
		}
		list = append(list, v)
	}
	return list, p, nil
}

func readIDs(p []byte, items *int) ([]uint32, []byte, error) {
	return readList(p, items, func(p []byte, _ *int) (uint32, []byte, error) { return msgp.ReadUint32Bytes(p) })
}

func readExtraKeys(p []byte, items *int) ([]ExtraKey, []byte, error) {
	return readList(p, items, readExtraKey)
}

func readMMKeys(p []byte, items *int) ([]MMKey, []byte, error) { return readList(p, items, readMMKey) }

func readExtraKey(p []byte, _ *int) (k ExtraKey, rest []byte, err error) {
	switch msgp.NextType(p) {
	case msgp.StrType:
		k.Text, p, err = readString(p)
	case msgp.BinType:
		var digest []byte
		digest, p, err = msgp.ReadBytesZC(p)
		k.Bytes = append([]byte{}, digest...)
	default:
		var n uint32
		if n, p, err = msgp.ReadArrayHeaderBytes(p); err != nil {
			return k, p, err
		}
		if n != 2 {
			return k, p, errUnreadable
		}
		if k.Text, p, err = readString(p); err != nil {
			return k, p, err
		}
		k.HasOffset = true
		k.Offset, p, err = msgp.ReadInt64Bytes(p)
	}
	return k, p, err
}

func readMMKey(p []byte, _ *int) (k MMKey, rest []byte, err error) {
	n, p, err := msgp.ReadMapHeaderBytes(p)
	if err != nil {
		return k, p, err
	}
	for range n {
		var key []byte
		if key, p, err = msgp.ReadStringZC(p); err != nil {
			return k, p, err
		}
		switch {
		case msgp.IsNil(p):
			p = p[1:]
		case bytes.Equal(key, []byte("hash")):
			k.Hash, p, err = readString(p)
		case bytes.Equal(key, []byte("start_offset")):
			k.StartOffset, p, err = msgp.ReadInt64Bytes(p)
		case bytes.Equal(key, []byte("uuid")):
			k.UUID, p, err = readString(p)
		default:
			p, err = msgp.Skip(p)
		}
		if err != nil {
			return k, p, err
		}
	}
	return k, p, nil
}
