package affinity

import "time"

// The table's part of messages is bounded. What finds no place is reported with a later use of its session.
const (
	// Batch is how many bindings [Table.Delta] returns at the most.
	Batch = 256
	// maxPending is how many rows may wait for it.
	maxPending = 4096
)

// clock is the group's clock, in milliseconds: the clock of the gateway that is furthest. It is there to order bindings, and none of
// the gateways' wall clocks counts for it.
func (t *Table) clock(at int64) int64 { return min(at+t.ahead, MaxMillis) }

// Clock returns the group's clock, for other gateways to hear without a binding; 0 where the table has no session.
func (t *Table) Clock(now time.Time) int64 {
	if len(t.index) == 0 {
		return 0
	}
	return t.clock(t.at(now))
}

// follow has the table's clock follow another gateway's. What was bound before any was heard counts as that much later: a gateway
// that starts must not have the earliest bindings.
func (t *Table) follow(clock, at int64) {
	more := max(0, min(clock, MaxMillis)-at-t.ahead)
	t.ahead += more
	if t.heard {
		return
	}
	t.heard = true
	for i := range t.rows {
		t.rows[i].Born = min(t.rows[i].Born+more, MaxMillis)
	}
}

// note has a row be reported.
func (t *Table) note(i int32) {
	if r := &t.rows[i]; t.shared && !r.pending && len(t.pending) < maxPending {
		r.pending = true
		t.pending = append(t.pending, i)
	}
}

// Delta returns bindings that other gateways are to hear, [Batch] at the most, and the clock that their times are of. The slice is the
// table's, until the next call.
func (t *Table) Delta(now time.Time) (clock int64, all []Binding) {
	at := t.at(now)
	t.out = t.out[:0]
	n := 0
	for ; n < len(t.pending) && len(t.out) < Batch; n++ {
		r := &t.rows[t.pending[n]]
		r.pending = false
		if idle := at - r.used; r.Session != 0 && idle < t.ttl {
			r.said = at
			b := r.Binding
			b.Idle = max(0, idle)
			t.out = append(t.out, b)
		}
	}
	t.pending = t.pending[:copy(t.pending, t.pending[n:])]
	return t.clock(at), t.out
}

// Resend has every binding be reported again, because another gateway has joined: see [Table.ResendNext].
func (t *Table) Resend(now time.Time) {
	if t.shared {
		t.repeat, t.repeated = int32(len(t.rows)-1), t.at(now)
	}
}

// ResendNext has as many more of them be reported as a message holds, and reports whether there were any. A binding that any gateway has
// reported since Resend is left out.
func (t *Table) ResendNext() bool {
	before := len(t.pending)
	for ; t.repeat > 0 && len(t.pending)-before < Batch && len(t.pending) < maxPending; t.repeat-- {
		if r := &t.rows[t.repeat]; r.Session != 0 && r.said < t.repeated {
			t.note(t.repeat)
		}
	}
	return len(t.pending) > before
}

// Apply takes in what another gateway reports, and keeps nothing of the slice. Where the table has a binding that wins over the
// reported one, it reports that.
func (t *Table) Apply(clock int64, all []Binding, now time.Time) {
	at := t.at(now)
	t.follow(clock, at)
	t.expire(at)
	for i := range all {
		if b := &all[i]; b.Session != 0 && b.Idle >= 0 && b.Idle < t.ttl {
			t.hear(b, at)
		}
	}
}

func (t *Table) hear(b *Binding, at int64) {
	i := t.live(b.Session, at)
	if i == 0 {
		if len(t.index) >= t.most && t.rows[t.rows[0].next].own {
			t.counts.Evicted++ // a gateway that floods ends no binding of this one's clients
			return
		}
		i = t.add(b.Session, at)
		t.take(&t.rows[i], b)
		t.rows[i].used = at - b.Idle
	}
	r := &t.rows[i]
	switch order := b.compare(&r.Binding); {
	case order < 0:
		t.take(r, b)
	case order > 0 && (b.Worker != r.Worker || b.Rank != r.Rank):
		t.note(i)
	}
	if b.Worker == r.Worker && b.Rank == r.Rank {
		r.said = at
	}
	if used := at - b.Idle; used > r.used {
		t.touch(i, used)
	}
}

// take puts a reported binding in the place of a row's own.
func (t *Table) take(r *row, b *Binding) {
	t.set(r, b.Worker)
	r.Rank, r.Moves, r.Born = b.Rank, min(b.Moves, maxMoves), b.Born
}
