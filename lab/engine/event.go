package engine

// EventKind is what happened to cached blocks.
type EventKind uint8

const (
	// Stored: blocks became reusable.
	Stored EventKind = iota + 1
	// Removed: blocks were evicted.
	Removed
	// Cleared: the whole cache was dropped.
	Cleared
)

// String is the kind in lower case.
func (k EventKind) String() string {
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

// Event is one change of the cache's reusable blocks, as vLLM announces them.
// An event is never written to again once handed out.
type Event struct {
	Kind EventKind
	// Hashes are the engine's names of the blocks; each names its whole prefix.
	// Stored blocks follow each other in one chain.
	Hashes []uint64
	// Parent is the block that the first stored one extends; HasParent is false where a chain begins.
	Parent    uint64
	HasParent bool
	// TokenIDs are the tokens of the stored blocks, BlockSize for each; nil for
	// prompts that came without tokens (Request.PromptTokens).
	TokenIDs  []uint32
	BlockSize int
	// LoRA and Salt are the stored blocks' (Request).
	LoRA, Salt string
	// Group is the KV-cache group, and Window the tokens of its sliding window, 0 for full attention. A window's
	// stored event has fewer Hashes than its tokens fill.
	Group, Window int
}

// eventLog gathers the events of a step in order.
type eventLog struct {
	events []Event
}

// removed notes an evicted block; evictions in a row share one event.
func (l *eventLog) removed(hash uint64, group int) {
	if n := len(l.events); n > 0 && l.events[n-1].Kind == Removed && l.events[n-1].Group == group {
		l.events[n-1].Hashes = append(l.events[n-1].Hashes, hash)
		return
	}
	l.events = append(l.events, Event{Kind: Removed, Hashes: []uint64{hash}, Group: group})
}

func (l *eventLog) add(e Event) { l.events = append(l.events, e) }
