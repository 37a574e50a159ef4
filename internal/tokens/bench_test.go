package tokens

import (
	"fmt"
	"go/build"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// source returns n bytes of Go's own source.
func source(tb testing.TB, n int) string {
	tb.Helper()
	var text strings.Builder
	for _, name := range []string{"net/http/server.go", "net/http/transport.go", "runtime/proc.go", "go/types/expr.go", "runtime/mgc.go"} {
		code, err := os.ReadFile(filepath.Join(build.Default.GOROOT, "src", name))
		require.NoError(tb, err, "the Go distribution's own source is needed")
		text.Write(code)
	}
	return text.String()[:n]
}

// chinese returns a long text of Chinese, or skips the test.
func chinese(tb testing.TB) string {
	tb.Helper()
	for _, v := range decodeLines[struct{ Text string }](tb, openShared(tb, "tokenizer/qwen2.5/encode_long.jsonl.gz")) {
		if strings.Count(v.Text, "的") > 100 {
			return v.Text
		}
	}
	tb.Fatal("no Chinese among the long texts")
	return ""
}

// benchmarked are tokenizers by name: Sim's vocabulary of 4,096, and Qwen's of 151,643, byte-level and as
// SentencePiece's families would have it.
var benchmarked = map[string]func(testing.TB) *Tokenizer{
	"sim":     func(tb testing.TB) *Tokenizer { return mustLoad(tb, simJSON) },
	"qwen2.5": qwen,
	"deepseek": func(tb testing.TB) *Tokenizer {
		t := qwen(tb)
		t.nfc, t.pattern = false, deepSeek
		return t
	},
	"gpt-oss": func(tb testing.TB) *Tokenizer {
		t := qwen(tb)
		t.nfc, t.pattern = false, o200k
		return t
	},
	"gemma": func(tb testing.TB) *Tokenizer {
		return mustLoad(tb, sentenceVocabulary(qwen(tb), false).file([]fileAdded{
			{ID: 200_000, Content: "<|im_start|>", Special: true}, {ID: 200_001, Content: "<|im_end|>", Special: true},
			{ID: 200_002, Content: "\n"}, {ID: 200_003, Content: "\n\n"}, {ID: 200_004, Content: "\t"}, {ID: 200_005, Content: "▁▁"},
		}, `{"type":"Replace","pattern":{"String":" "},"content":"▁"}`, `null`, `null`, `null`))
	},
}

// BenchmarkEncode encodes a text that the tokenizer has not seen as a whole, but whose pieces it has, as a process that
// has served similar text.
func BenchmarkEncode(b *testing.B) {
	for kind, text := range map[string]func(testing.TB) string{
		"code":    func(tb testing.TB) string { return source(tb, 400_000) },
		"prose":   func(tb testing.TB) string { return prose(tb, 400_000) },
		"chinese": chinese,
	} {
		for name, load := range benchmarked {
			b.Run(kind+"/"+name, func(b *testing.B) {
				t, text := load(b), text(b)
				ids := t.Encode(nil, text)
				b.SetBytes(int64(len(text)))
				b.ReportAllocs()
				for b.Loop() {
					ids = t.Encode(ids[:0], text)
				}
				b.ReportMetric(float64(len(ids)), "tokens/op")
			})
		}
	}
}

// conversation renders messages of some 2 kB, prose and code in turn, until they are size bytes.
func conversation(tb testing.TB, size int) string {
	var text strings.Builder
	words, code := prose(tb, size), source(tb, size)
	for from := 0; text.Len() < size; from += 2000 {
		fmt.Fprintf(&text, "<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n%s<|im_end|>\n", words[from:from+2000], code[from:from+2000])
	}
	return text.String()
}

// BenchmarkConversation encodes a rendered conversation of about 100,000 tokens through a Cache. cold: it is new, its
// pieces are not. grown: all but its last two messages, 4 kB, was encoded before. seen: all of it was.
func BenchmarkConversation(b *testing.B) {
	const size = 400_000
	text := conversation(b, size)
	before := text[:strings.LastIndex(text[:len(text)-3000], "<|im_start|>user")]
	for name, load := range benchmarked {
		b.Run("tokenizer="+name, func(b *testing.B) {
			t := load(b)
			ids := t.Encode(nil, text)
			var cache *Cache
			bench := func(name string, prepare func()) {
				b.Run(name, func(b *testing.B) {
					b.SetBytes(int64(len(text)))
					b.ReportAllocs()
					for b.Loop() {
						b.StopTimer()
						prepare()
						b.StartTimer()
						ids = cache.Encode(ids[:0], text)
					}
					b.ReportMetric(float64(len(ids)), "tokens/op")
				})
			}
			bench("cold", func() { cache = NewCache(t, testCacheBytes) })
			bench("grown", func() { cache = NewCache(t, testCacheBytes); ids = cache.Encode(ids[:0], before) })
			bench("seen", func() {})
		})
	}
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

// BenchmarkHashChain hashes a prompt's blocks of 16 into sequence hashes; ns/op is for the whole prompt.
func BenchmarkHashChain(b *testing.B) {
	b.Run("tokens=8192", func(b *testing.B) {
		ids, hashes := make([]uint32, 8192), make([]uint64, 0, 8192/16)
		for i := range ids {
			ids[i] = uint32(i * 7919)
		}
		b.ReportAllocs()
		for b.Loop() {
			hashes = SequenceHashes(hashes[:0], ids, 16, hashSeed)
		}
	})
}
