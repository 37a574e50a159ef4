package edge

import (
	"errors"
	"io"

	"github.com/valyala/fasthttp"

	"github.com/tandem-pd/tandem/internal/openai"
)

const (
	// prefetchBytes is how much of a body with a length fasthttp reads before the handler.
	prefetchBytes = 8 << 10

	// firstBodyBytes is the largest buffer of a body before its bytes have arrived.
	firstBodyBytes = 32 << 10 // a size of spare memory

	// declaredGrowth is the growth factor of a full buffer if the body's length is declared, up to that length: most
	// long bodies are copied once. Otherwise it doubles.
	declaredGrowth = 16
)

// errUnreadable wraps why a body could not be read completely; the connection carries no other request.
type errUnreadable struct{ error }

// readBody reads the request's body of at most limit bytes, decompressed, into memory from the budget, which the route
// releases. The error is an *openai.Error, or an errUnreadable.
func (s *Server) readBody(ctx *fasthttp.RequestCtx, limit int) (body []byte, err error) {
	c := ctx.Conn().(*conn)
	stream := ctx.RequestBodyStream()
	declared := ctx.Request.Header.ContentLength()
	if stream == nil || declared == 0 {
		return nil, nil
	}
	most, growth := limit+1, 2 // chunked: one more byte detects a body that is too large
	if declared > limit {
		return nil, openai.TooLarge(limit)
	} else if declared > 0 {
		most, growth = declared, declaredGrowth
	}
	for r := &c.request; ; {
		if len(body) == cap(body) {
			if !s.bodies.grow(r, min(most, max(firstBodyBytes, growth*cap(body)))) {
				return nil, s.bodies.exhausted()
			}
			body = r.body.B
		}
		n, err := stream.Read(body[len(body):min(most, cap(body))])
		body = body[:len(body)+n]
		r.body.B = body
		switch {
		case len(body) == declared, len(body) <= limit && errors.Is(err, io.EOF) && declared < 0:
			c.request.unread = false
			c.Arrival() // the body's bytes do not begin the next request
			if coding, _ := coding(&ctx.Request.Header); coding != "" && len(body) > 0 {
				return s.decompress(r, coding, limit)
			}
			return body, nil
		case len(body) > limit:
			return nil, openai.TooLarge(limit)
		case errors.Is(err, io.EOF): // fasthttp reports a closed connection as EOF, too
			return nil, errUnreadable{io.ErrUnexpectedEOF}
		case err != nil:
			return nil, errUnreadable{err}
		}
	}
}

// left reports whether part of the request's body is still on the connection when the handler is called.
func left(h *fasthttp.RequestHeader) bool {
	n := h.ContentLength()
	return n == -1 || n > prefetchBytes
}
