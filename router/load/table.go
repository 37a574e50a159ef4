package load

import "time"

// MaxSessions bounds the sessions of a table, at about 120 bytes each.
const MaxSessions = 100_000

// Sessions holds the bindings of one pool's sessions. A binding expires once its session is unused for the time to live.
// Methods take the same time for any number of sessions.
type Sessions struct {
	ttl      int64 // milliseconds
	most     int
	shared   bool
	began    time.Time // start of its own clock; zero before its first use
	ahead    int64     // the group's clock less its own
	followed bool      // another gateway's clock was received
	rows     []row     // a ring by last use; row 0 is its head
	index    map[uint64]int32
	free     int32 // first unused row; 0: none
	bound    int
	counts   SessionCounts

	pending  []int32 // rows to report
	repeat   int32   // rows up to this one are to be published again
	repeated int64   // since when
	out      []SessionBinding
}

// row is a binding, without Idle. Session is 0 in an unused row.
type row struct {
	SessionBinding
	used, published int64 // by the table's clock; published: here, or by another gateway
	next, prev      int32 // next is used later
	own             bool  // this gateway has used it
	pending         bool
}

// SessionCounts counts the events of a table's bindings.
type SessionCounts struct {
	Bindings  int    // current
	Bound     uint64 // sessions that had none
	Hits      uint64 // requests on the worker their session is bound to
	Elsewhere uint64 // requests on another worker, since theirs was full, busy or not what they required
	Moved     uint64 // bindings whose worker could not be chosen any longer
	Dropped   uint64 // bindings whose worker failed a request of the session
	Evicted   uint64 // live bindings replaced, or received ones without a place
}

// NewSessions returns an empty table. ttl counts in whole milliseconds. shared queues bindings for [Table.Delta].
func NewSessions(ttl time.Duration, shared bool) *Sessions {
	return &Sessions{ttl: ttl.Milliseconds(), most: MaxSessions, shared: shared, rows: make([]row, 1), index: map[uint64]int32{}}
}

// Find returns the worker and rank that a session is bound to.
func (t *Sessions) Find(session uint64, now time.Time) (worker uint64, rank int32, ok bool) {
	r := &t.rows[t.live(session, t.at(now))]
	return r.Worker, r.Rank, r.Worker != 0
}

// Use records that a worker began to serve a request of a session. It binds a session that has no binding, or whose
// worker from could not be chosen (0: none). counts is false if the request was counted before.
func (t *Sessions) Use(session, worker uint64, rank int32, from uint64, counts bool, now time.Time) {
	at := t.at(now)
	t.expire(at)
	i := t.live(session, at)
	known := i != 0
	if !known {
		i = t.add(session, at)
	}
	var count *uint64
	switch r := &t.rows[i]; {
	case r.Worker == 0:
		count = &t.counts.Bound
		t.bind(i, worker, rank, known, at)
	case r.Worker == worker && r.Rank == rank:
		count = &t.counts.Hits
	case r.Worker == from:
		count = &t.counts.Moved
		t.bind(i, worker, rank, true, at)
	default:
		count = &t.counts.Elsewhere
	}
	if counts {
		*count++
	}
	r := &t.rows[i]
	if r.own = true; at-r.published >= t.ttl/4 {
		t.note(i)
	}
	t.touch(i, at)
}

// Drop ends a session's binding to a worker that failed its request.
func (t *Sessions) Drop(session, worker uint64, rank int32, now time.Time) {
	at := t.at(now)
	if i := t.live(session, at); i != 0 && t.rows[i].Worker == worker && t.rows[i].Rank == rank {
		t.counts.Dropped++
		t.bind(i, 0, 0, true, at)
	}
}

// Counts returns the counts so far.
func (t *Sessions) Counts(now time.Time) SessionCounts {
	t.expire(t.at(now))
	c := t.counts
	c.Bindings = t.bound
	return c
}

// at returns the table's clock in milliseconds, from 1.
func (t *Sessions) at(now time.Time) int64 {
	if t.began.IsZero() {
		t.began = now
	}
	return max(1, now.Sub(t.began).Milliseconds()+1)
}

// live returns the row of a session, 0 for none or an expired one.
func (t *Sessions) live(session uint64, at int64) int32 {
	i := t.index[session]
	if i != 0 && at-t.rows[i].used >= t.ttl {
		t.remove(i)
		return 0
	}
	return i
}

// expire removes expired rows, oldest first. One out of order is found when it is looked up.
func (t *Sessions) expire(at int64) {
	for i := t.rows[0].next; i != 0 && at-t.rows[i].used >= t.ttl; i = t.rows[0].next {
		t.remove(i)
	}
}

// bind binds a row to a worker, or to none.
func (t *Sessions) bind(i int32, worker uint64, rank int32, again bool, at int64) {
	r := &t.rows[i]
	if again {
		r.Moves = min(r.Moves+1, maxMoves)
	}
	t.set(r, worker)
	r.Rank, r.Born = rank, t.clock(at)
	t.note(i)
}

func (t *Sessions) set(r *row, worker uint64) {
	if r.Worker != 0 {
		t.bound--
	}
	if r.Worker = worker; worker != 0 {
		t.bound++
	}
}

// touch makes a row the last used.
func (t *Sessions) touch(i int32, at int64) {
	t.rows[i].used = at
	t.unlink(i)
	t.link(i)
}

// add makes a row for a session, replacing the oldest when full.
func (t *Sessions) add(session uint64, at int64) int32 {
	if len(t.index) >= t.most {
		t.counts.Evicted++
		t.remove(t.rows[0].next)
	}
	i := t.free
	if i != 0 {
		t.free = t.rows[i].next
	} else {
		i = int32(len(t.rows))
		t.rows = append(t.rows, row{})
	}
	t.rows[i] = row{SessionBinding: SessionBinding{Session: session}, used: at, published: at, pending: t.rows[i].pending}
	t.index[session] = i
	t.link(i)
	return i
}

// remove frees a row. It may remain in pending.
func (t *Sessions) remove(i int32) {
	t.unlink(i)
	r := &t.rows[i]
	t.set(r, 0)
	delete(t.index, r.Session)
	*r = row{next: t.free, pending: r.pending}
	t.free = i
}

func (t *Sessions) unlink(i int32) {
	r := &t.rows[i]
	t.rows[r.prev].next, t.rows[r.next].prev = r.next, r.prev
}

func (t *Sessions) link(i int32) {
	last := t.rows[0].prev
	t.rows[i].prev, t.rows[i].next = last, 0
	t.rows[last].next, t.rows[0].prev = i, i
}
