package member

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tandem-pd/tandem/router"
	"github.com/tandem-pd/tandem/router/replica"
)

// The times and the bound of questions.
const (
	// answerWithin is how long a worker's owner has to answer. There and back take 0.4 ms in the median and 3 ms in the
	// slowest of a hundred (docs/replicas.md).
	answerWithin = 5 * time.Millisecond
	// refusedFor is how long a worker counts as full here that its owner has refused: what the owner knew is known by then.
	refusedFor = 5 * time.Millisecond
	// mutedFor is how long a gateway is asked nothing after it has not answered: a dead one costs some requests 5 ms
	// four times, until it counts as dead.
	mutedFor = replica.BeatEvery
	// maxQuestions is how many questions may be open. What is booked beyond is booked as without questions.
	maxQuestions = 64
)

// owner is a gateway that can be asked.
type owner struct{ silent atomic.Pointer[time.Time] } // since when it owes an answer; nil: it owes none

// question is one that is open.
type question struct {
	owner  string
	answer chan bool // holds one
}

// Asked counts questions for the last room of workers, by what came of them.
type Asked struct {
	Granted, Refused uint64
	Silent           uint64 // the owner did not answer in time
	Skipped          uint64 // not sent: too many were open, or NATS was away
}

// asked is Asked as it is counted.
type asked struct{ granted, refused, silent, skipped atomic.Uint64 }

// Asked is what came of the questions so far.
func (m *Member) Asked() Asked {
	return Asked{m.asked.granted.Load(), m.asked.refused.Load(), m.asked.silent.Load(), m.asked.skipped.Load()}
}

// Asks reports whether a gateway can be asked for the last room of its workers: it was heard within the last second, it has not
// left a question unanswered lately, and few questions are open.
func (m *Member) Asks(peer string) bool {
	s := m.seen()
	if s == nil || m.cfg.Reserve != byOwner || m.open.Load() >= maxQuestions {
		return false
	}
	o := s.owners[peer]
	if o == nil {
		return false
	}
	since := o.silent.Load()
	return since == nil || time.Since(*since) >= mutedFor
}

// Ask puts the lease's question, if it has one, to the worker's owner, and reports whether the lease stands. It waits for at most
// 5 ms, under no lock: without an answer the lease stands, as it does without questions. One that is refused has been
// released, and its worker's rank counts as full for 5 ms, after which the model's queue is woken.
//
// The question goes out with the share that has the booking in it, in one message to all: the owner's answer needs no
// promise, and a later word of the share ends what the owner counts for it, whatever becomes of the answer.
func (m *Member) Ask(ctx context.Context, l *router.Lease) bool {
	q := l.Question
	if q == nil {
		return true
	}
	number, answer := m.put(l)
	if answer == nil {
		m.asked.skipped.Add(1)
		return true
	}
	defer m.drop(number)
	timer := time.NewTimer(m.patience)
	defer timer.Stop()
	select {
	case <-ctx.Done(): // the caller gives the lease back
	case <-timer.C:
		m.asked.silent.Add(1)
		if o := m.seen().owners[q.Owner]; o != nil {
			now := time.Now()
			o.silent.Store(&now)
		}
	case granted := <-answer:
		if granted {
			m.asked.granted.Add(1)
			break
		}
		m.asked.refused.Add(1)
		now := time.Now()
		l.Refuse(now, now.Add(refusedFor))
		m.poke() // the others need not wait for the tail
		time.AfterFunc(refusedFor, func() { m.rooms.Wake(q.Model) })
		return false
	}
	return true
}

// put sends the question. It returns no answer where it could not; the booking is known then as any other.
func (m *Member) put(l *router.Lease) (number uint64, answer chan bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	l.Tell()
	if m.stopped || m.own == nil || !m.link.Connected() || m.open.Load() >= maxQuestions {
		m.poke()
		return 0, nil
	}
	q := l.Question
	m.own.Ask(replica.Slot{Model: q.Model, Role: q.Role, Worker: l.Worker.ID, Rank: l.Rank}, q.Owner)
	m.sayLocked()
	number, answer = m.own.Seq(), make(chan bool, 1)
	m.questions[number] = question{q.Owner, answer}
	m.open.Add(1)
	return number, answer
}

// drop ends a question.
func (m *Member) drop(number uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.questions, number)
	m.open.Add(-1)
}

// answered hands an answer to the question that it is for. Others, and late ones, count for nothing.
func (m *Member) answered(msg *nats.Msg) {
	a, err := replica.ReadAnswer(msg.Data)
	if err != nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	q, open := m.questions[a.Seq]
	if !open || q.owner != a.From || a.From != m.cfg.sender(msg.Subject) || a.Epoch != m.own.Epoch() {
		return
	}
	select {
	case q.answer <- a.Granted:
	default: // it has come twice
	}
}

// Overbooked implements [replica.Books].
func (b *books) Overbooked(s replica.Slot) bool {
	return b.rooms.Routers.For(s.Model, s.Role).Overbooked(b.rooms.Pool(s.Model, s.Role), s.Worker, s.Rank)
}
