package edge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/valyala/fasthttp"

	"github.com/tandem-pd/tandem/cmd/gateway/dialect"
	"github.com/tandem-pd/tandem/internal/openai"
)

// refuse answers and logs a request that never reached the flow, which logs its own. Log lines are limited per kind,
// since anyone can cause them; the metrics count all.
func (s *Server) refuse(ctx *fasthttp.RequestCtx, r *request, e *openai.Error) {
	s.logRefusal(ctx, r, e)
	s.writeError(ctx, r.id, e)
}

// logRefusal logs a refusal without answering.
func (s *Server) logRefusal(ctx *fasthttp.RequestCtx, r *request, e *openai.Error) {
	if suppressed, ok := s.refusals.Allow(r.endpoint+" "+e.Code, time.Now()); ok {
		s.log.LogAttrs(context.Background(), slog.LevelInfo, "request refused",
			slog.String("request_id", r.id), slog.String("endpoint", r.endpoint),
			slog.String("method", string(ctx.Method())), slog.String("path", fmt.Sprintf("%.128s", ctx.Path())),
			slog.Int("status", e.Status), slog.String("code", e.Code), slog.String("param", e.Param),
			slog.String("client", ctx.RemoteAddr().String()), slog.Int("suppressed", suppressed))
	}
}

// writeError makes e the response, in the client's dialect.
func (s *Server) writeError(ctx *fasthttp.RequestCtx, id string, e *openai.Error) {
	r := &ctx.Response
	r.ResetBody()
	r.SetStatusCode(e.Status)
	r.Header.SetContentType("application/json")
	if e.Status == http.StatusUnauthorized {
		r.Header.Set("WWW-Authenticate", "Bearer")
	}
	e.SetRetry(r.Header.Set, rand.Float64)
	if e.Final {
		r.Header.Set("X-Should-Retry", "false") // respected by OpenAI's and Anthropic's libraries
	}
	if anthropic(ctx) {
		r.SetStatusCode(dialect.MessagesStatus(e))
		r.Header.Set(headerAnthropicID, id)
		r.SetBody(dialect.AppendMessagesError(nil, e, id))
		return
	}
	r.SetBody(e.Append(nil, id))
}

// hangUp closes the connection after the response, draining unread bytes.
func (s *Server) hangUp(ctx *fasthttp.RequestCtx, c *conn) {
	ctx.SetConnectionClose()
	c.LingerFor(2 * int64(s.cfg.MaxBodyBytes))
}

// writeParseError answers bytes that are not an HTTP request, and closes the connection. The errors quote the request, so none
// is sent.
func (s *Server) writeParseError(ctx *fasthttp.RequestCtx, err error) {
	c := ctx.Conn().(*conn)
	silent := c.Silent()
	var r request
	r.begin(ctx, c)
	if silent && lost(err) {
		c.Leave() // no byte arrived: there is no request to answer
		return
	}
	s.unreadable(ctx, c, &r, err)
	s.metrics.count(r.endpoint, ctx.Response.StatusCode())
}

// unreadable ends a request that could not be read completely.
func (s *Server) unreadable(ctx *fasthttp.RequestCtx, c *conn, r *request, err error) {
	var network net.Error
	if lost(err) && !(errors.As(err, &network) && network.Timeout()) {
		c.Leave()
		ctx.SetStatusCode(statusClientLeft) // for the metrics: writes fail
		ctx.SetConnectionClose()
		return
	}
	s.hangUp(ctx, c)
	s.refuse(ctx, r, s.explainBroken(err, c.Late()))
}

// lost reports whether err is the connection's rather than the request's.
func lost(err error) bool {
	var network net.Error
	return errors.As(err, &network)
}

// explainBroken returns the client's error; late reports a read time-out, which err may not show.
func (s *Server) explainBroken(err error, late bool) *openai.Error {
	var timeout net.Error
	switch {
	case errors.As(err, new(*fasthttp.ErrSmallBuffer)):
		return &openai.Error{Status: http.StatusRequestHeaderFieldsTooLarge, Code: "header_too_large",
			Message: fmt.Sprintf("the request's head is larger than %d bytes", headBytes)}
	case late, errors.As(err, &timeout) && timeout.Timeout():
		return openai.RequestTimeout(s.cfg.ReadTimeout)
	default:
		e := openai.BadRequest("", "the request cannot be read as HTTP/1.1")
		e.Code = "malformed_request"
		return e
	}
}

// routeError is Fiber's error handler: for a handler's *openai.Error, or for a path or method without a route.
func (s *Server) routeError(c *fiber.Ctx, err error) error {
	ctx := c.Context()
	cn := ctx.Conn().(*conn)
	r := &cn.request
	var e *openai.Error
	var cause errUnreadable
	if errors.As(err, &cause) {
		s.unreadable(ctx, cn, r, cause.error)
		return nil
	}
	if !errors.As(err, &e) {
		// A client without access must not learn which paths exist.
		if e = cn.frontend.shut(&ctx.Request.Header); e == nil {
			e = s.explainRoute(ctx, cn.frontend, r, err)
		}
	}
	s.refuse(ctx, r, e)
	return nil
}

func (s *Server) explainRoute(ctx *fasthttp.RequestCtx, f *frontend, r *request, err error) *openai.Error {
	var fe *fiber.Error
	switch {
	case errors.As(err, &fe) && fe.Code == http.StatusNotFound:
		path, _, _ := strings.Cut(string(ctx.RequestURI()), "?")
		return openai.NotFound(string(ctx.Method()), path, f.meant(path))
	case errors.As(err, &fe) && fe.Code == http.StatusMethodNotAllowed:
		return openai.MethodNotAllowed(string(ctx.Method()), string(ctx.Path()))
	default:
		s.log.Error("handler failed", "request_id", r.id, "error", err)
		return openai.Internal()
	}
}

// rescue turns a panic on the connection's goroutine into a 500.
func (s *Server) rescue(ctx *fasthttp.RequestCtx, c *conn) {
	if v := recover(); v != nil {
		s.log.Error("panic in a handler", "request_id", c.request.id, "panic", v, "stack", string(debug.Stack()))
		c.Unwatch()
		s.writeError(ctx, c.request.id, openai.Internal())
		s.hangUp(ctx, c)
	}
}
