package pools

import (
	"iter"
	"slices"
	"strings"
	"time"
)

// Status is a worker's standing in its pool.
type Status uint8

const (
	Up       Status = iota // takes requests
	Down                   // failed a call a moment ago; takes none until [Member.DownUntil]
	Draining               // cordoned by an operator or by its source: finishes what it has and takes no more
)

// String is the word that logs and /workers show.
func (s Status) String() string {
	switch s {
	case Up:
		return "up"
	case Down:
		return "down"
	case Draining:
		return "draining"
	}
	return "unknown"
}

// MarshalText is [Status.String], for JSON.
func (s Status) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Member is a worker and its standing.
type Member struct {
	Worker *Worker
	// Source is who reported it; see [Roster.From].
	Source string
	Status Status
	// DownUntil is when a failed worker is tried again; zero unless Status is [Down].
	DownUntil time.Time
}

// Eligible reports whether m may be chosen at now: it is up, or its time down has passed. The second case lets a
// snapshot stay right without being replaced.
func (m *Member) Eligible(now time.Time) bool {
	return m.Status == Up || m.Status == Down && !now.Before(m.DownUntil)
}

// Pool is all workers of one model in one role, at one moment. It is immutable and shared.
type Pool struct {
	Model string
	Role  Role
	// Members are sorted by worker id. It is empty for a pool whose workers have all gone.
	Members []Member
	// Version grows whenever this pool changes; 0 is a pool that never had a worker.
	Version uint64
}

// IDs are the workers' ids, in order.
func (p *Pool) IDs() iter.Seq[string] {
	return func(yield func(string) bool) {
		for i := range p.Members {
			if !yield(p.Members[i].Worker.ID) {
				return
			}
		}
	}
}

// Name is "model/role". A model's name may hold slashes itself; the role is what follows the last.
func (p *Pool) Name() string { return p.Model + "/" + string(p.Role) }

// Member finds the worker id in the pool.
func (p *Pool) Member(id string) (Member, bool) {
	i, ok := slices.BinarySearchFunc(p.Members, id, func(m Member, id string) int { return strings.Compare(m.Worker.ID, id) })
	if !ok {
		return Member{}, false
	}
	return p.Members[i], true
}
