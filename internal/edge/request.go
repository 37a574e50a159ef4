package edge

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/openai"
)

const (
	headerRequestID      = "X-Request-Id"
	headerPriority       = "X-Dynamo-Request-Priority"
	headerStrictPriority = "X-Dynamo-Request-Strict-Priority"

	maxRequestIDBytes = 128
)

// request is what the edge notes of the request in hand on a connection.
type request struct {
	id       string
	arrival  time.Time
	endpoint string // for the metrics
	unread   bool   // a part of the body is still on the connection
}

// newRequest notes what the head says, as far as it could be read, and puts the
// request's id and the gateway's into the answer.
func newRequest(ctx *fasthttp.RequestCtx, c *conn) request {
	r := request{id: requestID(ctx.Request.Header.Peek(headerRequestID)), arrival: c.arrival(), endpoint: "other"}
	if r.arrival.IsZero() { // it came along with the request before it
		r.arrival = time.Now()
	}
	ctx.Response.Header.Set(headerRequestID, r.id)
	ctx.Response.Header.Set(headerGateway, c.face.s.id)
	return r
}

// requestID takes the client's id when it has 1 to 128 visible ASCII bytes, and
// makes one otherwise.
func requestID(given []byte) string {
	if len(given) > 0 && len(given) <= maxRequestIDBytes && visible(given) {
		return string(given)
	}
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// visible reports whether b is ASCII without spaces and control bytes.
func visible(b []byte) bool {
	for _, c := range b {
		if c <= ' ' || c >= 0x7f {
			return false
		}
	}
	return true
}

// readCall checks a request to one of the generating endpoints and reads its
// body, whose memory the caller gives back to the budget once the Call is over.
// Nothing in the Call refers to fasthttp's memory.
func (s *Server) readCall(ctx *fasthttp.RequestCtx, ep openai.Endpoint, r request) (handoff.Call, error) {
	h := &ctx.Request.Header
	call := handoff.Call{ID: r.id, Arrival: r.arrival, Client: ctx.RemoteAddr().String()}
	if v := h.Peek(headerPriority); v != nil {
		n, err := strconv.ParseInt(string(v), 10, 32)
		if err != nil {
			return call, openai.BadRequest(strings.ToLower(headerPriority), "it must be an integer between -2147483648 and 2147483647")
		}
		p := int32(n)
		call.Priority = &p
	}
	if v := h.Peek(headerStrictPriority); v != nil {
		n, err := strconv.ParseUint(string(v), 10, 32)
		if err != nil {
			return call, openai.BadRequest(strings.ToLower(headerStrictPriority), "it must be an integer between 0 and 4294967295")
		}
		p := uint32(n)
		call.StrictPriority = &p
	}
	if err := readPins(h, &call.Pins); err != nil {
		return call, err
	}
	if err := s.hop(&call, h); err != nil {
		return call, err
	}
	// (Fiber's c.Body() would read and decompress without a limit.)
	raw, err := s.readBody(ctx, s.cfg.MaxBodyBytes)
	if err != nil {
		return call, err
	}
	if len(raw) == 0 {
		return call, openai.BadRequest("", "the body is empty; it must be a JSON object")
	}
	if call.Request, err = (openai.Limits{MaxBytes: s.cfg.MaxBodyBytes}).Scan(ep, raw); err != nil {
		s.bodies.give(cap(raw))
	}
	return call, err
}

// folded reports whether a header field goes on over a line's end, which no
// client does any more and not every proxy reads alike.
func folded(raw []byte) bool {
	return bytes.Contains(raw, []byte("\n ")) || bytes.Contains(raw, []byte("\n\t"))
}

// ambiguous reports whether a head gives its body's length in two ways, which
// is how requests are smuggled past a proxy that believes the other one.
// fasthttp takes Transfer-Encoding and hides the other, so this reads the raw
// header lines.
func ambiguous(raw []byte) bool {
	length, coding := false, false
	for line := range bytes.Lines(raw) {
		switch name, _, _ := bytes.Cut(line, []byte(":")); len(name) {
		case len("Content-Length"):
			length = length || bytes.EqualFold(name, []byte("Content-Length"))
		case len("Transfer-Encoding"):
			coding = coding || bytes.EqualFold(name, []byte("Transfer-Encoding"))
		}
	}
	return length && coding
}

// recoded reports whether a head has a Transfer-Encoding that is not chunked.
// fasthttp takes "identity", which HTTP has no longer, for a request without a
// body, and what follows for the next request.
func recoded(raw []byte) bool {
	for line := range bytes.Lines(raw) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		if bytes.EqualFold(name, []byte("Transfer-Encoding")) && !bytes.EqualFold(bytes.TrimSpace(value), []byte("chunked")) {
			return true
		}
	}
	return false
}
