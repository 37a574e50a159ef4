package load

import (
	"slices"
	"time"
)

// Share is one gateway's part of an account. Gateways that choose among the same workers send each other theirs, and each
// keeps the sum: only the gateway whose share it is changes it, so that nothing can conflict.
type Share struct {
	Account
	// Left is how long its prompts should yet take from the moment of the share on, and First how long the oldest of
	// them, of which Computed tokens should be done and FirstTokens not; 0 where no times are known. See [Page.Left] and
	// [Page.Prefill].
	Left, First           time.Duration
	Computed, FirstTokens int
	// Line changes with the queued prompts, so that shares with equal sums and other prompts differ. It is not
	// transmitted.
	Line uint64
}

// Shared is a share with its place in a pool.
type Shared struct {
	Worker string
	Rank   int
	Share
}

type other struct {
	peer string
	Share
	at time.Time // of the share
}

// done is how many of its oldest prompt's tokens should have been computed.
func (o *other) done(now time.Time) int {
	passed := now.Sub(o.at)
	switch {
	case o.First <= 0 || passed <= 0:
		return o.Computed
	case passed >= o.First:
		return o.Computed + o.FirstTokens
	}
	return o.Computed + int(float64(o.FirstTokens)*(float64(passed)/float64(o.First)))
}

// left is how long its prompts should yet take.
func (o *other) left(now time.Time) time.Duration {
	return o.Left - min(max(0, now.Sub(o.at)), o.First)
}

func (a *Account) add(b Account, sign int) {
	a.ActiveBlocks += sign * b.ActiveBlocks
	a.PrefillTokens += sign * b.PrefillTokens
	a.Requests += sign * b.Requests
	a.Faded += sign * b.Faded
}

// Plus is the sum of two accounts.
func (a Account) Plus(b Account) Account {
	a.add(b, 1)
	return a
}

// Watch has the book note from now on which accounts change, for [Book.Changes].
func (b *Book) Watch() { b.watched = true }

// note notes that this gateway's share of a page has changed.
func (b *Book) note(p *Page) {
	if b.watched && !p.line.changed {
		p.line.changed = true
		b.changed = append(b.changed, p)
	}
}

// Changes calls visit with this gateway's share of each account that its own bookings have changed since the last call.
func (b *Book) Changes(now time.Time, visit func(Shared)) {
	for _, p := range b.changed {
		p.line.changed = false
		visit(Shared{p.line.slot.worker, p.line.slot.rank, p.own(now)})
	}
	clear(b.changed)
	b.changed = b.changed[:0]
}

// Others is the part of the account that other gateways have booked.
func (p *Page) Others() (sum Account) {
	for i := range p.line.others {
		sum.add(p.line.others[i].Account, 1)
	}
	return sum
}

// Booked returns the account's bookings, at least since it was last idle. Another gateway's count as far as its share
// rises: one that
// comes in the message in which another ends is not seen.
func (p *Page) Booked() uint64 { return p.line.booked }

func (p *Page) own(now time.Time) Share {
	s := Share{Account: p.Account}
	s.add(p.Others(), -1)
	if p.queued > 0 {
		first := &p.line.prompts[0]
		s.Line = first.seq + p.line.prompts[len(p.line.prompts)-1].seq
		s.Left = p.line.left(now)
		s.First = max(0, first.takes-max(0, now.Sub(p.line.headSince)))
		s.Computed = p.line.done(now)
		s.FirstTokens = first.tokens - s.Computed
	}
	return s
}

// ApplyShare puts another gateway's share in the place of the one that the book had of it, and reports whether the
// account fell: who waits for room there may find it. An empty share ends it.
func (b *Book) ApplyShare(peer string, s Shared, now time.Time) (fell bool) {
	p := b.Page(s.Worker, s.Rank)
	l := p.line
	i := slices.IndexFunc(l.others, func(o other) bool { return o.peer == peer })
	var was Account
	if i >= 0 {
		was = l.others[i].Account
	}
	p.add(was, -1)
	p.add(s.Account, 1)
	l.booked += uint64(max(0, s.Requests-was.Requests))
	empty := s.Account == (Account{})
	switch {
	case empty && i >= 0:
		l.others = slices.Delete(l.others, i, i+1)
	case !empty && i >= 0:
		l.others[i] = other{peer, s.Share, now}
	case !empty:
		l.others = append(l.others, other{peer, s.Share, now})
	}
	p.others = int32(len(l.others))
	return s.ActiveBlocks < was.ActiveBlocks || s.PrefillTokens < was.PrefillTokens || s.Requests < was.Requests
}
