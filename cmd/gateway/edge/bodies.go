package edge

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tandem-pd/tandem/internal/openai"
)

// budgetRetry is after how long a request that found the budget taken may be worth another try.
const budgetRetry = time.Second

// budget counts the bytes of memory that request bodies take, of those that are being read and of those whose
// requests wait or run. What long bodies took is used again. It is safe for concurrent use.
type budget struct {
	limit int64
	used  atomic.Int64
	spare [spareSizes]sync.Pool // of *[]byte, each pool's of one size; what is in them is not counted
}

// take counts n more bytes and reports whether they are within the limit; if not, nothing is counted.
func (b *budget) take(n int) bool {
	if b.used.Add(int64(n)) <= b.limit {
		return true
	}
	b.give(n)
	return false
}

// give returns n bytes.
func (b *budget) give(n int) { b.used.Add(-int64(n)) }

// release gives back what the body of r has taken. A second call gives nothing.
func (b *budget) release(r *request) {
	b.give(r.held)
	r.held = 0
}

// making counts what is made of an exchange's request beyond its body. It implements [openai.Memory].
type making exchange

// Take implements [openai.Memory]. Half of the budget is for bodies alone: where much is made of some, others are not refused.
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

// fits reports whether n more bytes would be within the limit just now.
func (b *budget) fits(n int) bool { return b.used.Load()+int64(n) <= b.limit }

// exhausted is the error for a request whose body is beyond the budget.
func (b *budget) exhausted() *openai.Error {
	e := openai.Unavailable("body_budget_exhausted",
		"the bodies of other requests take the memory that body-budget-bytes allows; try again later")
	e.RetryAfter = budgetRetry
	return e
}

// grow moves body to memory of size bytes, or somewhat more, and counts all of it in place of what body had. It reports
// false, and body stays where it is, if that is beyond the limit.
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

// keep has the memory of body, to which nothing refers any more, used again.
func (b *budget) keep(body []byte) {
	body = body[:0]
	spoil(body[:cap(body)])
	pool, whole := spareSize(cap(body))
	if pool < 0 || whole != cap(body) {
		return
	}
	b.spare[pool].Put(&body)
}

// Spare memory is kept in sizes that are an eighth of a power of two apart. What is shorter is cheap to make, and what is longer
// too large to lie idle.
const (
	minSpareBits, maxSpareBits = 12, 21 // 4 KiB, 2 MiB

	spareSteps = 8
	spareSizes = (maxSpareBits-minSpareBits)*spareSteps + 1
)

// spareSize returns the pool for size bytes, and the size of what is in it. Without one it returns -1, and size as it is.
func spareSize(size int) (pool, whole int) {
	if size < 1<<minSpareBits || size > 1<<maxSpareBits {
		return -1, size
	}
	octave := bits.Len(uint(size)) - 1
	step := 1 << octave / spareSteps
	n := (size - 1<<octave + step - 1) / step // 8 is the next octave's first
	return (octave-minSpareBits)*spareSteps + n, 1<<octave + n*step
}
