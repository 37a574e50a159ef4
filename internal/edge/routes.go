package edge

import (
	"encoding/json"
	"net/http"
	"net/url"

	"github.com/gofiber/fiber/v2"
	"github.com/gofiber/fiber/v2/middleware/adaptor"

	"github.com/tandem-pd/tandem/internal/openai"
)

// route registers what answers path, for whom door lets in. Fiber answers HEAD
// wherever there is a GET, and 405 with Allow for the other methods. h reads a
// body by readBody, if at all: nothing else bounds it.
func (f *face) route(method, path, endpoint string, d door, h fiber.Handler) {
	f.app.Add(method, path, func(c *fiber.Ctx) error {
		ctx := c.Context()
		ctx.Conn().(*conn).request.endpoint = endpoint
		if e := f.admit(d, &ctx.Request.Header, ctx.RemoteAddr()); e != nil {
			return e
		}
		if method != http.MethodPost {
			ctx.Request.ResetBody() // the adaptor of /metrics would read it
		}
		return h(c)
	})
}

func (f *face) routes(metrics http.Handler) {
	s := f.s
	look := func(path, endpoint string, d door, h fiber.Handler) {
		f.route(http.MethodGet, path, endpoint, d, h)
		f.route(http.MethodHead, path, endpoint, d, h)
	}
	look("/health", "health", anybody, s.health)
	look("/live", "live", anybody, s.alive)
	if f.serves {
		for _, ep := range []openai.Endpoint{openai.Chat, openai.Completions} {
			f.route(http.MethodPost, ep.Path(), ep.String(), clients, func(c *fiber.Ctx) error { return s.generate(c, ep) })
		}
		look("/v1/models", "models", clients, s.models)
		look("/v1/models/*", "models", clients, s.model) // ids hold slashes
	}
	if f.operates {
		look("/workers", "workers", operators, s.workers)
		look("/busy_threshold", "busy_threshold", operators, s.thresholds)
		f.route(http.MethodPost, "/busy_threshold", "busy_threshold", changes, s.setThresholds)
		look("/metrics", "metrics", operators, adaptor.HTTPHandler(metrics))
		for action, on := range map[string]bool{"cordon": true, "uncordon": false, "drain": true} {
			f.route(http.MethodPost, "/workers/:id/"+action, "workers", changes, func(c *fiber.Ctx) error { return s.cordon(c, action, on) })
		}
	}
}

// generate hands a call to the flow.
func (s *Server) generate(c *fiber.Ctx, ep openai.Endpoint) error {
	ctx := c.Context()
	cn := ctx.Conn().(*conn)
	call, err := s.readCall(ctx, ep, cn.request)
	if err != nil {
		return err
	}
	if e := s.hold(&call, ctx); e != nil {
		s.bodies.give(cap(call.Request.Raw))
		return e
	}
	pass(&call, &ctx.Request.Header, s.forward)
	x := newExchange(s, cn)
	x.begin(call)
	x.answer(ctx)
	return nil
}

// models lists the models that can be asked for.
func (s *Server) models(c *fiber.Ctx) error {
	list := openai.ModelList{Object: "list", Data: s.cat.Models()}
	if list.Data == nil {
		list.Data = []openai.Model{}
	}
	return writeJSON(c, http.StatusOK, list)
}

// model describes one model.
func (s *Server) model(c *fiber.Ctx) error {
	id, err := url.PathUnescape(c.Params("*"))
	if err != nil {
		return openai.BadRequest("model", "the model's name in the path is not escaped properly")
	}
	for _, m := range s.cat.Models() {
		if m.ID == id {
			return writeJSON(c, http.StatusOK, m)
		}
	}
	return openai.NotFoundModel(id)
}

// health says whether requests can be served: 503 until each pool that is
// needed has a worker, and again once a shutdown has begun.
func (s *Server) health(c *fiber.Ctx) error {
	ready, detail := s.cat.Ready()
	status, code := "healthy", http.StatusOK
	switch {
	case s.leaving.Load(), s.draining.Load():
		status, code = "draining", http.StatusServiceUnavailable
	case !ready:
		status, code = "unhealthy", http.StatusServiceUnavailable
	}
	return writeJSON(c, code, struct {
		Status string `json:"status"`
		Detail any    `json:"detail,omitempty"`
	}{status, detail})
}

// alive says that the process runs.
func (s *Server) alive(c *fiber.Ctx) error {
	return writeJSON(c, http.StatusOK, struct {
		Status string `json:"status"`
	}{"live"})
}

func writeJSON(c *fiber.Ctx, status int, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	c.Context().SetStatusCode(status)
	c.Context().Response.Header.SetContentType("application/json")
	c.Context().Response.SetBody(b)
	return nil
}
