package router

import (
	"slices"
	"time"

	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/load"
)

// Question is for the gateway that owns a nearly full worker: has it room for this booking? Two gateways that grant the
// last room in the same moment do not know of each other; both ask the owner, which takes one question after the other.
//
// What is booked subject to the answer is left out of this gateway's share until [Lease.Tell], so that it becomes known
// with the question: the owner would else find two bookings in its books and refuse both. The holder of a lease with a
// question calls [Lease.Tell], [Lease.Refuse] or [Lease.Release].
type Question struct {
	Owner string // a name of the [Group]
	Model string // of the pool
	Role  pools.Role

	page   *load.Page
	hidden load.Account
}

// show lets the booking into the gateway's share. The caller holds the router's lock.
func (q *Question) show(k *core) {
	if q != nil && q.hidden != (load.Account{}) {
		k.book.Show(q.page, q.hidden)
		q.hidden = load.Account{}
	}
}

// question returns what is to be asked about a booking that was just made on slot i, whose account was another before: nil
// where this gateway owns the worker, its owner cannot be asked, or the room cannot be the last.
//
// It can be, where each other gateway may have booked the like of it there in the same moment, in addition to the bookings
// of them that are unseen on average, and not all of these fit: less is left than
//
//	(other gateways + unseen) × max(blocks of this booking, blocks of the pool's mean booking)
//
// and in the same way for requests, each of which takes one sequence. With half the worker left no question is asked,
// however many gateways there are: that so many choose one worker of a pool in one moment is what the spread prevents.
func (k *core) question(c *scratch, i int, before load.Account) *Question {
	s := &c.view.slots[i]
	left, seqs := s.blocks-s.page.ActiveBlocks-1, s.seqs-s.page.Requests
	if left >= s.blocks/2 && seqs >= s.seqs/2 { // always on a roomy fleet, and where room does not count
		return nil
	}
	owns := k.owns(c.view)
	if owns == nil || owns[i] {
		return nil
	}
	others := float64(len(k.owned.group.Names)-1) + k.cfg.Peers.Unseen(c.view.pool)
	each := max(float64(s.page.ActiveBlocks-before.ActiveBlocks), k.typical.blocks)
	if !(left < s.blocks/2 && float64(left) < others*each) && !(seqs < s.seqs/2 && float64(seqs) < others) {
		return nil
	}
	owner := k.owned.owners[i]
	if k.cfg.Peers.CutOff() || !k.cfg.Peers.Asks(owner) {
		return nil
	}
	q := &Question{Owner: owner, Model: c.view.pool.Model, Role: c.view.pool.Role, page: s.page, hidden: s.page.Plus(negative(before))}
	k.book.Hide(q.page, q.hidden)
	return q
}

func negative(a load.Account) load.Account {
	return load.Account{ActiveBlocks: -a.ActiveBlocks, PrefillTokens: -a.PrefillTokens, Requests: -a.Requests, Faded: -a.Faded}
}

// Tell lets the booking into the gateway's share: its owner is asked in the same message, or not at all.
func (l *Lease) Tell() {
	if l.router != nil && l.Question != nil {
		l.router.mu.Lock()
		l.Question.show(&l.router.core)
		l.router.mu.Unlock()
	}
}

// Refuse ends the booking, which the worker's owner has refused, and has this gateway take the worker's rank as full until a
// time: by then what the owner knows should be known here.
func (l *Lease) Refuse(now, until time.Time) {
	if l.router == nil {
		return
	}
	l.Release(now)
	l.router.mu.Lock()
	defer l.router.mu.Unlock()
	k := &l.router.core
	k.refusals = append(k.refused(now), refusal{l.Worker.ID, l.Rank, until})
}

// refusal has a worker's rank count as full.
type refusal struct {
	worker string
	rank   int
	until  time.Time
}

// refused is the refusals that are in force.
func (k *core) refused(now time.Time) []refusal {
	if len(k.refusals) > 0 {
		k.refusals = slices.DeleteFunc(k.refusals, func(r refusal) bool { return !now.Before(r.until) })
	}
	return k.refusals
}

// refused reports whether s counts as full.
func (c *scratch) refused(s *slot) bool {
	return slices.ContainsFunc(c.refusals, func(r refusal) bool { return r.worker == s.worker.ID && r.rank == int(s.rank) })
}

// Overbooked reports whether more is booked on a rank of p's, by all gateways and as far as is known, than it has room
// for. It does not where the worker is not known.
func (r *Router) Overbooked(p *pools.Pool, worker string, rank int) bool {
	v := r.see(p)
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(v.slots, func(s slot) bool { return s.worker.ID == worker && int(s.rank) == rank })
	return i >= 0 && (v.slots[i].page.ActiveBlocks >= v.slots[i].blocks || v.slots[i].page.Requests > v.slots[i].seqs)
}
