package tokens

import (
	"slices"
	"testing"
)

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
			if got := tok.Encode(nil, v.Text); !slices.Equal(got, v.IDs) {
				t.Errorf("%s line %d: %.200q\n got %.200v\nwant %.200v", file, i+1, v.Text, got, v.IDs)
			}
			for range 2 {
				if got := cache.Encode(nil, v.Text); !slices.Equal(got, v.IDs) {
					t.Errorf("%s line %d: the cache's ids differ", file, i+1)
				}
			}
		}
		t.Logf("%s: %d texts", file, len(vectors))
	}
	if got, want := tok.VocabSize(), 151665; got != want {
		t.Errorf("VocabSize() = %d, want %d", got, want)
	}
}
