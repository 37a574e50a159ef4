package edge

import (
	"bytes"
	"cmp"
	"net"
	"net/http"
	"strings"

	"github.com/valyala/fasthttp"

	"github.com/tandem-pd/tandem/internal/auth"
	"github.com/tandem-pd/tandem/internal/browser"
	"github.com/tandem-pd/tandem/internal/openai"
)

// access is who may ask for a route.
type access uint8

const (
	// anybody: no key.
	anybody access = iota
	// clients need a client's or an operator's key, where clients need any.
	clients
	// viewers need an operator's key, where there are any, or the ticket that the console's browser has for one: to look.
	viewers
	// operators need an operator's key, where there are any: to look.
	operators
	// changes need an operator's key. Without any they are taken on the address for administration, or from this
	// machine.
	changes
)

const headerAuthorization = "Authorization"

// areaOf is the area of a request's target: its access can be checked before the body is read, and where there is no
// route. What is unsure is open here: each route checks its own access.
func (f *frontend) areaOf(h *fasthttp.RequestHeader) area {
	return f.areas[string(firstSegment(h.RequestURI()))]
}

// firstSegment is the first segment of a target's path.
func firstSegment(target []byte) []byte {
	if i := bytes.IndexAny(target, "?#"); i >= 0 {
		target = target[:i]
	}
	first, _, _ := bytes.Cut(bytes.TrimPrefix(target, []byte("/")), []byte("/"))
	return first
}

// admit returns why a request is refused: a 401 or a 403, or nil. peer is who sent it; nil is unknown.
func (f *frontend) admit(d access, h *fasthttp.RequestHeader, peer net.Addr) *openai.Error {
	ring := f.s.keys.Load()
	switch {
	case d == anybody:
		return nil
	case d == clients && ring.client != nil:
		if key := bearer(h); !ring.client.Hold(key) && !ring.admin.Hold(key) {
			return openai.Unauthorized(keyElsewhere(h))
		}
		return nil
	case d != clients && ring.admin != nil:
		if d == viewers && signedIn(ring.admin, h) {
			return nil
		}
		if !ring.admin.Hold(bearer(h)) {
			e := openai.Unauthorized(keyElsewhere(h))
			e.Code, e.Message = "invalid_admin_key", strings.Replace(e.Message, "a valid API key is needed", "administration needs an operator's key", 1)
			return e
		}
		return nil
	case f.loopback && !f.own(h.Host()):
		return &openai.Error{Status: http.StatusForbidden, Code: "host_not_allowed",
			Message: "the Host header names another machine than this one, as that of a web page would; allowed-hosts adds names, and with keys any is taken"}
	case d == changes:
		return f.trust(h, peer)
	}
	return nil
}

// own reports whether a Host header names this machine, or a name that is allowed. Most requests have the one before's.
func (f *frontend) own(host []byte) bool {
	if last := f.host.Load(); last != nil && *last == string(host) {
		return true
	}
	given := string(host)
	if !browser.OwnHost(given, f.s.cfg.AllowedHosts) {
		return false
	}
	f.host.Store(&given)
	return true
}

// plain refuses a body that is compressed: what it becomes has no bound.
func plain(h *fasthttp.RequestHeader) *openai.Error {
	for _, enc := range h.PeekAll("Content-Encoding") {
		if len(enc) > 0 && !bytes.EqualFold(enc, []byte("identity")) {
			return openai.UnsupportedMedia("Content-Encoding: " + string(enc))
		}
	}
	return nil
}

// isJSON refuses a body that says to be something else than JSON, and one that a web page may have sent.
func isJSON(h *fasthttp.RequestHeader) *openai.Error {
	given := string(h.ContentType())
	switch {
	case browser.JSON(given, has(h, "Origin")):
		return nil
	case given == "":
		return openai.UnsupportedMedia("an Origin header and without Content-Type: application/json")
	default:
		return openai.UnsupportedMedia("Content-Type: " + given)
	}
}

// trust lets in changes that come without a key. A page in an operator's browser reaches this machine too, and a
// proxy on it hides who asks: both give themselves away by a header.
func (f *frontend) trust(h *fasthttp.RequestHeader, peer net.Addr) *openai.Error {
	e := &openai.Error{Status: http.StatusForbidden, Code: "admin_forbidden"}
	switch {
	case has(h, "Origin"):
		e.Message = "without admin-key-file, changes are not taken from a browser"
	case !f.serves:
		return nil // the address is for administration alone
	case !loopbackPeer(peer):
		e.Message = "changes are taken from the gateway's own machine only; set admin-key-file or admin-address to allow others"
	case has(h, "X-Forwarded-For") || has(h, "Forwarded") || has(h, "X-Real-Ip"):
		e.Message = "without admin-key-file or admin-address, changes are not taken through a proxy"
	default:
		return nil
	}
	return e
}

// shut is why a request is turned away by what its head alone says, or nil.
func (f *frontend) shut(h *fasthttp.RequestHeader) *openai.Error {
	return f.admit(f.areaOf(h).access, h, nil)
}

// unwanted is why a request's body is not to be read, as far as its head alone says, or nil: it lacks the key,
// declares too much, or finds the budget taken.
func (f *frontend) unwanted(h *fasthttp.RequestHeader) *openai.Error {
	s, a := f.s, f.areaOf(h)
	limit := cmp.Or(a.body, s.cfg.MaxBodyBytes)
	e := f.shut(h)
	switch {
	case e != nil:
		return e
	case h.ContentLength() > limit:
		return openai.TooLarge(limit)
	case a.access == clients && !s.bodies.fits(max(1, h.ContentLength())):
		return s.bodies.exhausted()
	}
	return nil
}

// skipped reports whether a request is answered without its body, because no route takes one with its method. A short
// body is read all the same, so that the connection can go on.
func skipped(h *fasthttp.RequestHeader) bool { return (h.IsGet() || h.IsHead()) && left(h) }

// bearer is the digest of the key that a request carries.
func bearer(h *fasthttp.RequestHeader) auth.Digest {
	var values []string
	for _, v := range h.PeekAll(headerAuthorization) {
		values = append(values, string(v))
	}
	return auth.Bearer(values...)
}

// keyElsewhere names the header in which clients of other services send a key, empty where there is none.
func keyElsewhere(h *fasthttp.RequestHeader) string {
	for _, name := range [...]string{"X-Api-Key", "Api-Key"} { // Anthropic's and Azure's
		if has(h, name) {
			return name
		}
	}
	return ""
}

func has(h *fasthttp.RequestHeader, name string) bool { return h.Peek(name) != nil }

// loopbackPeer reports whether a peer is on this machine.
func loopbackPeer(peer net.Addr) bool {
	tcp, ok := peer.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}
