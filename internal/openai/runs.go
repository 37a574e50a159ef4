package openai

import (
	"encoding/binary"
	"math/bits"
)

const (
	ones  = 0x0101010101010101
	highs = 0x8080808080808080
)

// plainRun returns the index of the first quote, backslash or control character at or after i, or len(data). wide is 0
// if all bytes before it are ASCII. It reads 32 bytes at a time while they are plain ASCII; the first other byte is in
// the next 32 bytes, or they are the last ones.
func plainRun(data []byte, i int) (end int, wide uint64) {
	for {
		i = asciiRun(data, i)
		for range 4 {
			if i+8 > len(data) {
				return lastRun(data, i, wide)
			}
			w := binary.LittleEndian.Uint64(data[i:])
			wide |= w & highs
			if hits := stops(w); hits != 0 {
				return i + bits.TrailingZeros64(hits)>>3, wide
			}
			i += 8
		}
	}
}

// stops returns high bits in w's first byte that is a quote, a backslash or a control character, and perhaps in later
// bytes; 0 without one. The borrow of a subtraction finds a zero byte in w^pattern; false alarms are only above the
// first true one.
func stops(w uint64) uint64 {
	q := w ^ ones*'"'
	b := w ^ ones*'\\'
	return ((q-ones)&^q | (b-ones)&^b | (w-ones*0x20)&^w) & highs
}

// lastRun is plainRun of less than eight bytes.
func lastRun(data []byte, i int, wide uint64) (int, uint64) {
	for ; i < len(data); i++ {
		b := data[i]
		if b < 0x20 || b == '"' || b == '\\' {
			break
		}
		wide |= uint64(b & 0x80)
	}
	return i, wide
}

// asciiRun advances i by 32 bytes while they are ASCII without a quote, a backslash and control characters. In such
// bytes no subtraction of stops borrows, so nothing need be masked.
func asciiRun(data []byte, i int) int {
	for i+32 <= len(data) {
		b := data[i : i+32 : i+32]
		hits := special(binary.LittleEndian.Uint64(b)) | special(binary.LittleEndian.Uint64(b[8:])) |
			special(binary.LittleEndian.Uint64(b[16:])) | special(binary.LittleEndian.Uint64(b[24:]))
		if hits&highs != 0 {
			break
		}
		i += 32
	}
	return i
}

// special has a high bit set if not all bytes of w are plain ASCII.
func special(w uint64) uint64 {
	return ((w ^ ones*'"') - ones) | ((w ^ ones*'\\') - ones) | (w - ones*0x20) | w
}

// integers advances from i, the start of an array's element, over unsigned integers, each directly followed by a comma.
// It returns the index of the last such comma, or i. It examines eight bytes at a time: all are digits and commas, no
// number begins with a comma, and one that begins with a zero ends with it.
func integers(data []byte, i int) int {
	end, commaBefore, zeroBefore := i, uint64(0x80), uint64(0)
	for ; i+8 <= len(data); i += 8 {
		w := binary.LittleEndian.Uint64(data[i:])
		x, y := w^ones*',', w^ones*'0'
		commas := ^((x&^highs + ones*0x7f) | x) & highs
		zeros := ^((y&^highs + ones*0x7f) | y)
		noDigits := (y&^highs + ones*(0x80-10)) | y
		begin := commas<<8 | commaBefore
		zero := begin & zeros
		if (noDigits&^commas|begin&commas|(zero<<8|zeroBefore)&^commas)&highs != 0 {
			break
		}
		if commas != 0 {
			end = i + bits.Len64(commas)>>3 - 1
		}
		commaBefore, zeroBefore = commas>>56, zero>>56
	}
	return end
}
