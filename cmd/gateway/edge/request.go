package edge

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/openai"
)

const (
	headerRequestID      = "X-Request-Id"
	headerPriority       = "X-Dynamo-Request-Priority"
	headerStrictPriority = "X-Dynamo-Request-Strict-Priority"

	maxRequestIDBytes = 128
)

// request is the edge's state of the current request on a connection.
type request struct {
	id        string
	arrival   time.Time
	endpoint  string     // for the metrics
	unread    bool       // part of the body is still on the connection
	streamed  bool       // the answer was streamed
	next      bool       // and another request may follow
	preflight bool       // of a page of an allowed origin
	body      *http1.Buf // nil without a body in memory
	held      int        // bytes of the budget that the body takes
}

// begin reads what it can from the head, and puts the request's and the gateway's id into the answer.
func (r *request) begin(ctx *fasthttp.RequestCtx, c *conn) {
	*r = request{id: requestID(ctx.Request.Header.Peek(headerRequestID)), arrival: c.Arrival(), endpoint: "other"}
	if r.arrival.IsZero() { // it arrived together with the request before
		r.arrival = time.Now()
	}
	ctx.Response.Header.Set(headerRequestID, r.id)
	ctx.Response.Header.Set(headerGateway, c.frontend.s.id)
	r.preflight = c.frontend.cors(ctx)
}

// requestID returns the client's id if it has 1 to 128 visible ASCII bytes, or a new one.
func requestID(given []byte) string {
	if len(given) > 0 && len(given) <= maxRequestIDBytes && visible(given) {
		return string(given)
	}
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	var id [2 * len(b)]byte
	hex.Encode(id[:], b[:])
	return string(id[:])
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

// takeCall reads a call and applies the limits of its client.
func (s *Server) takeCall(ctx *fasthttp.RequestCtx, ep openai.Endpoint, to converter, x *exchange) error {
	if err := s.readCall(ctx, ep, to, x); err != nil {
		return err
	}
	if e := s.hold(&x.call, ctx); e != nil {
		return e
	}
	return nil
}

// readCall checks a request to a generating endpoint and reads its body. Nothing in call refers to fasthttp's memory.
func (s *Server) readCall(ctx *fasthttp.RequestCtx, ep openai.Endpoint, to converter, x *exchange) error {
	r, call := &x.conn.request, &x.call
	client, own := ctx.Conn().(*conn).Ends()
	*call = handoff.Call{ID: r.id, Arrival: r.arrival, Client: client, Server: own}
	var h head
	h.read(&ctx.Request.Header)
	call.Session = h.session()
	if v := h[headPriority]; v != nil {
		n, err := strconv.ParseInt(string(v), 10, 32)
		if err != nil {
			return openai.BadRequest(strings.ToLower(headerPriority), "it must be an integer between -2147483648 and 2147483647")
		}
		p := int32(n)
		call.Priority = &p
	}
	if v := h[headStrictPriority]; v != nil {
		n, err := strconv.ParseUint(string(v), 10, 32)
		if err != nil {
			return openai.BadRequest(strings.ToLower(headerStrictPriority), "it must be an integer between 0 and 4294967295")
		}
		p := uint32(n)
		call.StrictPriority = &p
	}
	call.PolicyClass = string(bytes.TrimSpace(h[headPolicyClass]))
	if err := readPins(&h, &call.Pins); err != nil {
		return err
	}
	if err := s.hop(call, h[headGateway]); err != nil {
		return err
	}
	if h[headTraceParent] != nil {
		passTrace(call, &ctx.Request.Header)
	}
	passFields(call, &ctx.Request.Header, s.forward)
	if ep.Method() == http.MethodGet {
		call.Request = &openai.Request{Endpoint: ep, Model: string(ctx.QueryArgs().Peek("model"))}
		return nil
	}
	// (Fiber's c.Body() would read and decompress without a limit.)
	raw, err := s.readBody(ctx, s.cfg.MaxBodyBytes)
	if err != nil {
		return err
	}
	if len(raw) == 0 {
		return openai.BadRequest("", "the body is empty; it must be a JSON object")
	}
	if to != nil {
		converted, err := s.convert(to, raw, r)
		if err != nil {
			return err
		}
		raw, x.answer, call.OnPrompt = converted.Chat, converted.Answer, x.prompt
	}
	call.Body = r.body
	if call.Request, err = (openai.Limits{MaxBytes: s.cfg.MaxBodyBytes}).Scan(ep, raw); err != nil {
		return err
	}
	extra := call.Request.Extra()
	if !s.bodies.take(extra) {
		return s.bodies.exhausted()
	}
	r.held += extra
	if ring := s.keys.Load(); s.cfg.SaltByKey && ring.client != nil {
		key, _ := ring.clientKey(&ctx.Request.Header)
		call.Request.Isolate(key)
	}
	return nil
}

// malformed refuses a head that proxies may parse differently than fasthttp, which allows request smuggling: two
// declarations of the body's length (fasthttp hides one); a Transfer-Encoding other than chunked, which
// fasthttp treats as no body; and folded fields. It reads the raw lines.
func malformed(raw []byte) *openai.Error {
	length, coding, recoded := false, false, false
	for line := range bytes.Lines(raw) {
		name, value, _ := bytes.Cut(line, []byte(":"))
		length = length || bytes.EqualFold(name, []byte("Content-Length"))
		if bytes.EqualFold(name, []byte("Transfer-Encoding")) {
			coding = true
			recoded = recoded || !bytes.EqualFold(bytes.TrimSpace(value), []byte("chunked"))
		}
	}
	var e *openai.Error
	switch {
	case length && coding:
		e = openai.BadRequest("", "the request has both Content-Length and Transfer-Encoding")
		e.Code = "ambiguous_length"
		return e
	case recoded:
		e = openai.BadRequest("", "Transfer-Encoding is something else than chunked")
	case bytes.Contains(raw, []byte("\n ")) || bytes.Contains(raw, []byte("\n\t")):
		e = openai.BadRequest("", "a header field is folded over several lines")
	default:
		return nil
	}
	e.Code = "malformed_request"
	return e
}
