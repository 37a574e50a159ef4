package edge

import (
	"errors"
	"io"

	"github.com/valyala/fasthttp"

	"github.com/tandem-pd/tandem/internal/openai"
)

const (
	// prefetchBytes is how much of a body with a length fasthttp reads before it calls the handler.
	prefetchBytes = 8 << 10

	// firstBodyBytes is the largest buffer that a body gets before its bytes have come.
	firstBodyBytes = 32 << 10 // a size of spare memory

	// declaredGrowth is how many times its size a full buffer gets where the body's length is declared, and no more than
	// that: most long bodies are copied once. Without a length it doubles.
	declaredGrowth = 16
)

// errUnreadable wraps why a body could not be read to its end; the connection carries no other request.
type errUnreadable struct{ error }

// readBody reads the request's body of at most limit bytes into memory that is taken from the budget as bytes arrive,
// and that the route gives back. The error is an *openai.Error, or an errUnreadable.
func (s *Server) readBody(ctx *fasthttp.RequestCtx, limit int) (body []byte, err error) {
	c := ctx.Conn().(*conn)
	stream := ctx.RequestBodyStream()
	declared := ctx.Request.Header.ContentLength()
	if stream == nil || declared == 0 {
		return nil, nil
	}
	most, growth := limit+1, 2 // of a chunked body: one more shows that it is too large
	if declared > limit {
		return nil, openai.TooLarge(limit)
	} else if declared > 0 {
		most, growth = declared, declaredGrowth
	}
	for {
		if len(body) == cap(body) {
			var ok bool
			if body, ok = s.bodies.grow(body, min(most, max(firstBodyBytes, growth*cap(body)))); !ok {
				return nil, s.bodies.exhausted()
			}
			c.request.held = cap(body)
		}
		n, err := stream.Read(body[len(body):min(most, cap(body))])
		body = body[:len(body)+n]
		switch {
		case len(body) == declared, len(body) <= limit && errors.Is(err, io.EOF) && declared < 0:
			c.request.unread = false
			c.arrival() // what came of the body is no part of the next request
			return body, nil
		case len(body) > limit:
			return nil, openai.TooLarge(limit)
		case errors.Is(err, io.EOF): // fasthttp calls a connection's end an EOF, too
			return nil, errUnreadable{io.ErrUnexpectedEOF}
		case err != nil:
			return nil, errUnreadable{err}
		}
	}
}

// left reports whether the request has a body of which more than fasthttp's part is still on the connection when the
// handler is called.
func left(h *fasthttp.RequestHeader) bool {
	n := h.ContentLength()
	return n == -1 || n > prefetchBytes
}
