package edge

import (
	"math"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/openai"
)

// budgetRetry is the Retry-After of requests beyond the budget.
const budgetRetry = time.Second

// bodyBudget is the memory for all requests' bodies: half of GOMEMLIMIT, 1 GiB without one.
func bodyBudget() int64 {
	if limit := debug.SetMemoryLimit(-1); limit < math.MaxInt64 {
		return limit / 2
	}
	return 1 << 30
}

// budget counts the bytes of memory that request bodies take, of those that are being read and of those whose
// requests wait or run. It is safe for concurrent use.
type budget struct {
	limit int64
	used  atomic.Int64
}

// take counts n more bytes and reports whether they are within the limit; otherwise it counts nothing.
func (b *budget) take(n int) bool {
	if b.used.Add(int64(n)) <= b.limit {
		return true
	}
	b.give(n)
	return false
}

func (b *budget) give(n int) { b.used.Add(-int64(n)) }

// release returns what r's body has taken, and its memory. A second call does nothing.
func (b *budget) release(r *request) {
	b.give(r.held)
	r.held = 0
	r.body.Release()
	r.body = nil
}

// making counts memory derived from an exchange's request body. It implements [openai.Memory].
type making exchange

// Take implements [openai.Memory]. Half of the budget is for bodies only, so that derived memory cannot block them.
func (m *making) Take(n int) bool {
	m.mu.Lock() // a stream's loop takes memory too
	defer m.mu.Unlock()
	b := &m.s.bodies
	if b.used.Add(int64(n)) > b.limit/2 {
		b.give(n)
		return false
	}
	m.conn.request.held += n
	return true
}

// Give implements [openai.Memory].
func (m *making) Give(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.s.bodies.give(n)
	m.conn.request.held -= n
}

// fits reports whether n more bytes are within the limit now.
func (b *budget) fits(n int) bool { return b.used.Load()+int64(n) <= b.limit }

// exhausted returns the error for a request beyond the budget.
func (b *budget) exhausted() *openai.Error {
	e := openai.Unavailable("body_budget_exhausted",
		"the bodies of other requests take the memory for bodies (half of GOMEMLIMIT, or 1 GiB); try again later")
	e.RetryAfter = budgetRetry
	return e
}

// grow moves the body to memory of at least size bytes and counts that instead of the old. It reports false, and changes
// nothing, beyond the limit.
func (b *budget) grow(r *request, size int) bool {
	old := 0
	if r.body != nil {
		old = cap(r.body.B)
	}
	if size = http1.BufSize(size); !b.take(size - old) {
		return false
	}
	grown := http1.Take(size)
	if r.body != nil {
		grown.B = append(grown.B, r.body.B...)
		r.body.Release()
	}
	r.body = grown
	r.held += size - old
	return true
}

// replace releases the body and counts n bytes of other memory instead. It reports false, and changes nothing, beyond
// the limit.
func (b *budget) replace(r *request, n int) bool {
	if !b.take(n) {
		return false
	}
	b.release(r)
	r.held = n
	return true
}
