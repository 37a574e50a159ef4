// Package load keeps the books of a pool: which request has booked what on which worker, the totals that a policy
// weighs, and which worker a session is bound to.
//
// A [Book] and [Sessions] are plain values without a lock, a clock or a goroutine: code that shares one guards it.
// Sessions are advisory: a session without a binding is placed like any other request, so the table may be bounded and
// messages may be lost.
package load

import (
	"math"
	"time"

	"github.com/tandem-pd/tandem/kv/index"
)

// Kind is what happened to a booking.
type Kind uint8

// The kinds of events, in the order of a booking's life.
const (
	Add         Kind = iota // the request was granted this worker
	PrefillDone             // its prompt is computed: the prefill tokens end
	Grow                    // its output fills more blocks
	Free                    // it is over, however it ended: all of it ends
)

// Event is one step of one booking. Request and Attempt name the booking; Kind decides which other fields count.
type Event struct {
	Request string // the gateway's own id of the request, unique among those open
	Attempt int    // which attempt at the request
	Kind    Kind

	Worker        string // Add: whose load it is
	Rank          int    // Add: on which of the worker's ranks
	PrefillTokens int    // Add: prompt tokens to be computed, ≥ 0
	Inputs        int    // Add: as how many requests it counts; 0: one
	Blocks        int    // Add: blocks it takes in addition to Chain; Grow: blocks of output more, ≥ 0
	// PrefillTime is how long the prompt's tokens should take once they are first in line, 0 unknown (Add): they count
	// for less as that time passes. See [Page.Prefill].
	PrefillTime time.Duration
	// Expected is the output to expect, in blocks, 0 unknown (Add): what the booking holds alone counts for less as
	// it is generated, see [Account]. [Unweighed] has the output's blocks take room and weigh nothing.
	Expected int
	// Chain are the sequence hashes of the prompt's full blocks (Add). Blocks that several bookings of one account
	// name count once on it. It is kept until the booking ends, and must not be written to.
	Chain []uint64
	Unit  index.Unit // what Chain's hashes name
}

// Unweighed as [Event.Expected] has a booking's output take room on its account
// and count for nothing where workers are compared.
const Unweighed = -1

// Account is the load of one (worker, rank): the sums over its open bookings, those of other gateways included.
type Account struct {
	ActiveBlocks  int // blocks of prompts and of output so far, shared ones once
	PrefillTokens int // prompt tokens yet to be computed
	Requests      int // bookings
	// Faded is how much less than ActiveBlocks the blocks weigh, in 1/[whole] of a block: a booking whose output is
	// expected to be E blocks and is G now counts what it holds alone, its output and what of its prompt no other
	// booking of the account shares, by max(0, 1 − G/E) (router-semantics §2.4). They take room all the same until
	// they are released.
	Faded int
}

// whole is one block in the unit of [Account.Faded]: whole numbers, so that sums
// come back to nothing when all is released.
const whole = 1024

// Weight is the account's blocks as they count for a cost: ActiveBlocks less what has faded of them.
func (a *Account) Weight() float64 { return float64(a.ActiveBlocks) - float64(a.Faded)/whole }

// Book holds the open bookings of a pool and the accounts they add up to. Each booking is released exactly once,
// whatever the order of events: an event that names no open booking changes nothing.
type Book struct {
	open     map[key]booking
	accounts map[slot]*Page
	chains   tree
	looks    uint64
	seq      uint64  // prompts queued on pages so far
	blank    []Page  // not in use yet
	lines    []line  // theirs
	watched  bool    // changes are noted
	changed  []*Page // since the last [Book.Changes]
}

type key struct {
	request string
	attempt int
}

// slot names an account.
type slot struct {
	worker string
	rank   int
}

// booking is what one request has on one account. It stays below the 128 bytes
// up to which a map holds its values in itself.
type booking struct {
	page          *Page
	prefillTokens int
	seq           uint64 // in the page's queue of prompts, 0 not in it
	blocks        int    // in addition to the chain's
	requests      int32  // as how many it counts
	grown         int32  // of blocks, output
	expected      int32  // blocks of output; Unweighed
	faded         int    // its part of the account's
	chain         []uint64
	last          *node // where the chain ends; nil without one
}

// NewBook returns an empty book.
func NewBook() *Book {
	return &Book{open: map[key]booking{}, accounts: map[slot]*Page{}}
}

// Apply enters an event that happened at now, and reports whether it changed anything. It does not where an Add names
// a booking that is open already, where another kind names one that is not, and where there is nothing left to
// release. Negative amounts count as zero.
func (b *Book) Apply(e Event, now time.Time) bool {
	k := key{e.Request, e.Attempt}
	held, open := b.open[k]
	if open == (e.Kind == Add) {
		return false
	}
	switch e.Kind {
	case Add:
		held = booking{
			page:          b.Page(e.Worker, e.Rank),
			prefillTokens: max(0, e.PrefillTokens),
			blocks:        max(0, e.Blocks),
			requests:      narrow(max(1, e.Inputs)),
			expected:      narrow(e.Expected),
			chain:         e.Chain,
		}
		if e.Expected < 0 {
			held.expected = Unweighed
		}
		held.page.Requests += int(held.requests)
		held.page.line.booked++
		held.page.PrefillTokens += held.prefillTokens
		if held.prefillTokens > 0 && (e.PrefillTime > 0 || held.page.queued > 0) {
			b.seq++
			held.seq = b.seq
			held.page.queue(prompt{held.seq, held.prefillTokens, e.PrefillTime}, now)
		}
		held.page.ActiveBlocks += held.blocks
		if len(e.Chain) > 0 {
			var fresh int
			held.last, fresh = b.chains.enter(e.Chain, e.Unit, held.page)
			held.page.ActiveBlocks += fresh
		}
		b.open[k] = held
		b.note(held.page)
		return true
	case PrefillDone:
		if held.prefillTokens == 0 {
			return false
		}
		held.page.PrefillTokens -= held.prefillTokens
		held.page.unqueue(held.seq, now)
		held.prefillTokens, held.seq = 0, 0
		b.open[k] = held
		b.note(held.page)
		return true
	case Grow:
		if e.Blocks <= 0 {
			return false
		}
		held.page.ActiveBlocks += e.Blocks
		held.blocks += e.Blocks
		held.grown = narrow(int(held.grown) + e.Blocks)
		b.fade(&held)
		b.open[k] = held
		b.note(held.page)
		return true
	case Free:
		b.release(k, held, now)
		return true
	}
	return false
}

// Page returns the page of a worker's rank, made at its first use. The pointer stays the same, and what it points to
// up to date, until the worker is forgotten or its idle account pruned.
func (b *Book) Page(worker string, rank int) *Page {
	s := slot{worker, rank}
	p := b.accounts[s]
	if p == nil {
		p = b.page(s)
		b.accounts[s] = p
	}
	return p
}

// Look finds which pages hold leading blocks of chain in open bookings, for
// [Page.Shared] to return until the next look.
func (b *Book) Look(chain []uint64) {
	b.looks++
	b.chains.look(chain, func(p *Page, blocks int) { p.shared, p.looked = narrow(blocks), b.looks })
}

// Shared returns how many leading blocks of the chain that b looked for last the
// page's open bookings hold already: booking them there takes no more room.
func (b *Book) Shared(p *Page) int {
	if p.looked != b.looks {
		return 0
	}
	return int(p.shared)
}

// Prune closes the accounts that have no open booking and whose worker keep
// refuses, so that a book does not grow with every worker that ever was.
func (b *Book) Prune(keep func(worker string) bool) {
	for s, a := range b.accounts {
		if a.Requests == 0 && !keep(s.worker) {
			delete(b.accounts, s)
		}
	}
}

// Open returns how many bookings are open, those of other gateways not included.
func (b *Book) Open() int { return len(b.open) }

// fade computes how much less than whole a booking's own blocks count.
func (b *Book) fade(held *booking) {
	faded := 0
	switch {
	case held.expected == Unweighed:
		faded = int(held.grown) * whole
	case held.expected > 0:
		alone := held.blocks
		if held.last != nil {
			alone += held.last.alone(held.page)
		}
		faded = alone * whole * int(min(held.grown, held.expected)) / int(held.expected)
	}
	held.page.Faded += faded - held.faded
	held.faded = faded
}

// release takes a booking off its account and out of the book.
func (b *Book) release(k key, held booking, now time.Time) {
	held.page.Requests -= int(held.requests)
	held.page.PrefillTokens -= held.prefillTokens
	held.page.unqueue(held.seq, now)
	held.page.ActiveBlocks -= held.blocks
	held.page.Faded -= held.faded
	if held.last != nil {
		held.page.ActiveBlocks -= b.chains.leave(held.last, held.page)
	}
	delete(b.open, k)
	b.note(held.page)
}

// narrow keeps a count in the 32 bits it is stored in.
func narrow(n int) int32 { return int32(max(0, min(n, math.MaxInt32))) }
