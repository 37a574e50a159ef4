package openai

import (
	"encoding/binary"
	"math/bits"
	"slices"
	"strconv"
)

// idsSlack is how many bytes past its result AppendIDs may write.
const idsSlack = 8

// AppendIDs appends ids as a JSON array to dst.
func AppendIDs(dst []byte, ids []uint32) []byte {
	dst = slices.Grow(dst, idsSize(ids)+idsSlack)
	at := len(dst)
	out := dst[:cap(dst)]
	out[at] = '['
	at++
	for _, id := range ids {
		n := digitCount(id)
		if n <= 8 {
			binary.LittleEndian.PutUint64(out[at:], digits8(id)>>(64-8*n))
		} else {
			strconv.AppendUint(out[:at], uint64(id), 10)
		}
		out[at+n] = ','
		at += n + 1
	}
	if len(ids) > 0 {
		at-- // the last comma
	}
	out[at] = ']'
	return out[:at+1]
}

// AppendMoreIDs appends the JSON array of a list of ids to dst that begins as another does, whose array is text. They have
// one or more ids in common; behind those come had in the other list, and more in this one.
func AppendMoreIDs(dst, text []byte, had, more []uint32) []byte {
	end := len(text) - len("]") // of what they have in common
	for _, id := range had {
		end -= len(",") + digitCount(id)
	}
	dst = slices.Grow(dst, end+idsSize(more)+idsSlack)
	dst = append(dst, text[:end]...)
	if len(more) == 0 {
		return append(dst, ']')
	}
	bracket := len(dst)
	dst = AppendIDs(dst, more)
	dst[bracket] = ','
	return dst
}

// digits8 returns the eight decimal digits of v, below 10^8, as text: the first digit in the lowest byte. Each step
// splits all parts of the number at once, by multiplications that stand for divisions by 100 and by 10.
func digits8(v uint32) uint64 {
	x := uint64(v/10000) | uint64(v%10000)<<32
	q := x * 10486 >> 20 & 0x0000007f0000007f
	x = q | (x-100*q)<<16
	q = x * 103 >> 10 & 0x000f000f000f000f
	return q | (x-10*q)<<8 | ones*'0'
}

// idsSize returns how many bytes ids take as a JSON array.
func idsSize(ids []uint32) int {
	n := len("[]") + max(0, len(ids)-1)
	for _, id := range ids {
		n += digitCount(id)
	}
	return n
}

// digitCount returns how many decimal digits v has. The entry for v's bit length holds, in its upper half, the digits
// of numbers of that length and, in its lower half, what lets those that have one digit more carry into it (D. Lemire
// and K. Willets, "Computing the number of digits of an integer even faster", 2021).
func digitCount(v uint32) int {
	return int((uint64(v) + digitTable[bits.Len32(v)]) >> 32)
}

var digitTable = func() (t [33]uint64) {
	for length := range t {
		low := uint64(1) << length >> 1 // the smallest number of that length
		digits, next := uint64(1), uint64(10)
		for next <= low {
			digits++
			next *= 10
		}
		// Numbers from next on have one digit more.
		t[length] = digits<<32 + (1<<32 - min(next, 1<<32))
		if next > 1<<32-1 {
			t[length] = digits << 32
		}
	}
	return t
}()
