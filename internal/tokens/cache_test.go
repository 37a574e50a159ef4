package tokens

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// testCacheBytes is the size of a cache that holds all that a test encodes.
const testCacheBytes = 64 << 20

// longText draws scraps until the text is well over a few chunks long.
func longText(t *testing.T, seed uint64) string {
	rng := seeded(t, seed)
	var b strings.Builder
	for b.Len() < 4*chunkBytes {
		b.WriteString(randomText(rng, 50))
		if rng.IntN(20) == 0 { // now and then a stretch without a safe place
			b.WriteString(strings.Repeat(scraps[rng.IntN(len(scraps))], rng.IntN(2*chunkBytes)/4))
		}
	}
	return b.String()
}

func TestCacheEqualsTokenizer(t *testing.T) {
	var texts []string
	for seed := range uint64(3) {
		s := longText(t, seed%2) // each text comes twice
		grown := s + longText(t, 100+seed)
		texts = append(texts, s, grown, grown[:len(grown)/2], s)
	}
	for name, tok := range variants(t) {
		small, large := NewCache(tok, 50_000), NewCache(tok, testCacheBytes)
		for _, text := range texts {
			equal(t, name, text, small, large)
		}
		_, bytes := small.held()
		assert.LessOrEqual(t, bytes, int64(50_000), name)
	}
}

// equal holds what caches give for a text, with special tokens and as plain text, against their tokenizer.
func equal(t *testing.T, what, text string, caches ...*Cache) {
	t.Helper()
	whole, plain := caches[0].tokenizer.Encode(nil, text), caches[0].tokenizer.EncodeText(nil, text)
	for _, c := range caches {
		require.True(t, slices.Equal(c.Encode(nil, text), whole) && slices.Equal(c.encode(nil, text, false), plain),
			"%s: %.20q: the cache's ids differ", what, text)
	}
}

// TestCacheWithLateTokens has added tokens that are matched after normalisation, and could be cut through.
func TestCacheWithLateTokens(t *testing.T) {
	tok := mustLoad(t, edited(t, `"normalizer":null`, `"normalizer":{"type":"NFC"}`,
		`"added_tokens":[`, `"added_tokens":[{"id":5000,"content":"<a.é b>","normalized":true},`))
	cache := NewCache(tok, testCacheBytes)
	text := strings.Repeat("x <a.e\u0301 b> <a.é b", 3000)
	for range 2 {
		equal(t, "late tokens", text, cache)
	}
	assert.Len(t, slices.DeleteFunc(tok.Encode(nil, text), func(id uint32) bool { return id != 5000 }), 3000)
}

// TestCacheDistinguishesPlaces has one text at an input's beginning, behind a token, and for plain text.
func TestCacheDistinguishesPlaces(t *testing.T) {
	for _, f := range families() {
		cache := NewCache(f.load(t), testCacheBytes)
		text := strings.Repeat("It is so. ", minChunkBytes) + "<s>"
		for _, s := range []string{text, "</s>" + text, "x" + text, text} {
			equal(t, f.name, s, cache)
		}
	}
}

// held counts what a cache holds.
func (c *Cache) held() (entries int, bytes int64) {
	for i := range c.shards {
		s := &c.shards[i]
		s.mu.Lock()
		entries, bytes = entries+len(s.entries), bytes+s.bytes
		s.mu.Unlock()
	}
	return entries, bytes
}

// TestSaltsShareNothing counts what is held of one text for several salts.
func TestSaltsShareNothing(t *testing.T) {
	cache, text := NewCache(Sim(), testCacheBytes), longText(t, 1)
	want := cache.Encode(nil, text)
	parts, _ := cache.held()
	for i, salt := range []string{"a", "b", "a", "b", ""} {
		assert.Equal(t, want, cache.For(salt).Encode(nil, text), salt)
		entries, _ := cache.held()
		assert.Equal(t, parts*(1+min(i+1, 2)), entries, "parts held, salt %q", salt)
	}
}

// A text is kept in parts, and one that grew shares all but the last with the text before: the cuts do not move.
func TestCacheHoldsParts(t *testing.T) {
	cache := NewCache(Sim(), testCacheBytes)
	text := prose(t, 100_000)
	cache.Encode(nil, text)
	first, bytes := cache.held()
	assert.True(t, first >= 20 && first <= 25 && bytes >= 100_000, "after a first text: %d parts, %d bytes", first, bytes)
	cache.Encode(nil, text)
	cache.Encode(nil, "short")
	n, b := cache.held()
	assert.True(t, n == first && b == bytes, "after the same text and a short one: %d parts, %d bytes, not %d and %d", n, b, first, bytes)
	cache.Encode(nil, text+" and some more of it, "+text[:2000])
	n, _ = cache.held()
	assert.LessOrEqual(t, n, first+2, "parts after it grew: two more at most")
}

// TestShortInputsAreNotKept has a chat of short messages as well: it counts as a whole.
func TestShortInputsAreNotKept(t *testing.T) {
	cache, text := NewCache(Sim(), testCacheBytes), prose(t, minInputBytes)
	cache.Encode(nil, text[:minInputBytes-1])
	cache.EncodeChat(nil, []Message{{"user", text[:minInputBytes/2]}, {"user", text[:minInputBytes/2-1]}})
	n, _ := cache.held()
	assert.Zero(t, n, "parts of short inputs")
	cache.EncodeChat(nil, []Message{{"user", text[:minInputBytes/2]}, {"user", text[:minInputBytes/2]}})
	n, _ = cache.held()
	assert.NotZero(t, n, "parts of a chat that is long as a whole")
}

// TestCacheOfNothing remembers nothing and encodes all the same.
func TestCacheOfNothing(t *testing.T) {
	text := prose(t, 20_000)
	for _, maxBytes := range []int64{-1, 0, 1} {
		cache := NewCache(Sim(), maxBytes)
		equal(t, "a cache of nothing", text, cache, cache)
		n, b := cache.held()
		assert.True(t, n == 0 && b == 0, "limit %d: %d parts, %d bytes", maxBytes, n, b)
	}
}

// TestCacheForgetsTheOldest fills a shard of a small cache.
func TestCacheForgetsTheOldest(t *testing.T) {
	var s shard
	s.init(3 * (entryBytes + 4*10))
	ids := make([]uint32, 10)
	key := func(n int) partKey { return partKey{length: n} }
	for n := 1; n <= 3; n++ {
		s.put(key(n), ids)
	}
	s.put(key(3), ids) // there already
	_, ok := s.get(key(1))
	require.True(t, ok, "1 is gone before there was need")
	s.put(key(4), ids) // 2 is now the oldest
	s.put(key(5), make([]uint32, 1000))
	var held []int
	for n := 1; n <= 5; n++ {
		if _, ok := s.get(key(n)); ok {
			held = append(held, n)
		}
	}
	assert.Equal(t, []int{1, 3, 4}, held)
	assert.Len(t, s.entries, 3)
	assert.Equal(t, s.limit, s.bytes)
}

// TestCacheKeepsNoCallersMemory changes what it was handed and what it gave.
func TestCacheKeepsNoCallersMemory(t *testing.T) {
	cache, text := NewCache(Sim(), testCacheBytes), prose(t, 10_000)
	clear(cache.Encode(nil, text))
	clear(cache.Encode(nil, text))
	equal(t, "ids were changed", text, cache)
}

// TestCacheTogether shares a cache, and a tokenizer whose own of pieces starts empty, between goroutines; it has a
// point under the race detector.
func TestCacheTogether(t *testing.T) {
	cache := NewCache(mustLoad(t, simJSON), 200_000)
	texts := []string{longText(t, 1), longText(t, 2), prose(t, 50_000), prose(t, 60_000)}
	var group sync.WaitGroup
	for i := range 4 {
		group.Go(func() {
			for j := range 12 {
				text := texts[(i+j)%len(texts)]
				assert.True(t, slices.Equal(cache.Encode(nil, text), Sim().Encode(nil, text)), "ids differ")
				cache.held()
			}
		})
	}
	group.Wait()
}
