package edge

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"

	"github.com/gofiber/fiber/v2"
	"github.com/valyala/fasthttp"

	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/kept"
)

// Standing is how a worker stands, as the answer of a POST below /workers has it: whether it can be chosen, and what
// is still booked on it.
type Standing struct {
	Worker        string     `json:"id"`
	Model         string     `json:"model"`
	Role          pools.Role `json:"role"`
	State         string     `json:"state"`
	Requests      int        `json:"requests"`
	ActiveBlocks  int        `json:"active_blocks"`
	PrefillTokens int        `json:"prefill_tokens"`
	// Kept is whether the change outlives the gateway.
	Kept kept.Answer `json:"kept"`
}

// workers shows the pools.
func (s *Server) workers(c *fiber.Ctx) error { return writeJSON(c, http.StatusOK, s.cat.Workers()) }

// cordon takes a worker out of the choice, or back in. Saying it twice changes nothing. Each is a line in the log,
// whatever comes of it: who, what, whom.
func (s *Server) cordon(c *fiber.Ctx, action string, on bool) error {
	id := strings.Clone(c.Params("id")) // it outlives the request in the roster
	standing, err := s.cat.Cordon(id, on, action == "move")
	e := explainCordon(err)
	s.administered(c.Context(), action, e, slog.String("worker", id[:min(len(id), pools.MaxIDBytes)]), slog.Int("requests", standing.Requests), slog.String("kept", string(standing.Kept)))
	if e != nil {
		return e
	}
	return writeJSON(c, http.StatusOK, standing)
}

// forget takes a lost worker off the list of this gateway.
func (s *Server) forget(c *fiber.Ctx) error {
	id := strings.Clone(c.Params("id"))
	e := explainCordon(s.cat.Forget(id))
	s.administered(c.Context(), "forget", e, slog.String("worker", id[:min(len(id), pools.MaxIDBytes)]))
	if e != nil {
		return e
	}
	return writeJSON(c, http.StatusOK, Standing{Worker: id, State: "forgotten", Kept: kept.No})
}

// administered logs a change that an operator asked for.
func (s *Server) administered(ctx *fasthttp.RequestCtx, action string, e *openai.Error, whom ...slog.Attr) {
	outcome, level := "done", slog.LevelInfo
	if e != nil {
		outcome, level = e.Code, slog.LevelWarn
	}
	s.log.LogAttrs(context.Background(), level, "administration", append(whom,
		slog.String("action", action), slog.String("outcome", outcome), slog.String("peer", ctx.RemoteAddr().String()),
		slog.String("request_id", ctx.Conn().(*conn).request.id))...)
}

// explainCordon turns the catalog's error into the one that is sent.
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
