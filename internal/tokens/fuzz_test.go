package tokens

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// FuzzEncode: every family gives the ids of its slow twin, and a cache the same, from wherever the text was known
// before.
func FuzzEncode(f *testing.F) {
	for _, s := range scraps {
		f.Add(s, uint16(1))
	}
	f.Add("func main() {\n\tfmt.Println(\"don't 12345\")\n}\n", uint16(9))
	f.Add(strings.Repeat("a", 200)+" \n\n  x", uint16(100))
	f.Add("c"+strings.Repeat("\u0327\u0301", 40), uint16(3))
	f.Add("<s> It's <x>  1234 \u3040ア・ the <|im_end|>[INST] \xff▁", uint16(3))
	type pair struct {
		tokenizer *Tokenizer
		twin      *slow
	}
	pairs := make(map[string]pair)
	for _, family := range families() {
		pairs[family.name] = pair{family.load(f), newSlow(f, family.data)}
	}
	f.Fuzz(func(t *testing.T, text string, known uint16) {
		if len(text) > 2000 {
			return // the twins are quadratic
		}
		for name, p := range pairs {
			if got, want := p.tokenizer.Encode(nil, text), p.twin.encode(text); !slices.Equal(got, want) {
				t.Errorf("%s: %+q\n got %v\nwant %v", name, text, got, want)
			}
			long := strings.Repeat(text, 1+min(3*chunkBytes/(len(text)+1), 64))
			cache := NewCache(p.tokenizer, testCacheBytes)
			cache.Encode(nil, long[:int(known)%(len(long)+1)])
			assert.True(t, slices.Equal(cache.Encode(nil, long), p.tokenizer.Encode(nil, long)),
				"%s: %q over and over: the cache's ids differ", name, text)
		}
	})
}

// FuzzLoad: no file makes Load panic, and what loads gives ids of its own.
func FuzzLoad(f *testing.F) {
	vocab := make(map[string]uint32)
	for b, char := range byteChars {
		vocab[string(char)] = uint32(b)
	}
	vocab["ab"] = 256
	small, err := json.Marshal(map[string]any{
		"added_tokens":  []any{map[string]any{"id": 257, "content": "<x>", "special": true, "lstrip": true}},
		"pre_tokenizer": map[string]any{"type": "ByteLevel"},
		"model":         map[string]any{"type": "BPE", "vocab": vocab, "merges": []any{[]string{"a", "b"}}},
	})
	require.NoError(f, err)
	f.Add(small)
	f.Add([]byte(`{}`))
	f.Add([]byte(`{"pre_tokenizer":{"type":"Sequence","pretokenizers":[]},"model":{"merges":["a b"]}}`))
	pieces := vocabulary{tokens: map[string]uint32{"▁": 256, "a": 257, "▁a": 258}, merges: [][2]string{{"▁", "a"}}, fallback: true}
	for b := range uint32(256) {
		pieces.tokens[fmt.Sprintf("<0x%02X>", b)] = b
	}
	sentence := pieces.file([]fileAdded{{ID: 259, Content: "<s>", Special: true, Normalized: true}}, `null`,
		`{"type":"Metaspace","replacement":"▁","prepend_scheme":"first","split":false}`, `null`, `null`)
	f.Add(sentence)
	mustLoad(f, small)
	mustLoad(f, sentence)
	f.Fuzz(func(t *testing.T, data []byte) {
		tok, err := LoadWith(data, data)
		if err != nil {
			return
		}
		for _, id := range tok.Encode(nil, "It's 12 o'clock.\n") {
			assert.Less(t, int(id), tok.VocabSize(), "id %d of a vocabulary of", id)
		}
	})
}
