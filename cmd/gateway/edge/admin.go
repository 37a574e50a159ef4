package edge

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"strings"

	"github.com/gofiber/fiber/v2"
	"github.com/valyala/fasthttp"

	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router/replica"
)

// Standing is a worker's state in answers to POST below /workers: whether it can be chosen, and what is booked on it.
type Standing struct {
	Worker        string     `json:"id"`
	Model         string     `json:"model"`
	Role          pools.Role `json:"role"`
	State         string     `json:"state"`
	Requests      int        `json:"requests"`
	ActiveBlocks  int        `json:"active_blocks"`
	PrefillTokens int        `json:"prefill_tokens"`
	// Kept reports whether the change outlives the gateway.
	Kept replica.Storage `json:"kept"`
}

// workers lists the pools.
func (s *Server) workers(c *fiber.Ctx) error { return writeJSON(c, http.StatusOK, s.cat.Workers()) }

// past lists what happened.
func (s *Server) past(c *fiber.Ctx) error {
	q, err := url.ParseQuery(string(c.Context().URI().QueryString()))
	if err != nil {
		return openai.BadRequest("", "the query of the path is not escaped properly")
	}
	report, e := s.cat.Past(string(c.Context().Path()), q)
	if e != nil {
		return e
	}
	return writeJSON(c, http.StatusOK, report)
}

// problems lists what is wrong.
func (s *Server) problems(c *fiber.Ctx) error { return writeJSON(c, http.StatusOK, s.cat.Problems()) }

// plan lists the models' plans.
func (s *Server) plan(c *fiber.Ctx) error { return writeJSON(c, http.StatusOK, s.cat.Plan()) }

// cordon takes a worker out of the choice, or back in. It is idempotent. Each call is logged.
func (s *Server) cordon(c *fiber.Ctx, action string, on bool) error {
	id := strings.Clone(c.Params("id")) // the roster keeps it beyond the request
	standing, err := s.cat.Cordon(id, on, action == "move")
	e := explainCordon(err)
	s.administered(c.Context(), action, e, slog.String("worker", id[:min(len(id), pools.MaxIDBytes)]),
		slog.Int("requests", standing.Requests), slog.String("kept", string(standing.Kept)))
	if e != nil {
		return e
	}
	return writeJSON(c, http.StatusOK, standing)
}

// forget removes a lost worker from this gateway's list.
func (s *Server) forget(c *fiber.Ctx) error {
	id := strings.Clone(c.Params("id"))
	e := explainCordon(s.cat.Forget(id))
	s.administered(c.Context(), "forget", e, slog.String("worker", id[:min(len(id), pools.MaxIDBytes)]))
	if e != nil {
		return e
	}
	return writeJSON(c, http.StatusOK, Standing{Worker: id, State: "forgotten", Kept: replica.NotStored})
}

// administered logs an operator's change.
func (s *Server) administered(ctx *fasthttp.RequestCtx, action string, e *openai.Error, whom ...slog.Attr) {
	outcome, level := "done", slog.LevelInfo
	if e != nil {
		outcome, level = e.Code, slog.LevelWarn
	}
	s.log.LogAttrs(context.Background(), level, "administration", append(whom,
		slog.String("action", action), slog.String("outcome", outcome), slog.String("peer", ctx.RemoteAddr().String()),
		slog.String("request_id", ctx.Conn().(*conn).request.id))...)
}

// explainCordon returns the client's error for the catalog's.
func explainCordon(err error) *openai.Error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, pools.ErrUnknownWorker):
		return &openai.Error{Status: http.StatusNotFound, Code: "worker_not_found", Param: "id",
			Message: "there is no such worker; GET /workers lists them"}
	case errors.Is(err, pools.ErrNotLost):
		return &openai.Error{Status: http.StatusConflict, Code: "worker_not_lost", Param: "id", Message: pools.ErrNotLost.Error()}
	case errors.Is(err, pools.ErrTooManyCordons):
		return &openai.Error{Status: http.StatusConflict, Code: "too_many_cordons",
			Message: pools.ErrTooManyCordons.Error()}
	default:
		return openai.Internal()
	}
}
