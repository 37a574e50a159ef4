package tokens

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"go/build"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// shared is a folder of reference data that may lie beside the checkout. The
// tests that read it are skipped where it is absent.
const shared = "../../../shared/vectors"

// openShared opens a gzipped file of reference data, or skips the test.
func openShared(tb testing.TB, name string) *json.Decoder {
	tb.Helper()
	f, err := os.Open(filepath.Join(shared, name))
	if errors.Is(err, fs.ErrNotExist) {
		tb.Skipf("reads %s/%s, which is absent", shared, name)
	}
	require.NoError(tb, err)
	tb.Cleanup(func() { f.Close() })
	if filepath.Ext(name) != ".gz" {
		return json.NewDecoder(f)
	}
	z, err := gzip.NewReader(f)
	require.NoError(tb, err)
	return json.NewDecoder(z)
}

// decodeLines reads JSON values to the end.
func decodeLines[T any](tb testing.TB, d *json.Decoder) []T {
	tb.Helper()
	var all []T
	for d.More() {
		var v T
		require.NoError(tb, d.Decode(&v))
		all = append(all, v)
	}
	return all
}

// qwen loads Qwen2.5's tokenizer, or skips the test.
func qwen(tb testing.TB) *Tokenizer {
	tb.Helper()
	var raw json.RawMessage
	require.NoError(tb, openShared(tb, "tokenizer/qwen2.5/tokenizer.json.gz").Decode(&raw))
	return mustLoad(tb, raw)
}

func mustLoad(tb testing.TB, data []byte) *Tokenizer {
	tb.Helper()
	t, err := Load(data)
	require.NoError(tb, err)
	return t
}

// edited returns Sim's file with parts replaced.
func edited(tb testing.TB, parts ...string) []byte {
	tb.Helper()
	return replaced(tb, string(simJSON), parts...)
}

// replaced returns a file with parts replaced, old and new in turn. Each old part must be there.
func replaced(tb testing.TB, file string, parts ...string) []byte {
	tb.Helper()
	for i := 0; i < len(parts); i += 2 {
		require.True(tb, strings.Contains(file, parts[i]), "the file has no %q", parts[i])
		file = strings.Replace(file, parts[i], parts[i+1], 1)
	}
	return []byte(file)
}

// quoted returns s as it stands in Sim's file.
func quoted(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(s) + `"`
}

// oneSplit is Sim's Split as it stands in its file.
var oneSplit = splits("Isolated", false, qwen2Source)

// splits returns Splits by the given patterns as they stand in a file.
func splits(behavior string, invert bool, sources ...string) string {
	var all []string
	for _, source := range sources {
		all = append(all, fmt.Sprintf(`{"type":"Split","pattern":{"Regex":%s},"behavior":%q,"invert":%t}`, quoted(source), behavior, invert))
	}
	return strings.Join(all, ",")
}

// patternName names a known pattern.
func patternName(p pattern) string {
	return []string{"gpt2", "cl100k", "qwen2", "qwen35", "o200k", "tekken", "deepseek"}[p]
}

// variants returns Sim with each known pattern, with and without NFC.
func variants(tb testing.TB) map[string]*Tokenizer {
	tb.Helper()
	all := make(map[string]*Tokenizer)
	for _, k := range known {
		name, cuts := patternName(k.pattern), splits("Isolated", false, k.sources...)
		all[name] = mustLoad(tb, edited(tb, oneSplit, cuts))
		all[name+"+nfc"] = mustLoad(tb, edited(tb, oneSplit, cuts, `"normalizer":null`, `"normalizer":{"type":"NFC"}`))
	}
	return all
}

// scraps are what random texts are put together from: whatever has a branch of
// its own in a pattern, in normalisation or among the added tokens.
var scraps = []string{
	" ", " ", " ", "  ", "\n", "\r\n", "\t", "\v", "\u00a0", "\u3000", "\u2028", "\u0085",
	"a", "b", "the", "Return", "ABC", "aB", "x", "é", "É", "ß", "ſ", "ǅ", "中", "文字", "か", "ª", "ʰ", "한", "ᄒ", "ᅡ", "ᆫ",
	"\u0301", "\u0327", "\u034f", "\u0958", "\u093c", "\u0903", "\u212b", "\u212a", "\u037e", "\u1fef", "e\u0301", "e\u030d\u0301",
	"\U00016d67", "\U00016d63",
	"1", "23", "4567", "²", "½", "Ⅷ", "٣", "𝟘",
	"'", "'s", "'S", "'ll", "'RE", "'ve", "'d", "'m", "'ſ", "’s",
	".", ",", "//", "/", "-", "--", "(", ");", "{", "!", "。", "，", "😀", "👩‍👩‍👧", "€", "\u200b", "\x00", "\ufffd",
	"ア・", "゛", "\u3040", "龥龦", "〇", "\u00ad", "\u0378", ";x", "#Y", "$é", "▁", "▁▁", "[INST]", "<s>", "<x>", "<0x0A>",
	"𐐀", "𐐨", "𠀀", "\U0001e900", "\xff", "\xc3", "\xe4\xb8", "\xf0\x9f",
	"<", "<|", "<|im_end|>", "<|im_start|>", "<|endoftext|>", "<|im_", "|>",
}

// randomText draws up to n scraps.
func randomText(rng *rand.Rand, n int) string {
	var b strings.Builder
	for range rng.IntN(n + 1) {
		b.WriteString(scraps[rng.IntN(len(scraps))])
	}
	return b.String()
}

// seeded returns a random source, and prints its seed if the test fails.
func seeded(tb testing.TB, seed uint64) *rand.Rand {
	tb.Helper()
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("seed %d", seed)
		}
	})
	return rand.New(rand.NewPCG(seed, 0))
}

// prose returns n bytes of the English book that comes with Go's source.
func prose(tb testing.TB, n int) string {
	tb.Helper()
	path := filepath.Join(build.Default.GOROOT, "src/testdata/Isaac.Newton-Opticks.txt")
	text, err := os.ReadFile(path)
	require.NoError(tb, err, "the Go distribution's own source is needed")
	return string(text[len(text)-n:])
}
