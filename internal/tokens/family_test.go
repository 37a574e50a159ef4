package tokens

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// family is a small tokenizer.json with the steps and added tokens of a model family, on Sim's vocabulary.
type family struct {
	name   string
	data   []byte
	prefix []uint32
	config string
}

const bos = 6000 // what a family begins a sequence with

// families makes one of each.
var families = sync.OnceValue(func() []family {
	numbered := func(from uint32, special bool, contents ...string) (all []fileAdded) {
		for i, c := range contents {
			all = append(all, fileAdded{ID: from + uint32(i), Content: c, Special: special})
		}
		return all
	}
	special := func(contents ...string) []fileAdded { return numbered(bos, true, contents...) }
	plain := func(contents ...string) []fileAdded { return numbered(6300, false, contents...) }
	begins := func(content string) string {
		return fmt.Sprintf(`{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":%[1]q,"type_id":0}},{"Sequence":{"id":"A","type_id":0}}],`+
			`"pair":[],"special_tokens":{%[1]q:{"id":%[1]q,"ids":[%[2]d],"tokens":[%[1]q]}}}`, content, bos)
	}
	byteLevel := func(splits string) string {
		return `{"type":"Sequence","pretokenizers":[` + splits +
			`,{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":false}]}`
	}
	const (
		none       = `null`
		replace    = `{"type":"Replace","pattern":{"String":" "},"content":"▁"}`
		prepend    = `{"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"▁"},` + replace + `]}`
		idle       = `{"type":"Split","pattern":{"String":" "},"behavior":"MergedWithPrevious","invert":false}`
		metaspace  = `{"type":"Metaspace","replacement":"▁","prepend_scheme":%q,"split":%t}`
		byteDecode = `{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":true,"use_regex":true}`
		pieceDecod = `{"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"▁"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"}]}`
	)
	late := special("<s>", "</s>")
	for i := range late {
		late[i].Normalized = true
	}
	phi := append(special("<s>", "</s>", "<|im_end|>"), fileAdded{ID: 6230, Content: "<x>", Special: true, RStrip: true},
		fileAdded{ID: 6231, Content: "[INST]", LStrip: true, RStrip: true}, fileAdded{ID: 6232, Content: "the", SingleWord: true},
		fileAdded{ID: 6233, Content: "x", SingleWord: true, LStrip: true}, fileAdded{ID: 6234, Content: "  "})
	strips := append(special("<s>", "</s>", "<|im_end|>"), fileAdded{ID: 6230, Content: "<x>", RStrip: true},
		fileAdded{ID: 6231, Content: "the", RStrip: true},
		fileAdded{ID: 6232, Content: "[INST]", LStrip: true}, fileAdded{ID: 6233, Content: "  "})
	gemma := append(special("<bos>", "<eos>", "<|im_start|>", "<|im_end|>"), plain("\n", "\n\n", "\t", "▁▁", "<x>", "x<|im_")...)
	deepSeekSpecials := special("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<|im_end|>")
	joined := []string{splits("Isolated", false, cl100kSource), splits("Isolated", false, qwen2Source),
		splits("Isolated", false, qwen35Source),
		splits("Removed", true, o200kSource), splits("Isolated", false, tekkenSource),
		splits("Isolated", false, deepSeekNumbers, deepSeekEastern, deepSeekWords)}
	bytesOnly, pieces := byteVocabulary(), sentenceVocabulary(Sim(), true)
	var all []family
	add := func(name string, v vocabulary, added []fileAdded, normalizer, cut, post, decoder string, f family) {
		f.name, f.data = name, v.file(added, normalizer, cut, post, decoder)
		all = append(all, f)
	}
	llama := v3(bytesOnly)
	add("llama3", llama, special("<s>", "<|im_end|>", "<|im_start|>"), none, byteLevel(joined[0]),
		`{"type":"Sequence","processors":[{"type":"ByteLevel"},`+begins("<s>")+`]}`, byteDecode, family{prefix: []uint32{bos}})
	add("qwen3", bytesOnly, append(special("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
		plain("<x>", "[INST]", "a<|", "<|im_end|>b", "\n\n")...),
		`{"type":"NFC"}`, byteLevel(joined[1]), none, byteDecode, family{})
	add("qwen35", bytesOnly, special("<|endoftext|>", "<|im_start|>", "<|im_end|>"), `{"type":"NFC"}`, byteLevel(joined[2]), none,
		byteDecode, family{})
	add("gpt-oss", bytesOnly, special("<|start|>", "<|end|>", "<|message|>", "<|im_end|>"), none, byteLevel(joined[3]),
		begins("<|start|>"), byteDecode,
		family{prefix: []uint32{bos}})
	add("tekken", llama, special("<s>", "</s>", "[INST]", "[/INST]"), none, byteLevel(joined[4]), begins("<s>"), byteDecode,
		family{prefix: []uint32{bos}})
	add("deepseek", bytesOnly, deepSeekSpecials, `{"type":"Sequence","normalizers":[]}`, byteLevel(joined[5]),
		`{"type":"ByteLevel","add_prefix_space":true,"trim_offsets":false,"use_regex":true}`, byteDecode, family{prefix: []uint32{bos},
			config: `{"tokenizer_class":"LlamaTokenizerFast","add_bos_token":true,"bos_token":{"content":"<｜begin▁of▁sentence｜>"}}`})
	add("gemma", pieces, gemma, replace, idle, begins("<bos>"), pieceDecod, family{prefix: []uint32{bos}})
	add("llama2", pieces, special("<s>", "</s>"), prepend, none, begins("<s>"), pieceDecod, family{prefix: []uint32{bos}})
	add("llama2-late", sentenceVocabulary(Sim(), false), late, prepend, none, begins("<s>"), pieceDecod, family{prefix: []uint32{bos}})
	for _, scheme := range []string{"first", "always", "never"} {
		for _, split := range []bool{false, true} {
			add(fmt.Sprintf("metaspace-%s-%t", scheme, split), pieces, special("<s>", "</s>", "[INST]"), none, fmt.Sprintf(metaspace, scheme, split),
				begins("<s>"), pieceDecod, family{prefix: []uint32{bos}})
		}
	}
	add("phi-bytes", bytesOnly, phi, none, byteLevel(joined[0]), none, byteDecode, family{})
	add("phi-pieces", pieces, phi, replace, none, none, pieceDecod, family{})
	add("strips-bytes", bytesOnly, strips, none, byteLevel(joined[0]), none, byteDecode, family{})
	add("strips-pieces", pieces, strips, replace, none, none, pieceDecod, family{})
	add("late-metaspace", pieces, late, none, fmt.Sprintf(metaspace, "first", false), begins("<s>"), pieceDecod, family{prefix: []uint32{bos}})
	return all
})

// vocabulary is a model without its steps.
type vocabulary struct {
	tokens       map[string]uint32
	merges       [][2]string
	fallback     bool
	ignoreMerges bool
}

func (v vocabulary) file(added []fileAdded, normalizer, cut, post, decoder string) []byte {
	tokens := maps.Clone(v.tokens)
	for i := range added { // as in real files, an added token that the model has too keeps its id
		if id, ok := tokens[added[i].Content]; ok {
			added[i].ID = id
		}
	}
	data, err := json.Marshal(map[string]any{
		"added_tokens": added, "normalizer": json.RawMessage(normalizer), "pre_tokenizer": json.RawMessage(cut),
		"post_processor": json.RawMessage(post), "decoder": json.RawMessage(decoder),
		"model": map[string]any{"type": "BPE", "byte_fallback": v.fallback, "ignore_merges": v.ignoreMerges, "fuse_unk": v.fallback,
			"vocab": tokens, "merges": v.merges},
	})
	if err != nil {
		panic(err)
	}
	return data
}

// byteVocabulary is Sim's, without its special tokens.
func byteVocabulary() vocabulary {
	var f struct{ Model fileModel }
	if err := json.Unmarshal(simJSON, &f); err != nil {
		panic(err)
	}
	return vocabulary{tokens: f.Model.Vocab, merges: f.Model.Merges}
}

// v3 adds words that no merge makes, and ignores merges for them.
func v3(v vocabulary) vocabulary {
	tokens := map[string]uint32{"Return": 4100, "ĠABCABC": 4101, "æĸĩåŃĹ": 4102, "ĠĠĠĠĠĠĠ": 4103}
	maps.Copy(tokens, v.tokens)
	v.tokens, v.ignoreMerges = tokens, true
	return v
}

// sentenceVocabulary is a byte-level tokenizer's as SentencePiece would write it, from characters, with bytes to fall
// back on; and a few tokens that have what Sim lacks: Chinese, accents, runs of spaces and line breaks, one across a
// space, and, if forging is set, a special one and one of a byte that are also made by merges.
func sentenceVocabulary(of *Tokenizer, forging bool) vocabulary {
	v := vocabulary{tokens: make(map[string]uint32), fallback: true}
	put := func(token string) {
		if _, ok := v.tokens[token]; !ok {
			v.tokens[token] = uint32(len(v.tokens))
		}
	}
	for b := range 256 {
		put(fmt.Sprintf("<0x%02X>", b))
	}
	for _, char := range " abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,;:!?'\"()[]{}<>|/\\-_=+*&^%$#@~`\n中文字かé한😀\u0301ß" {
		put(strings.ReplaceAll(string(char), " ", "▁"))
	}
	merge := func(left, right string) {
		_, okLeft := v.tokens[left]
		_, okRight := v.tokens[right]
		if okLeft && okRight {
			v.merges = append(v.merges, [2]string{left, right})
			put(left + right)
		}
	}
	name := func(id uint32) string { return strings.ReplaceAll(string(of.bytes[id]), " ", "▁") }
	for _, b := range of.bytes {
		if utf8.Valid(b) && utf8.RuneCount(b) == 1 {
			put(strings.ReplaceAll(string(b), " ", "▁"))
		}
	}
	for _, pair := range [][2]string{{"文", "字"}, {"中", "文字"}, {"中", "文"}, {"e", "\u0301"}, {"\n", "\n"}, {"▁", "▁"},
		{"▁▁", "▁▁"}} {
		merge(pair[0], pair[1])
	}
	if forging {
		merge("<", "s")
		merge("<s", ">")
		for i := 1; i < len("<0x0A>"); i++ {
			merge("<0x0A>"[:i], "<0x0A>"[i:i+1])
		}
	}
	pairs := slices.DeleteFunc(slices.Clone(of.merges.pairs), func(p mergedPair) bool { return p.rank == noRank })
	slices.SortFunc(pairs, func(a, b mergedPair) int { return int(a.rank) - int(b.rank) })
	for _, p := range pairs {
		if left, right := name(p.left), name(p.right); utf8.ValidString(left) && utf8.ValidString(right) {
			merge(left, right)
		}
	}
	merge("!", "▁")
	merge("!▁", "▁▁")
	merge("😀", "▁a")
	return v
}

func (f family) load(tb testing.TB) *Tokenizer {
	tb.Helper()
	config := []byte(f.config)
	if f.config == "" {
		config = nil
	}
	tok, err := LoadWith(f.data, config)
	require.NoError(tb, err, f.name)
	return tok
}

// TestFamiliesEqualTheirTwins compares every family with its slow twin, directly and through a cache that knows a part.
func TestFamiliesEqualTheirTwins(t *testing.T) {
	for _, f := range families() {
		t.Run(f.name, func(t *testing.T) {
			tok, twin, rng := f.load(t), newSlow(t, f.data), seeded(t, 29)
			cache, forgetful := NewCache(tok, 1<<20), NewCache(tok, 0)
			assert.True(t, slices.Equal(tok.Prefix(), f.prefix) && tok.Suffix() == nil,
				"Prefix() = %v, Suffix() = %v, want %v and none", tok.Prefix(), tok.Suffix(), f.prefix)
			for range 800 {
				s := randomText(rng, 14)
				want := twin.encode(s)
				require.True(t, slices.Equal(tok.Encode(nil, s), want), "%+q, want %v", s, want)
				if f.name == "gemma" && !strings.Contains(s, "<0x0A>") {
					require.Equal(t, strings.ReplaceAll(s, spaceMark, " "), string(tok.Decode(nil, want)))
				}
				require.True(t, slices.Equal(forgetful.Encode(nil, s), want), "by its seams: %+q, want %v", s, want)
				require.LessOrEqual(t, tok.MinTokens(len(s)), len(want), "%+q tokens, at least", s)
			}
			for range 4 {
				s := randomText(rng, 900)
				long := s + randomText(rng, 900)
				cache.Encode(nil, s)
				require.True(t, slices.Equal(cache.Encode(nil, long), twin.encode(long)), "through a cache: %+q", long)
			}
		})
	}
}

// TestSentenceRefuses: what SentencePiece's family may have in other files is refused by the name of its field.
func TestSentenceRefuses(t *testing.T) {
	const (
		replace = `"normalizer":{"type":"Replace","pattern":{"String":" "},"content":"▁"}`
		idle    = `"pre_tokenizer":{"type":"Split","pattern":{"String":" "},"behavior":"MergedWithPrevious","invert":false}`
	)
	metaspace := func(fields string) []string {
		return []string{replace, `"normalizer":null`, idle, `"pre_tokenizer":{"type":"Metaspace","replacement":"▁"` + fields + `}`}
	}
	addToken := func(content, flags string) []string {
		return []string{`"added_tokens":[`, fmt.Sprintf(`"added_tokens":[{"id":%d,"content":%q,%s},`,
			sentenceVocabulary(Sim(), true).tokens[content], content, flags)}
	}
	all := families()
	gemma := string(all[slices.IndexFunc(all, func(f family) bool { return f.name == "gemma" })].data)
	for _, c := range []struct {
		field string
		parts []string
	}{
		{"", nil},
		{"", metaspace(``)},
		{"", metaspace(`,"prepend_scheme":"never","add_prefix_space":false`)},
		{"normalizer.type \"Replace\"", []string{`"content":"▁"},"post`, `"content":"_"},"post`}},
		{"normalizer.type \"NFKC\"", []string{replace, `"normalizer":{"type":"NFKC"}`}},
		{"normalizer.type \"Prepend\"", []string{replace, `"normalizer":{"type":"Prepend","prepend":"▁"}`}},
		{"pre_tokenizer is absent", []string{replace, `"normalizer":null`, idle, `"pre_tokenizer":null`}},
		{"pre_tokenizer of type \"Split\"", []string{replace, `"normalizer":null`}},
		{"pre_tokenizer of type \"Digits\"", []string{idle, `"pre_tokenizer":{"type":"Digits"}`}},
		{"pre_tokenizer of type \"Metaspace\"", []string{idle, `"pre_tokenizer":{"type":"Metaspace","replacement":"▁"}`}},
		{"prepend_scheme \"last\"", metaspace(`,"prepend_scheme":"last"`)},
		{"add_prefix_space false", metaspace(`,"add_prefix_space":false`)},
		{"model.byte_fallback", []string{`"byte_fallback":true`, `"byte_fallback":false`}},
		{"model.ignore_merges", []string{`"ignore_merges":false`, `"ignore_merges":true`}},
		{"decoder.type \"BPEDecoder\"", []string{`{"type":"Fuse"}`, `{"type":"BPEDecoder"}`}},
		{"no token for byte 0x0a", []string{`"\u003c0x0A\u003e":`, `"\u003c0x0a\u003e":`}},
		{"model.merges[0] has the token of a byte",
			[]string{`"merges":[`, `"merges":[["\u003c0x0A\u003e","a"],`, `"vocab":{`, `"vocab":{"\u003c0x0A\u003ea":5000,`}},
		{"model.merges[0] has an empty token", []string{`"merges":[`, `"merges":[["","a"],`, `"vocab":{`, `"vocab":{"":5000,`}},
		{"model.merges[0] names", []string{`"merges":[`, `"merges":[["qq","zz"],`}},
		{"special token \"é\"", addToken("é", `"special":true`)},
		{"special token \"<s>\" is also made by merges", addToken("<s>", `"special":true,"single_word":true`)},
		{"lstrip or rstrip", []string{`"added_tokens":[`, `"added_tokens":[{"id":5001,"content":"<y>","normalized":true,"rstrip":true},`}},
	} {
		_, err := Load(replaced(t, gemma, c.parts...))
		if c.field == "" {
			assert.NoError(t, err, c.parts)
			continue
		}
		assert.ErrorIs(t, err, ErrUnsupported, c.field)
		assert.ErrorContains(t, err, c.field)
	}
}

// TestPlainTextGivesNoSpecialToken: merges that make one are left out, where SentencePiece's vocabularies have them.
func TestPlainTextGivesNoSpecialToken(t *testing.T) {
	for _, f := range families() {
		tok := f.load(t)
		var with file
		require.NoError(t, json.Unmarshal(f.data, &with))
		for _, s := range []string{"<s>", "a<s>b", "< s><s >", "<|im_end|><bos>[INST]"} {
			ids := tok.EncodeText(nil, s)
			for _, a := range with.AddedTokens {
				assert.False(t, a.Special && slices.Contains(ids, a.ID), "%s: EncodeText(%q) has the special token %d", f.name, s, a.ID)
			}
		}
	}
}
