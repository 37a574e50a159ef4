package tokens

import (
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"
)

var fuzzed = sync.OnceValue(func() map[string]*Tokenizer {
	all := make(map[string]*Tokenizer)
	for name, source := range sources {
		for suffix, normalizer := range map[string]string{"": `null`, "+nfc": `{"type":"NFC"}`} {
			file := strings.Replace(string(simJSON), quoted(qwen2Source), quoted(source), 1)
			file = strings.Replace(file, `"normalizer":null`, `"normalizer":`+normalizer, 1)
			t, err := Load([]byte(file))
			if err != nil {
				panic(err)
			}
			all[name+suffix] = t
		}
	}
	return all
})

// FuzzEncode: the ids decode to the text, are those of the slow twins of
// cutting and merging, and come out of a cache the same, from wherever the
// text was known before.
func FuzzEncode(f *testing.F) {
	for _, s := range scraps {
		f.Add(s, uint16(1))
	}
	f.Add("func main() {\n\tfmt.Println(\"don't 12345\")\n}\n", uint16(9))
	f.Add(strings.Repeat("a", 200)+" \n\n  x", uint16(100))
	f.Add("c"+strings.Repeat("\u0327\u0301", 40), uint16(3))
	twins := make(map[string]twin)
	for name, source := range sources {
		twins[name] = newTwin(source)
	}
	f.Fuzz(func(t *testing.T, text string, known uint16) {
		for name, tok := range fuzzed() {
			ids := tok.Encode(nil, text)
			if !tok.nfc {
				if got := string(tok.Decode(nil, ids)); got != text {
					t.Errorf("%s: %q comes back as %q", name, text, got)
				}
			}
			normal := text
			if tok.nfc {
				normal = nfc(text)
			}
			var slow []uint32
			for _, p := range piecesOf(normal, twins[strings.TrimSuffix(name, "+nfc")].next) {
				slow = append(slow, slowMerge(tok.merges, p)...)
			}
			if got := tok.plain(nil, text, false); !slices.Equal(got, slow) {
				t.Errorf("%s: %q is %v, by its definition %v", name, text, got, slow)
			}
			long := strings.Repeat(text, 1+min(3*chunkBytes/(len(text)+1), 64))
			cache := NewCache(tok, testCacheBytes)
			cache.Encode(nil, long[:int(known)%(len(long)+1)])
			if !slices.Equal(cache.Encode(nil, long), tok.Encode(nil, long)) {
				t.Errorf("%s: %q over and over: the cache's ids differ", name, text)
			}
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
	if err != nil {
		f.Fatal(err)
	}
	if _, err := Load(small); err != nil {
		f.Fatal(err)
	}
	f.Add(small)
	f.Add([]byte(`{}`))
	f.Add([]byte(`{"pre_tokenizer":{"type":"Sequence","pretokenizers":[]},"model":{"merges":["a b"]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		tok, err := Load(data)
		if err != nil {
			return
		}
		for _, id := range tok.Encode(nil, "It's 12 o'clock.\n") {
			if int(id) >= tok.VocabSize() {
				t.Errorf("id %d of a vocabulary of %d", id, tok.VocabSize())
			}
		}
	})
}
