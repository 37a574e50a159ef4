package edge

import (
	"math"
	"math/bits"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

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
// requests wait or run. What long bodies took is used again. It is safe for concurrent use.
type budget struct {
	limit int64
	used  atomic.Int64
	spare [spareSizes]sync.Pool // of *[]byte, one size per pool; unused memory is not counted
}

// take counts n more bytes and reports whether they are within the limit; otherwise it counts nothing.
func (b *budget) take(n int) bool {
	if b.used.Add(int64(n)) <= b.limit {
		return true
	}
	b.give(n)
	return false
}

// give returns n bytes.
func (b *budget) give(n int) { b.used.Add(-int64(n)) }

// release returns what r's body has taken. A second call returns nothing.
func (b *budget) release(r *request) {
	b.give(r.held)
	r.held = 0
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

// grow moves body to memory of at least size bytes and counts that instead of the old. Beyond the limit it returns
// body and false.
func (b *budget) grow(body []byte, size int) ([]byte, bool) {
	pool, whole := spareSize(size)
	if !b.take(whole - cap(body)) {
		if pool, whole = -1, size; !b.take(size - cap(body)) {
			return body, false
		}
	}
	grown := []byte(nil)
	if pool >= 0 {
		if kept, ok := b.spare[pool].Get().(*[]byte); ok {
			grown = *kept
		}
	}
	if grown == nil {
		grown = make([]byte, 0, whole)
	}
	grown = append(grown, body...)
	b.keep(body)
	return grown, true
}

// keep recycles the memory of body, which nothing may refer to.
func (b *budget) keep(body []byte) {
	body = body[:0]
	spoil(body[:cap(body)])
	pool, whole := spareSize(cap(body))
	if pool < 0 || whole != cap(body) {
		return
	}
	b.spare[pool].Put(&body)
}

// Spare memory is kept in sizes an eighth of a power of two apart. Shorter memory is cheap to allocate, longer too
// large to keep idle.
const (
	minSpareBits, maxSpareBits = 12, 21 // 4 KiB, 2 MiB

	spareSteps = 8
	spareSizes = (maxSpareBits-minSpareBits)*spareSteps + 1
)

// spareSize returns the pool for size bytes and its size, or -1 and size.
func spareSize(size int) (pool, whole int) {
	if size < 1<<minSpareBits || size > 1<<maxSpareBits {
		return -1, size
	}
	octave := bits.Len(uint(size)) - 1
	step := 1 << octave / spareSteps
	n := (size - 1<<octave + step - 1) / step // 8 is the first of the next octave
	return (octave-minSpareBits)*spareSteps + n, 1<<octave + n*step
}
