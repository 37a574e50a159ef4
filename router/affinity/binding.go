package affinity

import (
	"cmp"

	"github.com/zeebo/xxh3"
)

// Binding ties a session to a rank of a worker, as gateways report it to each other.
type Binding struct {
	Session uint64 // [Hash] of its name
	Worker  uint64 // [Hash] of the worker's id; 0: the binding was dropped
	Rank    int32
	Moves   uint32 // how often it was moved or dropped since the session was bound
	Born    int64  // when it was bound, moved or dropped, in milliseconds of the group's clock
	Idle    int64  // since the session's latest request, in milliseconds
}

// MaxMillis bounds times in reports, in milliseconds: no clock comes near it.
const MaxMillis = 1 << 50

// maxMoves bounds [Binding.Moves]. One that has come to it stays there.
const maxMoves = 1<<31 - 1

// Hash is the hash of a session's name or of a worker's id. It is never 0.
func Hash(name string) uint64 { return max(1, xxh3.HashString(name)) }

// compare is below 0 where a wins over b, above 0 where b wins. All gateways order two bindings of a session alike, whatever they
// hear first. One that was moved more often knows of a failure that the other does not know of; of two that were bound without
// knowledge of each other the first one wins.
func (a *Binding) compare(b *Binding) int {
	return cmp.Or(
		cmp.Compare(b.Moves, a.Moves),
		cmp.Compare(min(1, b.Worker), min(1, a.Worker)), // a dropped one is none
		cmp.Compare(a.Born, b.Born),
		cmp.Compare(a.Worker, b.Worker),
		cmp.Compare(a.Rank, b.Rank),
	)
}
