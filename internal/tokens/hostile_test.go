package tokens

import (
	"math"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// hostileTexts are made to be slow: each has a stretch without an end for some part of the work.
func hostileTexts(tb testing.TB, size int) map[string]string {
	rng := seeded(tb, 41)
	var letters strings.Builder
	for letters.Len() < size {
		letters.WriteByte(byte('a' + rng.IntN(26)))
	}
	all := map[string]string{"letters": letters.String()}
	for name, unit := range map[string]string{
		"one letter": "a", "spaces": " ", "line breaks": "\n", "tabs and spaces": " \t", "digits": "7", "less-than": "<",
		"half a token": "<|im_end|",
		"two letters":  "ab", "case": "aB", "upper case, then what has none": "A中", "marks": "\u0301\u0327", "composing": "e\u0301",
		"Hangul":  "\u1112\u1161\u11ab",
		"Chinese": "中文字", "kana and points": "ア・", "emoji": "👩‍👩‍👧", "controls": "\x00\x01", "not UTF-8": "\xff",
		"apostrophes": "'", "slashes": "/\n",
		"tokens": "<s>", "words of tokens": "the ", "spaces and tokens": "  [INST]  <x>", "across spaces": "! ", "▁": "▁",
	} {
		all[name] = strings.Repeat(unit, size/len(unit)+1) + "x"
	}
	return all
}

// TestNoTextIsQuadratic encodes hostile texts of one length and of sixteen times the length, and compares the CPU time
// of the process, which does not depend on what else the machine does. The least of several measurements counts.
func TestNoTextIsQuadratic(t *testing.T) {
	const size, times, limit = 2 << 10, 16, 64 // linear takes 16 times as long, quadratic 256 times
	short, long := hostileTexts(t, size), hostileTexts(t, times*size)
	var ids []uint32
	took := func(tok *Tokenizer, text string) time.Duration {
		began := cpuTime(t)
		ids = NewCache(tok, 1<<20).encode(ids[:0], text, true)
		ids = tok.EncodeText(ids[:0], text)
		return cpuTime(t) - began
	}
	for _, f := range families() {
		switch f.name {
		case "llama3", "qwen3", "gpt-oss", "deepseek", "gemma", "llama2-late", "phi-bytes", "strips-pieces":
		default:
			continue // each has nothing that these have not
		}
		tok := f.load(t)
		for name := range short {
			leastShort, leastLong := time.Duration(math.MaxInt64), time.Duration(math.MaxInt64)
			for try := 0; try < 2 || leastLong > limit*leastShort && try < 20 && leastLong < time.Second; try++ {
				leastShort = min(leastShort, took(tok, short[name]))
				leastLong = min(leastLong, took(tok, long[name]))
			}
			assert.LessOrEqual(t, leastLong, limit*leastShort,
				"%s: %s: %v for %d bytes for %d", f.name, name, leastShort, size, times*size)
		}
	}
}

// cpuTime is what the process has used of its processors.
func cpuTime(t testing.TB) time.Duration {
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
