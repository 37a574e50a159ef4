package wire

import (
	"encoding/binary"
	"math"
	"time"
)

// Kind is the kind of an event.
type Kind uint8

const (
	Stored  Kind = iota + 1 // blocks are in the cache
	Removed                 // blocks are not in the cache any more
	Cleared                 // nothing is in the cache any more
)

func (k Kind) String() string {
	switch k {
	case Stored:
		return "stored"
	case Removed:
		return "removed"
	case Cleared:
		return "cleared"
	}
	return "unknown"
}

// Hash is an engine's name for a block. It is opaque: it may depend on a seed that only the engine has. It is good
// for finding the block in later events of the same rank, and for nothing else.
//
// Signed integers keep their 64 bits. Of a hash sent as bytes the last eight count, read big-endian, zeros in front
// of fewer. That is the integer vLLM itself sends for the same hash when it sends integers.
type Hash uint64

// bytesHash folds a hash that was sent as bytes, see [Hash].
func bytesHash(b []byte) Hash {
	if len(b) >= 8 {
		return Hash(binary.BigEndian.Uint64(b[len(b)-8:]))
	}
	var h Hash
	for _, c := range b {
		h = h<<8 | Hash(c)
	}
	return h
}

// Event is one report of an engine. Which fields count depends on Kind: Stored has them all, Removed those marked
// so, Cleared none. A field that was not sent, or sent as null, is zero.
type Event struct {
	Kind   Kind
	Hashes []Hash // of the blocks, in the order of the chain; Removed too
	// Parent is the block that comes before Hashes[0] in the chain; HasParent is false where that is the beginning.
	Parent    Hash
	HasParent bool
	// Tokens are the ids of all the blocks, BlockSize for each of Hashes. They are empty where the engine knows only
	// the hash (a tier for a block announced before). Of bigrams, as SGLang sends them with EAGLE, these are the
	// first of each pair.
	Tokens []uint32
	// Seconds are the second ids of bigrams, as many as Tokens; nil where tokens are plain.
	Seconds []uint32
	// Texts are those of Tokens that were sent as strings (TensorRT-LLM, for what is not text). Their ids are 0.
	Texts     []TextToken
	BlockSize int // tokens a block

	LoraName string
	LoraID   OptInt
	Medium   string // where the blocks are, as sent ("GPU"); empty is the device. Removed too
	// CacheSalt keeps equal prompts apart, where the engine sends it as a field (SGLang).
	CacheSalt string
	SessionID string
	// GroupIdx is the engine's KV-cache group, the first where it is not set. Removed too.
	GroupIdx      OptInt
	SpecKind      string // kind of attention of that group, "full_attention" for example
	SlidingWindow OptInt // tokens
	Locality      string // Removed too
	Ownership     string // Removed too
	// ExtraKeys are, for each block, what its hash covers in addition to the tokens, as vLLM sends it; nil when not sent.
	ExtraKeys [][]ExtraKey
	// MMKeys are, for each block, the multimodal items in it, as TensorRT-LLM sends it; nil when not sent.
	MMKeys [][]MMKey
	// Lookahead are, for each block, the tokens behind it that its hash covers too; nil when not sent.
	Lookahead [][]uint32
}

// OptInt is an integer that may be absent.
type OptInt struct {
	Value int64
	Set   bool
}

// TextToken is a token that is no number.
type TextToken struct {
	Index int // in [Event.Tokens]
	Text  string
}

// ExtraKey is one item of what a block's hash covers in addition to its tokens: a LoRA name, a multimodal id, a salt (all of
// them Text), or the digest of an embedding (Bytes). Its place and the event's LoraName distinguish them.
type ExtraKey struct {
	Text      string
	Offset    int64 // of a multimodal item from the block's start, in tokens; may be negative
	HasOffset bool
	Bytes     []byte // not nil for a digest
}

// MMKey is one multimodal item in a block.
type MMKey struct {
	Hash        string // hexadecimal
	StartOffset int64  // tokens
	UUID        string
}

// NoRank is a batch's Rank if the engine did not send one.
const NoRank = -1

// Batch is one message of an engine: events in order.
type Batch struct {
	// TS is when it was sent, in seconds since the Unix epoch, as sent. See [Batch.Time].
	TS     float64
	Rank   int // data-parallel rank, or [NoRank]
	Events []Event
	// Skipped is how many events were of unknown kind or could not be read. They are not in Events.
	Skipped int
	// SkippedFields is how many fields of the others were unknown, or optional and could not be read.
	SkippedFields int

	// What the events' slices are cut from, kept for the next decoding.
	hashes []Hash
	tokens []uint32
	items  int // see maxItems
}

// Time is TS as a time, exact to about a microsecond.
func (b *Batch) Time() time.Time {
	sec, frac := math.Modf(b.TS)
	return time.Unix(int64(sec), int64(frac*1e9))
}

// HasCleared reports whether one of the events is Cleared.
func (b *Batch) HasCleared() bool {
	for i := range b.Events {
		if b.Events[i].Kind == Cleared {
			return true
		}
	}
	return false
}

// Blocks is the part [from, to) of a Stored or Removed event, by blocks. It shares e's memory.
func (e *Event) Blocks(from, to int) Event {
	part := *e
	part.Hashes = e.Hashes[from:to]
	if e.Kind != Stored {
		return part
	}
	if from > 0 {
		part.Parent, part.HasParent = e.Hashes[from-1], true
	}
	first, last := min(from*e.BlockSize, len(e.Tokens)), min(to*e.BlockSize, len(e.Tokens))
	part.Tokens = e.Tokens[first:last]
	if e.Seconds != nil {
		part.Seconds = e.Seconds[first:last]
	}
	part.Texts = nil
	for _, t := range e.Texts {
		if t.Index >= first && t.Index < last {
			part.Texts = append(part.Texts, TextToken{t.Index - first, t.Text})
		}
	}
	part.ExtraKeys = span(e.ExtraKeys, from, to)
	part.MMKeys = span(e.MMKeys, from, to)
	part.Lookahead = span(e.Lookahead, from, to)
	return part
}

// span is s[from:to], or what there is of it.
func span[T any](s []T, from, to int) []T {
	if s == nil {
		return nil
	}
	return s[min(from, len(s)):min(to, len(s))]
}
