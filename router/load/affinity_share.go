package load

import "time"

// Bounds of a message. A binding that does not fit is published with a later use of its session.
const (
	// Batch is the most bindings that [Table.Delta] returns.
	SessionBatch = 256
	// maxPending bounds the rows that wait for it.
	maxPending = 4096
)

// clock converts to the group's clock in milliseconds: that of the gateway furthest ahead. It orders bindings,
// independently of wall clocks.
func (t *Sessions) clock(at int64) int64 { return min(at+t.ahead, MaxSessionMillis) }

// Clock returns the group's clock to publish without a binding; 0 for a table without sessions.
func (t *Sessions) Clock(now time.Time) int64 {
	if len(t.index) == 0 {
		return 0
	}
	return t.clock(t.at(now))
}

// follow advances the table's clock to another gateway's. Bindings made before the first message move along: a gateway
// that starts must not have the earliest ones.
func (t *Sessions) follow(clock, at int64) {
	more := max(0, min(clock, MaxSessionMillis)-at-t.ahead)
	t.ahead += more
	if t.followed {
		return
	}
	t.followed = true
	for i := range t.rows {
		t.rows[i].Born = min(t.rows[i].Born+more, MaxSessionMillis)
	}
}

// note queues a row for publishing.
func (t *Sessions) note(i int32) {
	if r := &t.rows[i]; t.shared && !r.pending && len(t.pending) < maxPending {
		r.pending = true
		t.pending = append(t.pending, i)
	}
}

// Delta returns at most [Batch] bindings to publish, and the clock of their times. The slice is valid until the next
// call.
func (t *Sessions) Delta(now time.Time) (clock int64, all []SessionBinding) {
	at := t.at(now)
	t.out = t.out[:0]
	n := 0
	for ; n < len(t.pending) && len(t.out) < SessionBatch; n++ {
		r := &t.rows[t.pending[n]]
		r.pending = false
		if idle := at - r.used; r.Session != 0 && idle < t.ttl {
			r.published = at
			b := r.SessionBinding
			b.Idle = max(0, idle)
			t.out = append(t.out, b)
		}
	}
	t.pending = t.pending[:copy(t.pending, t.pending[n:])]
	return t.clock(at), t.out
}

// Resend marks every binding to be published again, because a gateway joined: see [Table.ResendNext].
func (t *Sessions) Resend(now time.Time) {
	if t.shared {
		t.repeat, t.repeated = int32(len(t.rows)-1), t.at(now)
	}
}

// ResendNext queues the next batch of them, and reports whether there was one. It skips bindings that any gateway has
// published since Resend.
func (t *Sessions) ResendNext() bool {
	before := len(t.pending)
	for ; t.repeat > 0 && len(t.pending)-before < SessionBatch && len(t.pending) < maxPending; t.repeat-- {
		if r := &t.rows[t.repeat]; r.Session != 0 && r.published < t.repeated {
			t.note(t.repeat)
		}
	}
	return len(t.pending) > before
}

// Apply applies another gateway's bindings, and does not retain the slice. A binding of its own that wins over a
// received one is published again.
func (t *Sessions) Apply(clock int64, all []SessionBinding, now time.Time) {
	at := t.at(now)
	t.follow(clock, at)
	t.expire(at)
	for i := range all {
		if b := &all[i]; b.Session != 0 && b.Idle >= 0 && b.Idle < t.ttl {
			t.apply(b, at)
		}
	}
}

func (t *Sessions) apply(b *SessionBinding, at int64) {
	i := t.live(b.Session, at)
	if i == 0 {
		if len(t.index) >= t.most && t.rows[t.rows[0].next].own {
			t.counts.Evicted++ // a gateway that floods evicts no binding of this one's clients
			return
		}
		i = t.add(b.Session, at)
		t.take(&t.rows[i], b)
		t.rows[i].used = at - b.Idle
	}
	r := &t.rows[i]
	switch order := b.compare(&r.SessionBinding); {
	case order < 0:
		t.take(r, b)
	case order > 0 && (b.Worker != r.Worker || b.Rank != r.Rank):
		t.note(i)
	}
	if b.Worker == r.Worker && b.Rank == r.Rank {
		r.published = at
	}
	if used := at - b.Idle; used > r.used {
		t.touch(i, used)
	}
}

// take replaces a row's binding with a received one.
func (t *Sessions) take(r *row, b *SessionBinding) {
	t.set(r, b.Worker)
	r.Rank, r.Moves, r.Born = b.Rank, min(b.Moves, maxMoves), b.Born
}
