package service

import (
	"container/list"
	"sync"
	"time"

	"github.com/tandem-pd/tandem/router"
)

// reservations are the bookings that frontends hold. One without a call for its time to live expires, so a frontend
// that dies leaks nothing. It has no clock; it is safe for concurrent use.
type reservations struct {
	ttl time.Duration

	mu    sync.Mutex // guards all below
	byID  map[string]*reservation
	order *list.List // of *reservation, by expiry
}

// reservation is one request's bookings.
type reservation struct {
	id     string
	leases []*router.Lease // one for each leg, the generating one last

	// Guarded by reservations.mu.
	deadline time.Time
	at       *list.Element
}

// claim reserves an id until keep or giveUp; false if it is taken.
func (rs *reservations) claim(id string) bool {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if _, taken := rs.byID[id]; taken {
		return false
	}
	rs.byID[id] = nil
	return true
}

// giveUp frees a claimed id.
func (rs *reservations) giveUp(id string) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	if rs.byID[id] == nil {
		delete(rs.byID, id)
	}
}

// keep stores the reservation of a claimed id.
func (rs *reservations) keep(r *reservation, now time.Time) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	r.deadline = now.Add(rs.ttl)
	rs.byID[r.id] = r
	r.at = rs.order.PushBack(r)
}

// prefillComplete ends the booking of the prompt's tokens; false without such a reservation.
func (rs *reservations) prefillComplete(id string, now time.Time) bool {
	r := rs.touch(id, now)
	if r == nil {
		return false
	}
	for _, l := range r.leases {
		l.PrefillDone(now)
	}
	return true
}

// grow books output blocks on the generating leg; false without such a reservation.
func (rs *reservations) grow(id string, blocks int, now time.Time) bool {
	r := rs.touch(id, now)
	if r == nil {
		return false
	}
	r.leases[len(r.leases)-1].Grow(blocks, now)
	return true
}

// touch returns a reservation and renews it.
func (rs *reservations) touch(id string, now time.Time) *reservation {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	r := rs.byID[id]
	if r == nil {
		return nil
	}
	r.deadline = now.Add(rs.ttl)
	rs.order.MoveToBack(r.at)
	return r
}

// release ends a reservation; false if there is none.
func (rs *reservations) release(id string, now time.Time) bool {
	rs.mu.Lock()
	r := rs.byID[id]
	if r != nil {
		rs.forget(r)
	}
	rs.mu.Unlock()
	if r == nil {
		return false
	}
	r.release(now)
	return true
}

// expire ends expired reservations, and returns their number and when the next one expires.
func (rs *reservations) expire(now time.Time) (ended int, next time.Time) {
	rs.mu.Lock()
	var over []*reservation
	for e := rs.order.Front(); e != nil; e = rs.order.Front() {
		r := e.Value.(*reservation)
		if r.deadline.After(now) {
			break
		}
		rs.forget(r)
		over = append(over, r)
	}
	next = now.Add(rs.ttl)
	if e := rs.order.Front(); e != nil {
		next = e.Value.(*reservation).deadline
	}
	rs.mu.Unlock()
	for _, r := range over {
		r.release(now)
	}
	return len(over), next
}

func (rs *reservations) open() int {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return rs.order.Len()
}

// forget removes r. The caller holds rs.mu, and releases r afterwards.
func (rs *reservations) forget(r *reservation) {
	delete(rs.byID, r.id)
	rs.order.Remove(r.at)
}

func (r *reservation) release(now time.Time) {
	for _, l := range r.leases {
		l.Release(now)
	}
}
