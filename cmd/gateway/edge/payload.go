package edge

import (
	"errors"
	"io"
	"sync/atomic"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/tandem-pd/tandem/internal/openai"
)

const (
	// prefetchBytes is how much of a body with a length fasthttp reads before it calls the handler.
	prefetchBytes = 8 << 10

	// firstBodyBytes is the largest buffer that a body gets before its bytes have come.
	firstBodyBytes = 32 << 10

	// declaredGrowth is how many times its size a full buffer gets where the body's length is declared, and no more than
	// that: most long bodies are copied once. Without a length it doubles.
	declaredGrowth = 16

	// budgetRetry is after how long a request that found the budget taken may be worth another try.
	budgetRetry = time.Second
)

// budget counts the bytes of memory that request bodies take, of those that are being read and of those whose
// requests wait or run. It is safe for concurrent use.
type budget struct {
	limit int64
	used  atomic.Int64
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

// fits reports whether n more bytes would be within the limit just now.
func (b *budget) fits(n int) bool { return b.used.Load()+int64(n) <= b.limit }

// exhausted is the error for a request whose body is beyond the budget.
func (b *budget) exhausted() *openai.Error {
	e := openai.Unavailable("body_budget_exhausted",
		"the bodies of other requests take the memory that body-budget-bytes allows; try again later")
	e.RetryAfter = budgetRetry
	return e
}

// errUnreadable wraps why a body could not be read to its end; the connection carries no other request.
type errUnreadable struct{ error }

// readBody reads the request's body of at most limit bytes into memory that is taken from the budget as bytes arrive,
// cap(body) in all, which the caller gives back; on an error nothing is taken. The error is an *openai.Error, or an
// errUnreadable.
func (s *Server) readBody(ctx *fasthttp.RequestCtx, limit int) (body []byte, err error) {
	stream := ctx.RequestBodyStream()
	declared := ctx.Request.Header.ContentLength()
	if stream == nil || declared == 0 {
		return nil, nil
	}
	defer func() {
		if err != nil {
			s.bodies.give(cap(body))
			body = nil
		}
	}()
	most, growth := limit+1, 2 // of a chunked body: one more shows that it is too large
	if declared > limit {
		return nil, openai.TooLarge(limit)
	} else if declared > 0 {
		most, growth = declared, declaredGrowth
	}
	for {
		if len(body) == cap(body) {
			size := min(most, max(firstBodyBytes, growth*cap(body)))
			if !s.bodies.take(size - cap(body)) {
				return body, s.bodies.exhausted()
			}
			grown := make([]byte, len(body), size)
			copy(grown, body)
			body = grown
		}
		n, err := stream.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		switch {
		case len(body) == declared, len(body) <= limit && errors.Is(err, io.EOF) && declared < 0:
			c := ctx.Conn().(*conn)
			c.request.unread = false
			c.arrival() // what came of the body is no part of the next request
			return body, nil
		case len(body) > limit:
			return body, openai.TooLarge(limit)
		case errors.Is(err, io.EOF): // fasthttp calls a connection's end an EOF, too
			return body, errUnreadable{io.ErrUnexpectedEOF}
		case err != nil:
			return body, errUnreadable{err}
		}
	}
}

// left reports whether the request has a body of which more than fasthttp's part is still on the connection when the
// handler is called.
func left(h *fasthttp.RequestHeader) bool {
	n := h.ContentLength()
	return n == -1 || n > prefetchBytes
}
