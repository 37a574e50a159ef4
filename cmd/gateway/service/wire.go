package service

import (
	"encoding/binary"
	"errors"
	"slices"

	"github.com/zeebo/xxh3"

	"github.com/tandem-pd/tandem/kv/overlap"
)

// The paths that gateways call. [Registration] is the body of a registration, [Removal] that of its end, and [List]
// the answer with all of them.
const (
	PathRegister    = "/register"
	PathUnregister  = "/unregister"
	PathWorkers     = "/workers"
	PathQueryByHash = "/query_by_hash"
)

// The content types of the compact form of POST /query_by_hash: the prompt's hashes, 8 bytes each, little endian; and
// the answer of [AppendAnswer].
const (
	HashesType = "application/vnd.tandem.hashes"
	AnswerType = "application/vnd.tandem.overlaps"
)

// errGarbled reports bytes that are no answer, or no hashes.
var errGarbled = errors.New("not in the compact form")

// appendHashes appends hashes in the form of a compact query.
func appendHashes(dst []byte, hashes []uint64) []byte {
	dst = slices.Grow(dst, 8*len(hashes))
	for _, h := range hashes {
		dst = binary.LittleEndian.AppendUint64(dst, h)
	}
	return dst
}

// Hashes reads the body of a compact query, or returns [errGarbled].
func Hashes(body []byte) ([]uint64, error) {
	if len(body)%8 != 0 {
		return nil, errGarbled
	}
	hashes := make([]uint64, len(body)/8)
	for i := range hashes {
		hashes[i] = binary.LittleEndian.Uint64(body[8*i:])
	}
	return hashes, nil
}

// Sum identifies a layout by its content: client and service compute the same number for the same ranks, so an answer
// need not name them.
func Sum(l *overlap.Layout) uint64 {
	h := xxh3.New()
	var buf [binary.MaxVarintLen64]byte
	for i := range l.Len() {
		r := l.Rank(i)
		_, _ = h.Write(buf[:binary.PutUvarint(buf[:], uint64(len(r.Worker)))]) // a hash never fails
		_, _ = h.WriteString(r.Worker)
		_, _ = h.Write(buf[:binary.PutUvarint(buf[:], uint64(r.Rank))])
	}
	return h.Sum64()
}

// maxHeld bounds the blocks of a rank's tier in an answer.
const maxHeld = 1 << 30

// AppendAnswer appends an answer: the layout's sum in 8 bytes, little endian; then for each rank, in varints, 0 if
// unknown, else 1 plus the blocks on its device, and the blocks of its host, disk and shared tiers.
func AppendAnswer(dst []byte, sum uint64, held []overlap.Tiers) []byte {
	dst = binary.LittleEndian.AppendUint64(slices.Grow(dst, 8+5*len(held)), sum)
	for i := range held {
		h := &held[i]
		if !h.Known {
			dst = append(dst, 0)
			continue
		}
		dst = binary.AppendUvarint(dst, uint64(h.Device)+1)
		for _, n := range [...]int32{h.Host, h.Disk, h.Shared} {
			dst = binary.AppendUvarint(dst, uint64(n))
		}
	}
	return dst
}

// sumOf reads an answer's layout sum.
func sumOf(answer []byte) (uint64, error) {
	if len(answer) < 8 {
		return 0, errGarbled
	}
	return binary.LittleEndian.Uint64(answer), nil
}

// readAnswer reads an answer about a layout of n ranks, or returns [errGarbled].
func readAnswer(answer []byte, n int) ([]overlap.Tiers, error) {
	if len(answer) < 8 {
		return nil, errGarbled
	}
	rest := answer[8:]
	held := make([]overlap.Tiers, n)
	for i := range held {
		device, ok := take(&rest)
		if !ok {
			return nil, errGarbled
		}
		if device == 0 {
			continue
		}
		h := overlap.Tiers{Known: true, Device: device - 1}
		for _, tier := range [...]*int32{&h.Host, &h.Disk, &h.Shared} {
			if *tier, ok = take(&rest); !ok {
				return nil, errGarbled
			}
		}
		held[i] = h
	}
	if len(rest) > 0 {
		return nil, errGarbled
	}
	return held, nil
}

// take reads a number from b.
func take(b *[]byte) (int32, bool) {
	n, size := binary.Uvarint(*b)
	if size <= 0 || n > maxHeld {
		return 0, false
	}
	*b = (*b)[size:]
	return int32(n), true
}
