package tokens

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/text/unicode/norm"
)

func TestSim(t *testing.T) {
	tok := Sim()
	assert.Equal(t, 4096, tok.VocabSize())
	for name, want := range map[string]uint32{"<|endoftext|>": 4093, "<|im_start|>": 4094, "<|im_end|>": EOS(), "!": 0, "\x00": 188} {
		got, ok := tok.ID(name)
		assert.True(t, ok && got == want, "ID(%q) = %d, %t, want %d", name, got, ok, want)
	}
	for _, absent := range []string{"", "Ġthe", "no such token", strings.Repeat("x", 100)} {
		_, ok := tok.ID(absent)
		assert.False(t, ok, absent)
	}
	id, ok := tok.ID(" the")
	assert.True(t, ok && slices.Contains(Words(), id))
}

// TestWordsAreStable generates as the simulated model does.
func TestWordsAreStable(t *testing.T) {
	tok, rng := Sim(), seeded(t, 13)
	words := Words()
	require.True(t, len(words) >= 800 && slices.IsSorted(words), "%d words, want 800 or more in rising order", len(words))
	for _, id := range words {
		text := string(tok.Decode(nil, []uint32{id}))
		assert.True(t, len(text) >= 3 && text[0] == ' ' && strings.Trim(text[1:], "abcdefghijklmnopqrstuvwxyz") == "",
			"word %d is %q", id, text)
		assert.Equal(t, []uint32{id}, tok.Encode(nil, text), text)
	}
	for range 2000 {
		before := randomText(rng, 5)
		want := tok.Encode(nil, before)
		from := len(want)
		for range 1 + rng.IntN(40) {
			want = append(want, words[rng.IntN(len(words))])
		}
		text := before + string(tok.Decode(nil, want[from:]))
		require.Equal(t, want, tok.Encode(nil, text), text)
	}
}

// TestDecodeRestores also holds that a text has no fewer tokens than MinTokens.
func TestDecodeRestores(t *testing.T) {
	for name, tok := range variants(t) {
		rng := seeded(t, 17)
		texts := []string{"", strings.Repeat(" ", 1000), strings.Repeat("\u1112\u1161\u11ab", 1000)}
		for range 1500 {
			texts = append(texts, randomText(rng, 15))
		}
		for _, s := range texts {
			want := s
			if tok.nfc {
				want = normalBetweenSpecials(tok, s)
			}
			ids := tok.Encode(nil, s)
			require.Equal(t, want, string(tok.Decode(nil, ids)), name)
			require.LessOrEqual(t, tok.MinTokens(len(s)), len(ids), "%s: %q", name, s)
			for _, id := range tok.EncodeText(nil, s) {
				require.Less(t, id, uint32(4093), "%s: EncodeText(%q) holds a special token", name, s)
			}
		}
		assert.Equal(t, "x!", string(tok.Decode([]byte("x"), []uint32{0, 1 << 31, 4096})), "ids out of range")
	}
	assert.GreaterOrEqual(t, Sim().MinTokens(320), 10)
}

// normalBetweenSpecials is composeAll of all that is not a special token.
func normalBetweenSpecials(tok *Tokenizer, s string) string {
	var b strings.Builder
	for at := 0; at < len(s); {
		m := tok.added.find(s, at, at, true)
		b.WriteString(composeAll(s[at:m.start]))
		b.WriteString(s[m.start:m.stop])
		at = m.stop
	}
	return b.String()
}

func TestNFC(t *testing.T) {
	marks := strings.Repeat("\u0327\u0301", 40)
	sorted := strings.Repeat("\u0327", 40) + strings.Repeat("\u0301", 40)
	for _, c := range []struct{ name, in, want string }{
		{"ASCII", "plain", "plain"},
		{"composes", "e\u0301", "é"},
		{"Hangul", "\u1112\u1161\u11ab", "한"},
		{"composition exclusion", "\u0958", "\u0915\u093c"},
		{"singleton", "\u212b\u037e", "Å;"},
		{"not UTF-8", "e\u0301\xff\u0301e", "é\xff\u0301e"},
		{"more marks than are stream-safe", "x" + marks + "\xff", "x" + sorted + "\xff"},
		{"the same, composing", "c" + marks, "ḉ" + sorted[2:80] + sorted[82:]},
		{"a joiner of the text's own", "\u034fe\u0301", "\u034fé"},
	} {
		assert.Equal(t, c.want, nfc(c.in), c.name)
	}
}

func TestComposeAllEqualsNorm(t *testing.T) {
	rng := seeded(t, 19)
	for range 3000 {
		s := randomText(rng, 15)
		require.Equal(t, norm.NFC.String(s), composeAll(s))
	}
}

func TestAddedTokens(t *testing.T) {
	// Beside Sim's own: a longer one with the same beginning, one that takes
	// white space along, and one that is no special token.
	tok := mustLoad(t, edited(t, `"added_tokens":[`, `"added_tokens":[`+
		`{"id":5000,"content":"<|im_end|>!!","special":true},`+
		`{"id":5001,"content":"<mask>","lstrip":true,"rstrip":true,"special":true},`+
		`{"id":5002,"content":"<tool>"},`+
		`{"id":5003,"content":"é=","normalized":true},`,
		`"normalizer":null`, `"normalizer":{"type":"Sequence","normalizers":[{"type":"NFC"}]}`))
	text := func(s string) []uint32 { return tok.plain(nil, s, form{}) }
	for _, c := range []struct {
		in          string
		want, plain []uint32
	}{
		{"<|im_end|>!", []uint32{4095, 0}, text("<|im_end|>!")},
		{"<|im_end|>!!", []uint32{5000}, text("<|im_end|>!!")},
		{"<|im_<|im_end|>", slices.Concat(text("<|im_"), []uint32{4095}), text("<|im_<|im_end|>")},
		{"a \u3000<mask>\n b", slices.Concat(text("a"), []uint32{5001}, text("b")), text("a \u3000<mask>\n b")},
		{"<tool>", []uint32{5002}, []uint32{5002}},
		{"<tool><mask> <tool>", []uint32{5002, 5001, 5002}, slices.Concat([]uint32{5002}, text("<mask> "), []uint32{5002})},
		{"e\u0301=x", slices.Concat([]uint32{5003}, text("x")), slices.Concat([]uint32{5003}, text("x"))},
	} {
		assert.Equal(t, c.want, tok.Encode(nil, c.in), c.in)
		assert.Equal(t, c.plain, tok.EncodeText(nil, c.in), c.in)
	}
	assert.Zero(t, tok.MinTokens(1<<20), "a token takes any white space")
	assert.Equal(t, "<|im_end|>!!<tool>", string(tok.Decode(nil, []uint32{5000, 5002, 4999})))
}

func TestIgnoreMerges(t *testing.T) {
	// A word that no merge makes is one token only where merges are ignored.
	word := []string{`"vocab":{`, `"vocab":{"qxzqxz":5000,`}
	merged := mustLoad(t, edited(t, word...))
	ignoring := mustLoad(t, edited(t, append(word, `"ignore_merges":false`, `"ignore_merges":true`)...))
	assert.Equal(t, []uint32{5000}, ignoring.Encode(nil, "qxzqxz"))
	assert.Equal(t, Sim().Encode(nil, "qxzqxz"), merged.Encode(nil, "qxzqxz"))
}

func TestLoadRefuses(t *testing.T) {
	byteLevel := `{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":false}]}`
	for _, c := range []struct{ name, old, new string }{
		{"model.type", `"type":"BPE"`, `"type":"Unigram"`},
		{"model.dropout", `"dropout":null`, `"dropout":0.1`},
		{"continuing_subword_prefix", `"continuing_subword_prefix":""`, `"continuing_subword_prefix":"##"`},
		{"end_of_word_suffix", `"end_of_word_suffix":""`, `"end_of_word_suffix":"</w>"`},
		{"model.byte_fallback", `"byte_fallback":false`, `"byte_fallback":true`},
		{"no token for byte 0x21", `"!":0,`, ``},
		{"model.merges[0]", `"merges":[`, `"merges":["no! such!",`},
		{"two tokens with id 1", `"!":0`, `"!":1`},
		{"above", `"vocab":{`, `"vocab":{"x!x":4000000000,`},
		{"normalizer.type", `"normalizer":null`, `"normalizer":{"type":"NFKC"}`},
		{"decoder.type", `"decoder":{"type":"ByteLevel"`, `"decoder":{"type":"WordPiece"`},
		{"Split pattern", quoted(qwen2Source), quoted(qwen2Source + "|x")},
		{"is not a Split by a regular expression", `"Regex":`, `"String":`},
		{"behavior", `"behavior":"Isolated"`, `"behavior":"MergedWithNext"`},
		{"behavior", `"invert":false`, `"invert":true`},
		{"pre_tokenizer", byteLevel, `{"type":"Whitespace"}]}`},
		{"add_prefix_space", byteLevel, strings.Replace(byteLevel, `space":false`, `space":true`, 1)},
		{"use_regex", byteLevel, strings.Replace(byteLevel, `regex":false`, `regex":true`, 1)},
		{"pre_tokenizer", `"pretokenizers":[`, `"pretokenizers":[{"type":"Digits"},`},
		{"pre_tokenizer is absent", `"pre_tokenizer":`, `"other":`},
		{"content", `"content":"<|endoftext|>"`, `"content":""`},
		{"taken by another", `"id":4093`, `"id":0`},
		{"in model.vocab", `"content":"<|endoftext|>"`, `"content":"#"`},
		{"also a single byte", `"id":4093,"content":"<|endoftext|>"`, `"id":0,"content":"!"`},
		{"also made by merges", `"id":4093,"content":"<|endoftext|>"`, `"id":` + firstMerge(t)},
	} {
		_, err := Load(edited(t, c.old, c.new))
		assert.ErrorIs(t, err, ErrUnsupported, c.name)
		assert.ErrorContains(t, err, c.name)
	}
	for _, c := range []struct{ old, new string }{
		{`"merges":[`, `"merges":["a b c",`},
		{`"merges":[`, `"merges":["ab",`},
		{`"vocab":{`, `"vocab":{"x":-1,`},
		{`{"version"`, `{{`},
	} {
		_, err := Load(edited(t, c.old, c.new))
		assert.Error(t, err, "%s for %s", c.new, c.old)
	}
	_, err := Load([]byte(`{"pre_tokenizer":{"type":"ByteLevel"},"model":{"type":"BPE","merges":[["a"]]}}`))
	assert.Error(t, err, "a merge of one token")
	_, err = Load([]byte(`{}`))
	assert.ErrorIs(t, err, ErrUnsupported)
}

// firstMerge returns the id and content of the first token that Sim merges.
func firstMerge(t *testing.T) string {
	id := Sim().merges.joined[0]
	name, err := json.Marshal(inByteChars(string(Sim().bytes[id])))
	require.NoError(t, err)
	return fmt.Sprintf(`%d,"content":%s`, id, name)
}

func TestLoadAccepts(t *testing.T) {
	want := Sim().Encode(nil, "it's 12345,\n\n  ok")
	for _, parts := range [][]string{
		{`"behavior":"Isolated","invert":false`, `"behavior":"Removed","invert":true`},
		{quoted(qwen2Source), quoted(strings.Replace(qwen2Source, contractions, `'(?i:[sdmt]|ll|ve|re)`, 1))},
		{`"post_processor":null`, `"post_processor":{"type":"TemplateProcessing","single":[{"Sequence":{"id":"A","type_id":0}}]}`},
		{`"normalizer":null`, `"normalizer":{"type":"Sequence","normalizers":[]}`},
		{`"dropout":null`, `"dropout":0.0`},
	} {
		assert.Equal(t, want, mustLoad(t, edited(t, parts...)).Encode(nil, "it's 12345,\n\n  ok"), parts[1])
	}
}

func TestNothingIsAllocated(t *testing.T) {
	tok, cache, text := Sim(), NewCache(Sim(), testCacheBytes), prose(t, 100_000)
	ids, hashes := cache.Encode(nil, text), make([]uint64, 0, 100_000)
	for name, run := range map[string]func(){
		"encoding":    func() { ids = tok.Encode(ids[:0], text) },
		"seen before": func() { ids = cache.Encode(ids[:0], text) },
		"hashing":     func() { LocalHashes(hashes, ids, 16, 1); SequenceHashes(hashes, ids, 16, 1) },
	} {
		assert.Zero(t, testing.AllocsPerRun(10, run), name)
	}
}

// TestQwenExact compares with the ids that Hugging Face's own library gives for
// Qwen2.5. It reads ../../../shared and is skipped where that is absent.
func TestQwenExact(t *testing.T) {
	tok := qwen(t)
	cache := NewCache(tok, testCacheBytes)
	type vector struct {
		Text string   `json:"text"`
		IDs  []uint32 `json:"ids"`
	}
	for _, file := range []string{"encode.jsonl.gz", "encode_long.jsonl.gz"} {
		vectors := decodeLines[vector](t, openShared(t, "tokenizer/qwen2.5/"+file))
		for i, v := range vectors {
			assert.True(t, slices.Equal(tok.Encode(nil, v.Text), v.IDs), "%s line %d: %.200q", file, i+1, v.Text)
			for range 2 {
				assert.True(t, slices.Equal(cache.Encode(nil, v.Text), v.IDs), "%s line %d: the cache", file, i+1)
			}
		}
		t.Logf("%s: %d texts", file, len(vectors))
	}
	assert.Equal(t, 151665, tok.VocabSize())
}
