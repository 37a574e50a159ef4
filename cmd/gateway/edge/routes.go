package edge

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/gofiber/fiber/v2"
	"github.com/gofiber/fiber/v2/middleware/adaptor"
	"github.com/valyala/fasthttp"

	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/openai"
)

// maxAdminBytes bounds an admin request's body.
const maxAdminBytes = 64 << 10

// route is one row of a frontend's table. Nothing without a row is served, and the checks of a request's head follow
// from the rows, so a new path cannot miss them.
type route struct {
	method, path string
	endpoint     string // for the metrics
	access       access
	body         int // largest body in bytes; 0 for none
	serve        fiber.Handler
}

// area is what the routes of one first segment have in common: the strictest access known before their handlers, and
// the largest body.
type area struct {
	access access
	body   int
}

func (f *frontend) table(metrics http.Handler) []route {
	s := f.s
	rows := []route{
		{http.MethodHead, "/", "live", anybody, 0, s.alive}, // Claude Code's probe
		{http.MethodGet, "/health", "health", anybody, 0, s.health},
		{http.MethodGet, "/healthz", "health", anybody, 0, s.health},
		{http.MethodGet, "/readyz", "health", anybody, 0, s.health},
		{http.MethodGet, "/ping", "health", anybody, 0, s.health},
		{http.MethodGet, "/live", "live", anybody, 0, s.alive},
		{http.MethodGet, "/livez", "live", anybody, 0, s.alive},
		{http.MethodGet, "/version", "version", anybody, 0, s.version},
		{http.MethodGet, documentPath, "openapi", anybody, 0, f.describe},
	}
	if f.serves {
		for ep := range openai.Endpoints() {
			body := s.cfg.MaxBodyBytes
			if ep.Method() == http.MethodGet {
				body = 0
			}
			for _, path := range ep.Paths() {
				rows = append(rows, route{ep.Method(), path, ep.String(), clients, body, func(c *fiber.Ctx) error { return s.generate(c, ep, nil) }})
			}
		}
		rows = append(rows, s.dialectRoutes()...)
		rows = append(rows,
			route{http.MethodGet, "/load", "load", clients, 0, s.load},
			route{http.MethodGet, "/v1/models", "models", clients, 0, s.models},
			route{http.MethodGet, "/v1/models/*", "models", clients, 0, s.model}) // ids hold slashes
	}
	if f.operates {
		rows = append(rows,
			route{http.MethodGet, "/workers", "workers", operators, 0, s.workers},
			route{http.MethodGet, "/plan", "plan", operators, 0, s.plan},
			route{http.MethodGet, "/events", "events", operators, 0, s.past},
			route{http.MethodGet, "/problems", "problems", operators, 0, s.problems},
			route{http.MethodGet, "/requests", "requests", operators, 0, s.past},
			route{http.MethodGet, "/busy_threshold", "busy_threshold", operators, 0, s.thresholds},
			route{http.MethodPost, "/busy_threshold", "busy_threshold", changes, maxAdminBytes, s.setThresholds},
			route{http.MethodGet, "/metrics", "metrics", operators, 0, adaptor.HTTPHandler(metrics)})
		rows = append(rows, route{http.MethodPost, "/workers/:id/forget", "workers", changes, 0, s.forget})
		for action, on := range map[string]bool{"cordon": true, "uncordon": false, "drain": true, "move": true} {
			rows = append(rows, route{http.MethodPost, "/workers/:id/" + action, "workers", changes, 0,
				func(c *fiber.Ctx) error { return s.cordon(c, action, on) }})
		}
	}
	if f.operates && s.cfg.Console != nil {
		rows = append(rows, f.consoleRoutes()...)
	}
	return rows
}

// register adds the routes, clients' also without /v1, and describes them. Fiber answers other methods with 405 and Allow.
func (f *frontend) register(rows []route) {
	f.areas, f.paths, f.document = map[string]area{}, map[string]bool{}, document(rows, f.s.cfg.Version)
	for _, r := range rows {
		f.add(r)
		rest, client := strings.CutPrefix(r.path, "/v1/")
		if !client {
			continue
		}
		for _, before := range f.s.bases() {
			r.path = before + rest
			f.add(r)
		}
	}
}

// add adds a route, with HEAD for GET.
func (f *frontend) add(r route) {
	first := string(firstSegment([]byte(r.path)))
	a := f.areas[first]
	f.areas[first] = area{max(a.access, min(r.access, operators)), max(a.body, r.body)}
	f.paths[r.path] = true
	f.app.Add(r.method, r.path, r.handle(f))
	if r.method == http.MethodGet {
		f.app.Add(http.MethodHead, r.path, r.handle(f))
	}
}

// bases returns what client libraries have in place of /v1/: nothing, and with azure-paths the paths of Azure's.
func (s *Server) bases() []string {
	if s.cfg.AzurePaths {
		return []string{"/", "/openai/v1/", "/openai/deployments/:" + deployment + "/"}
	}
	return []string{"/"}
}

// deployment is the part of an Azure path that names the model where the body does not.
const deployment = "deployment"

// meant names a route close to a path without one, or all: client libraries append theirs to a base URL that ends in a
// slash, lacks /v1 or already has it, or is another service's.
func (f *frontend) meant(path string) string {
	parts := strings.FieldsFunc(path, func(r rune) bool { return r == '/' })
	for i := range min(len(parts), 8) {
		rest := "/" + strings.Join(parts[i:], "/")
		for _, p := range [...]string{"/v1" + rest, rest} {
			if p != path && (f.paths[p] || f.serves && strings.HasPrefix(p, "/v1/models/")) {
				return "the path is " + p
			}
		}
	}
	return "GET " + documentPath + " lists the paths"
}

// handle checks a request's head, then serves it. Handlers must read bodies with readBody, which bounds them. The
// body's budget is always released.
func (r route) handle(f *frontend) fiber.Handler {
	return func(c *fiber.Ctx) error {
		ctx := c.Context()
		h := &ctx.Request.Header
		cn := ctx.Conn().(*conn)
		defer f.s.bodies.release(&cn.request)
		cn.request.endpoint = r.endpoint
		if e := f.admit(r.access, h, ctx.RemoteAddr()); e != nil {
			if done, err := f.mayPage(c, &r, e); done {
				return err
			}
			return e
		}
		if _, e := coding(h); e != nil {
			return e
		}
		if r.body == 0 {
			ctx.Request.ResetBody() // else the adaptor of /metrics would read it
		} else if e := r.media(h); e != nil {
			return e
		}
		return r.serve(c)
	}
}

// media refuses a body of the wrong type.
func (r *route) media(h *fasthttp.RequestHeader) *openai.Error {
	if r.takesForm() {
		return isForm(h)
	}
	return isJSON(h)
}

// generate hands a call to the flow; to, if not nil, makes a chat of it.
func (s *Server) generate(c *fiber.Ctx, ep openai.Endpoint, to converter) error {
	ctx := c.Context()
	cn := ctx.Conn().(*conn)
	x := &exchange{s: s, conn: cn, ctx: ctx, out: http1.Answer{Conn: cn.ServerConn, Plain: !ctx.Request.Header.IsHTTP11()}}
	err := s.takeCall(ctx, ep, to, x)
	if model := c.Params(deployment); err == nil && x.call.Request.Model == "" && model != "" {
		x.call.Request.Model = strings.Clone(model)
	}
	if err == nil {
		x.serve()
	}
	return err
}

// health reports whether requests can be served: 503 until each required pool has a worker, and during a shutdown.
func (s *Server) health(c *fiber.Ctx) error {
	status, detail := s.condition()
	code := http.StatusOK
	if status != healthy {
		code = http.StatusServiceUnavailable
	}
	return writeJSON(c, code, struct {
		Status string `json:"status"`
		Detail any    `json:"detail,omitempty"`
	}{status, detail})
}

// healthy is the status of a gateway that serves.
const healthy = "healthy"

func (s *Server) condition() (status string, detail any) {
	ready, detail := s.cat.Ready()
	switch {
	case s.leaving.Load(), s.draining.Load():
		return "draining", detail
	case !ready:
		return "unhealthy", detail
	}
	return healthy, detail
}

// version answers as vLLM does.
func (s *Server) version(c *fiber.Ctx) error {
	return writeJSON(c, http.StatusOK, map[string]string{"version": s.cfg.Version})
}

// load answers as vLLM does, with the number of requests that run or wait.
func (s *Server) load(c *fiber.Ctx) error {
	return writeJSON(c, http.StatusOK, map[string]int{"server_load": s.InFlight()})
}

// alive reports that the process runs.
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
