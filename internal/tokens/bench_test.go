package tokens

import (
	"fmt"
	"strings"
	"testing"
)

// BenchmarkTokenize encodes 400 kB of English prose. ns/op is for the whole
// text into a slice that has room. cold knows no piece that takes merging
// beforehand; warm knows pieces, as a process that has served similar text;
// seen is a Cache that has had this very text, grown one that has had the
// first nine tenths of it.
func BenchmarkTokenize(b *testing.B) {
	const size = 400_000
	text := prose(b, size)
	run := func(b *testing.B, t *Tokenizer) {
		ids := t.Encode(nil, text)
		bench := func(name string, before func(), encode func([]uint32, string) []uint32) {
			b.Run(name, func(b *testing.B) {
				b.SetBytes(size)
				b.ReportAllocs()
				for b.Loop() {
					b.StopTimer()
					before()
					b.StartTimer()
					ids = encode(ids[:0], text)
				}
				b.ReportMetric(float64(len(ids)), "tokens/op")
			})
		}
		var cache *Cache
		bench("cold", func() { t.pieces = new(pieceCache) }, t.Encode)
		bench("warm", func() {}, t.Encode)
		encode := func(dst []uint32, text string) []uint32 { return cache.Encode(dst, text) }
		bench("cold-cache", func() { t.pieces = new(pieceCache); cache = NewCache(t, testCacheBytes) }, encode)
		bench("grown", func() { cache = NewCache(t, testCacheBytes); cache.Encode(ids[:0], text[:size*9/10]) }, encode)
		bench("seen", func() {}, encode)
	}
	b.Run("bytes=400k", func(b *testing.B) { run(b, mustLoad(b, simJSON)) })
	b.Run("bytes=400k/model=qwen2.5", func(b *testing.B) { run(b, qwen(b)) })
}

// BenchmarkHostile encodes text made to be slow, 100 kB of it.
func BenchmarkHostile(b *testing.B) {
	t := mustLoad(b, edited(b, `"normalizer":null`, `"normalizer":{"type":"NFC"}`))
	rng := seeded(b, 1)
	letters := func(length int) string {
		var s strings.Builder
		for s.Len() < 100_000 {
			for range length {
				s.WriteByte(byte('a' + rng.IntN(26)))
			}
			s.WriteByte(' ')
		}
		return s.String()
	}
	for name, text := range map[string]string{
		"one-letter":       strings.Repeat("a", 100_000),
		"letters=8":        letters(8),
		"letters=47":       letters(47),
		"letters=100":      letters(100),
		"letters=100000":   letters(100_000),
		"less-than":        strings.Repeat("<", 100_000),
		"half-markers":     strings.Repeat("<|im_end|", 11_111),
		"combining-marks":  strings.Repeat("\u0301\u0327", 25_000),
		"blank-lines":      strings.Repeat("\n", 100_000),
		"chinese":          strings.Repeat("中文字", 11_111),
		"markers-for-real": strings.Repeat("<|im_end|>", 10_000),
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			ids := t.Encode(nil, text)
			for b.Loop() {
				ids = t.Encode(ids[:0], text)
			}
		})
	}
}

// BenchmarkHashChain hashes a prompt's blocks of 16 into sequence hashes; ns/op
// is for the whole prompt.
func BenchmarkHashChain(b *testing.B) {
	for _, n := range []int{8192} {
		b.Run(fmt.Sprintf("tokens=%d", n), func(b *testing.B) {
			ids := make([]uint32, n)
			for i := range ids {
				ids[i] = uint32(i * 7919)
			}
			hashes := make([]uint64, 0, n/16)
			b.ReportAllocs()
			for b.Loop() {
				hashes = SequenceHashes(hashes[:0], ids, 16, hashSeed)
			}
		})
	}
}

// BenchmarkLoad reads Sim's tokenizer.json.
func BenchmarkLoad(b *testing.B) {
	for b.Loop() {
		mustLoad(b, simJSON)
	}
}
