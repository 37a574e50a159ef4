package tokens

import (
	"crypto/rand"
	"encoding/binary"
	"sync"

	"github.com/zeebo/xxh3"
)

const (
	// chunkBytes is the distance of cuts in a long text. Half of it is encoded again, on average, each time a prompt
	// grows.
	chunkBytes = 4 << 10
	// minChunkBytes is the least text worth remembering: encoding less takes about a microsecond.
	minChunkBytes = 128
	// minInputBytes is the least cached input: encoding less takes at most 20 µs, and many short prompts would evict
	// long ones.
	minInputBytes = 2 << 10
	// entryBytes is the memory of an entry without its ids.
	entryBytes = 176

	shardCount = 16
)

// Cache caches the ids of text. It cuts its input at special tokens (messages of a chat), and longer text at safe
// places every few kB from there, so that a growing conversation or prompt is encoded from about where it grew. It
// always returns the ids of its Tokenizer.
//
// The text itself is not kept. The key of a part is its length and a 128-bit hash, seeded at random for each Cache and
// salt. Cache is safe for concurrent use.
type Cache struct {
	tokenizer *Tokenizer
	seed      uint64
	shards    *[shardCount]shard
}

// NewCache returns a cache of t of at most maxBytes: 64 MiB hold the ids of about 30 MB of prose. Inputs under 2 kB are
// not cached. With 0 or less it caches nothing.
func NewCache(t *Tokenizer, maxBytes int64) *Cache {
	c := &Cache{tokenizer: t, shards: new([shardCount]shard)}
	var seed [8]byte
	rand.Read(seed[:]) // never fails
	c.seed = binary.LittleEndian.Uint64(seed[:])
	for i := range c.shards {
		c.shards[i].init(max(0, maxBytes) / shardCount)
	}
	return c
}

// For returns the cache, in the same memory, for requests of one cache salt: it finds nothing that another salt's
// requests left there.
func (c *Cache) For(salt string) *Cache {
	if salt == "" {
		return c
	}
	return &Cache{tokenizer: c.tokenizer, seed: xxh3.HashStringSeed(salt, c.seed), shards: c.shards}
}

// Tokenizer returns the cache's tokenizer.
func (c *Cache) Tokenizer() *Tokenizer { return c.tokenizer }

// EncodePrompt appends the ids that an engine gives the `prompt` text of /v1/completions with add_special_tokens=true,
// its default: the text's between the tokenizer's Prefix and Suffix.
func (c *Cache) EncodePrompt(dst []uint32, text string) []uint32 {
	dst = append(dst, c.tokenizer.prefix...)
	dst = c.Encode(dst, text)
	return append(dst, c.tokenizer.suffix...)
}

// Encode is Tokenizer.Encode: of a rendered chat, or of a prompt with add_special_tokens=false. Pass the whole text
// each time. It costs a hash of the text and the encoding of what is new: about 0.1 ms and the last message for a
// conversation of 400 kB.
func (c *Cache) Encode(dst []uint32, text string) []uint32 {
	return c.encode(dst, text, true)
}

// EncodeChat is Tokenizer.EncodeChat.
func (c *Cache) EncodeChat(dst []uint32, ms []Message) []uint32 {
	size := 0
	for i := range ms {
		size += len(ms[i].Content)
	}
	if size < minInputBytes {
		return c.tokenizer.EncodeChat(dst, ms)
	}
	return c.tokenizer.encodeChat(dst, ms, func(dst []uint32, text string) []uint32 { return c.parts(dst, text, false) })
}

// encode is Tokenizer.encode for a whole input.
func (c *Cache) encode(dst []uint32, text string, specials bool) []uint32 {
	if len(text) < minInputBytes {
		return c.tokenizer.encode(dst, text, first, specials)
	}
	return c.parts(dst, text, specials)
}

// parts encodes a text, or a part of an input, through the cache.
func (c *Cache) parts(dst []uint32, text string, specials bool) []uint32 {
	at := first
	for from := 0; ; {
		start, stop, id := len(text), len(text), uint32(0)
		if specials {
			start, stop, id = c.tokenizer.seam(text, from)
		}
		dst = c.stretch(dst, text[from:start], at, specials)
		if start == len(text) {
			return dst
		}
		dst = append(dst, id)
		from, at = stop, after
	}
}

// stretch encodes a text between seams, part by part.
func (c *Cache) stretch(dst []uint32, text string, at place, specials bool) []uint32 {
	t := c.tokenizer
	for len(text) >= minChunkBytes {
		n := t.cut(text, chunkBytes)
		part := text[:n]
		key := partKey{xxh3.HashString128Seed(part, c.seed), n, within, specials}
		if t.sentence != nil && t.sentence.lead != leadNone {
			key.at = at
		}
		shard := &c.shards[key.Lo%shardCount]
		if ids, ok := shard.get(key); ok {
			dst = append(dst, ids...)
		} else {
			from := len(dst)
			dst = t.encode(dst, part, at, specials)
			shard.put(key, dst[from:])
		}
		text, at = text[n:], within
	}
	if text == "" {
		return dst
	}
	return t.encode(dst, text, at, specials)
}

// partKey identifies a part of text and everything else that its ids depend on.
type partKey struct {
	xxh3.Uint128
	length   int
	at       place
	specials bool
}

// shard is a part of the cache: a map, and a ring through its entries with the most recently used one after root.
type shard struct {
	mu      sync.Mutex
	entries map[partKey]*entry
	root    entry
	bytes   int64
	limit   int64
}

type entry struct {
	prev, next *entry
	key        partKey
	ids        []uint32 // never changed
}

func (e *entry) cost() int64 { return entryBytes + 4*int64(len(e.ids)) }

func (s *shard) init(limit int64) {
	s.entries, s.limit = make(map[partKey]*entry), limit
	s.root.prev, s.root.next = &s.root, &s.root
}

// get returns the ids of a part, and makes it the most recently used.
func (s *shard) get(key partKey) ([]uint32, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	e, ok := s.entries[key]
	if !ok {
		return nil, false
	}
	if s.root.next != e {
		e.unlink()
		s.root.link(e)
	}
	return e.ids, true
}

// put stores a copy of a part's ids, and evicts the least recently used parts for it. A part larger than the shard is
// not stored.
func (s *shard) put(key partKey, ids []uint32) {
	if entryBytes+4*int64(len(ids)) > s.limit {
		return
	}
	e := &entry{key: key, ids: append(make([]uint32, 0, len(ids)), ids...)}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, there := s.entries[key]; there {
		return
	}
	for s.bytes+e.cost() > s.limit {
		oldest := s.root.prev
		oldest.unlink()
		delete(s.entries, oldest.key)
		s.bytes -= oldest.cost()
	}
	s.entries[key] = e
	s.root.link(e)
	s.bytes += e.cost()
}

// link puts e after the root r.
func (r *entry) link(e *entry) {
	e.prev, e.next = r, r.next
	r.next.prev = e
	r.next = e
}

func (e *entry) unlink() {
	e.prev.next, e.next.prev = e.next, e.prev
	e.prev, e.next = nil, nil
}
