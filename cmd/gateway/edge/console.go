package edge

import (
	"bytes"
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/gofiber/fiber/v2"
	"github.com/valyala/fasthttp"

	"github.com/tandem-pd/tandem/internal/auth"
	"github.com/tandem-pd/tandem/internal/openai"
)

// Console is the operators' live page. It is safe for concurrent use.
type Console interface {
	// Page renders a path with its query.
	Page(path, query string) Page
	// SignIn renders the page that requests an operator's key; wrong reports that the last key was invalid.
	SignIn(wrong bool) Page
	// Watch opens a stream of events. next waits for the next ones and returns them as text/event-stream, valid until
	// its next call; its error is ctx's. Call leave at the end. ok is false if too many viewers watch.
	Watch() (next func(ctx context.Context) ([]byte, error), leave func(), ok bool)
}

// Page is one answer of the console.
type Page struct {
	Status      int
	ContentType string
	Body        []byte
	Tag         string // an ETag if the page may be cached, or empty
}

const (
	// ticketCookie holds the ticket of a sign-in, for ticketTime.
	ticketCookie = "tandem_console"
	ticketTime   = 12 * time.Hour
	// maxFormBytes bounds the sign-in form.
	maxFormBytes = 4 << 10
)

func (f *frontend) consoleRoutes() []route {
	page := func(c *fiber.Ctx) error {
		return writePage(c, f.s.cfg.Console.Page(string(c.Context().Path()), string(c.Context().URI().QueryString())))
	}
	return []route{
		{http.MethodGet, "/", "console", viewers, 0, page},
		{http.MethodGet, "/console/stream", "console", viewers, 0, f.watch},
		{http.MethodGet, "/static/*", "console", anybody, 0, page},
		{http.MethodGet, "/console/*", "console", viewers, 0, page},
		{http.MethodGet, "/signin", "console", anybody, 0, func(c *fiber.Ctx) error { return writePage(c, f.s.cfg.Console.SignIn(false)) }},
		{http.MethodPost, "/signin", "console", anybody, maxFormBytes, f.signIn},
		{http.MethodPost, "/signout", "console", anybody, 0, f.signOut},
	}
}

// takesForm reports whether the route reads a form instead of JSON.
func (r *route) takesForm() bool { return r.path == "/signin" && r.method == http.MethodPost }

// isForm refuses a body that is not a form, or from a page of another origin.
func isForm(h *fasthttp.RequestHeader) *openai.Error {
	media, _, _ := bytes.Cut(h.ContentType(), []byte(";"))
	if !bytes.EqualFold(bytes.TrimSpace(media), []byte("application/x-www-form-urlencoded")) {
		return openai.UnsupportedMedia("Content-Type: " + string(h.ContentType()))
	}
	return sameOrigin(h)
}

// sameOrigin refuses requests from pages of another origin.
func sameOrigin(h *fasthttp.RequestHeader) *openai.Error {
	site := string(h.Peek("Sec-Fetch-Site"))
	u, err := url.Parse(string(h.Peek("Origin")))
	foreign := has(h, "Origin") && (err != nil || !strings.EqualFold(u.Host, string(h.Host())))
	if foreign || site != "" && site != "same-origin" && site != "none" {
		return &openai.Error{Status: http.StatusForbidden, Code: "origin_not_allowed",
			Message: "the request comes from a page of another origin"}
	}
	return nil
}

// signedIn reports whether a request carries an operator's key, or the console's ticket for one.
func signedIn(keys auth.Keys, h *fasthttp.RequestHeader) bool {
	return keys.Hold(bearer(h)) || keys.HoldTicket(h.Cookie(ticketCookie), time.Now())
}

// signIn sets a ticket for an operator's key.
func (f *frontend) signIn(c *fiber.Ctx) error {
	s, ctx := f.s, c.Context()
	body, err := s.readBody(ctx, maxFormBytes)
	if err != nil {
		return err
	}
	form, _ := url.ParseQuery(string(body)) // an unreadable form has no key
	digest, ring := auth.Bearer("Bearer "+form.Get("key")), s.keys.Load()
	if ring.admin != nil && !ring.admin.Hold(digest) {
		e := openai.Unauthorized()
		e.Code = "invalid_admin_key"
		s.logRefusal(ctx, &ctx.Conn().(*conn).request, e)
		return writePage(c, s.cfg.Console.SignIn(true))
	}
	if ring.admin != nil {
		setTicket(ctx, digest.Ticket(time.Now().Add(ticketTime)), ticketTime)
	}
	ctx.Response.Header.Set("Location", "/")
	ctx.SetStatusCode(http.StatusSeeOther)
	return nil
}

// signOut clears the ticket.
func (f *frontend) signOut(c *fiber.Ctx) error {
	setTicket(c.Context(), "", -time.Second)
	page := f.s.cfg.Console.SignIn(false)
	page.Status = http.StatusOK
	return writePage(c, page)
}

// setTicket sets the ticket as a cookie for this gateway's own pages only.
func setTicket(ctx *fasthttp.RequestCtx, ticket string, valid time.Duration) {
	cookie := http.Cookie{
		Name: ticketCookie, Value: ticket, Path: "/", MaxAge: int(valid.Seconds()), HttpOnly: true, SameSite: http.SameSiteStrictMode,
		Secure: bytes.HasPrefix(ctx.Request.Header.Peek("Origin"), []byte("https:")), // with TLS, ours or a proxy's
	}
	ctx.Response.Header.Add("Set-Cookie", cookie.String())
}

// policy restricts the console's pages to what this gateway serves.
const policy = "default-src 'self'; img-src 'self' data:; object-src 'none'; base-uri 'none'; " +
	"form-action 'self'; frame-ancestors 'none'"

func writePage(c *fiber.Ctx, p Page) error {
	h := &c.Context().Response.Header
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin") // stricter policies make browsers send the sign-in with Origin: null
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.SetContentType(p.ContentType)
	switch {
	case p.Tag == "":
		h.Set("Cache-Control", "no-store")
	case string(c.Context().Request.Header.Peek("If-None-Match")) == p.Tag:
		h.Set("ETag", p.Tag)
		c.Context().SetStatusCode(http.StatusNotModified)
		return nil
	default:
		h.Set("ETag", p.Tag)
		h.Set("Cache-Control", "no-cache") // revalidated each time by the tag
	}
	if p.Status == http.StatusUnauthorized {
		h.Set("WWW-Authenticate", "Bearer")
	}
	c.Context().SetStatusCode(p.Status)
	c.Context().Response.SetBody(p.Body)
	return nil
}

// watch streams the console's events until the viewer leaves or the frontend shuts down.
func (f *frontend) watch(c *fiber.Ctx) error {
	ctx := c.Context()
	cn := ctx.Conn().(*conn)
	if e := sameOrigin(&ctx.Request.Header); e != nil { // a page of another origin could use up all viewers
		return e
	}
	h := &ctx.Response.Header
	h.SetContentType(openai.EventStream)
	if ctx.IsHead() {
		return nil
	}
	next, leave, ok := f.s.cfg.Console.Watch()
	if !ok {
		e := openai.Unavailable("too_many_viewers", "as many pages are open as the console serves at a time")
		e.RetryAfter = 10 * time.Second
		return e
	}
	defer leave()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // for nginx in front of us
	h.Set("X-Content-Type-Options", "nosniff")
	h.SetContentLength(-2) // until the connection's end, which every version of HTTP/1 supports
	h.SetConnectionClose()
	cn.request.streamed = true
	cn.state.releaseReader()
	watching, end := context.WithCancel(f.ending)
	defer end()
	cn.OnLeave(end)
	defer cn.Unwatch()
	status := http.StatusOK
	for part := h.Header(); ; {
		if _, err := cn.Write(part); err != nil {
			status = statusClientLeft
			break
		}
		var err error
		if part, err = next(watching); err != nil {
			break
		}
	}
	f.s.metrics.count(cn.request.endpoint, status)
	return nil
}

// mayPage answers a browser's request without a key with the sign-in page, and reports whether it did.
func (f *frontend) mayPage(c *fiber.Ctx, r *route, e *openai.Error) (bool, error) {
	ctx := c.Context()
	html := strings.Contains(string(ctx.Request.Header.Peek("Accept")), "text/html")
	if r.access != viewers || e.Status != http.StatusUnauthorized || !html {
		return false, nil
	}
	return true, writePage(c, f.s.cfg.Console.SignIn(false))
}
