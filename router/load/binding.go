package load

import (
	"cmp"

	"github.com/zeebo/xxh3"
)

// SessionBinding binds a session to a worker's rank, as gateways publish it.
type SessionBinding struct {
	Session uint64 // [Hash] of its name
	Worker  uint64 // [Hash] of the worker's id; 0: the binding was dropped
	Rank    int32
	Moves   uint32 // how often it was moved or dropped since the session was bound
	Born    int64  // when it was bound, moved or dropped, in milliseconds of the group's clock
	Idle    int64  // since the session's latest request, in milliseconds
}

// MaxSessionMillis bounds times in messages, in milliseconds.
const MaxSessionMillis = 1 << 50

// maxMoves bounds [Binding.Moves], which stays at it.
const maxMoves = 1<<31 - 1

// SessionHash returns the hash of a session's name or a worker's id, never 0.
func SessionHash(name string) uint64 { return max(1, xxh3.HashString(name)) }

// compare is below 0 if a wins over b. All gateways agree, whatever the order of messages: the binding moved more often
// wins, since it reflects a failure that the other does not; of two independent ones the earlier wins.
func (a *SessionBinding) compare(b *SessionBinding) int {
	return cmp.Or(
		cmp.Compare(b.Moves, a.Moves),
		cmp.Compare(min(1, b.Worker), min(1, a.Worker)), // dropped
		cmp.Compare(a.Born, b.Born),
		cmp.Compare(a.Worker, b.Worker),
		cmp.Compare(a.Rank, b.Rank),
	)
}
