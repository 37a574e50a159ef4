package openai

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"slices"
	"strconv"
)

// idsSlack is how many bytes past its result AppendIDs may write.
const idsSlack = 4

// AppendIDs appends ids as a JSON array to dst.
func AppendIDs(dst []byte, ids []uint32) []byte {
	dst = slices.Grow(dst, idsSize(ids)+idsSlack)
	at := len(dst)
	out := dst[:cap(dst)]
	out[at] = '['
	at++
	for _, id := range ids {
		switch {
		case id < 1000:
			text := leading[id]
			binary.LittleEndian.PutUint32(out[at:], text&0x00ffffff)
			at += int(text >> 24)
		case id < 1000_000: // every vocabulary's
			text := leading[id/1000]
			binary.LittleEndian.PutUint32(out[at:], text)
			at += int(text >> 24)
			binary.LittleEndian.PutUint32(out[at:], following[id%1000])
			at += 3
		default:
			at = len(strconv.AppendUint(out[:at], uint64(id), 10))
		}
		out[at] = ','
		at++
	}
	if len(ids) > 0 {
		at-- // the last comma
	}
	out[at] = ']'
	return out[:at+1]
}

// EqualIDs reports whether a JSON array is that of these ids, as engines write them.
func EqualIDs(array []byte, ids []uint32) bool {
	at, before := 0, byte('[')
	var room [10]byte
	for _, id := range ids {
		if at >= len(array) || array[at] != before {
			return false
		}
		for at++; at < len(array) && array[at] == ' '; at++ {
		}
		text := strconv.AppendUint(room[:0], uint64(id), 10)
		if !bytes.HasPrefix(array[at:], text) {
			return false
		}
		at, before = at+len(text), ','
	}
	return string(array[at:]) == "]" || len(ids) == 0 && string(array) == "[]"
}

// AppendMoreIDs appends the JSON array of a list of ids to dst. It shares one or more leading ids with the list of
// text, where had follow; more follow in this one.
func AppendMoreIDs(dst, text []byte, had, more []uint32) []byte {
	end := len(text) - len("]") // of the shared ids
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

// leading and following are the numbers below 1,000 as text, the first digit in the lowest byte: without leading zeros,
// with the number of digits in the highest byte; and as three digits.
var leading, following = func() (leading, following [1000]uint32) {
	for v := range uint32(1000) {
		text := '0' + v/100 | ('0'+v/10%10)<<8 | ('0'+v%10)<<16
		n := uint32(digitCount(v))
		leading[v], following[v] = text>>(8*(3-n))|n<<24, text
	}
	return leading, following
}()

// idsSize returns how many bytes ids take as a JSON array.
func idsSize(ids []uint32) int {
	n := len("[]") + max(0, len(ids)-1)
	for _, id := range ids {
		n += digitCount(id)
	}
	return n
}

// digitCount returns the number of decimal digits of v. The entry for v's bit length has, in its upper half, the
// digits of numbers of that length. Its lower half has what makes those with one digit more carry into it (D. Lemire
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
