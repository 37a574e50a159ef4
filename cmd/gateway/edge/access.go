package edge

import (
	"bytes"
	"cmp"
	"net"
	"net/http"
	"strings"

	"github.com/valyala/fasthttp"

	"github.com/tandem-pd/tandem/internal/auth"
	"github.com/tandem-pd/tandem/internal/openai"
)

// access is who may use a route.
type access uint8

const (
	// anybody needs no key.
	anybody access = iota
	// clients need a client's or an operator's key if there are clients' keys.
	clients
	// viewers need an operator's key, if there are any, or the console's ticket for one. They only read.
	viewers
	// operators need an operator's key, if there are any. They only read.
	operators
	// changes need an operator's key. Without any they are accepted on the admin address, or from this machine.
	changes
)

const headerAuthorization = "Authorization"

// areaOf returns the area of a request's target, whose access can be checked before the body is read. Unclear targets
// are open here: each route checks its own access.
func (f *frontend) areaOf(h *fasthttp.RequestHeader) area {
	return f.areas[string(firstSegment(h.RequestURI()))]
}

func firstSegment(target []byte) []byte {
	if i := bytes.IndexAny(target, "?#"); i >= 0 {
		target = target[:i]
	}
	first, _, _ := bytes.Cut(bytes.TrimPrefix(target, []byte("/")), []byte("/"))
	return first
}

// admit returns a 401 or 403 for a request that is refused, or nil. A nil peer is unknown.
func (f *frontend) admit(d access, h *fasthttp.RequestHeader, peer net.Addr) *openai.Error {
	ring := f.s.keys.Load()
	switch {
	case d == anybody:
		return nil
	case d == clients && ring.client != nil:
		if _, ok := ring.clientKey(h); !ok {
			return openai.Unauthorized()
		}
		return nil
	case d != clients && ring.admin != nil:
		if d == viewers && signedIn(ring.admin, h) {
			return nil
		}
		if !ring.admin.Hold(bearer(h)) {
			e := openai.Unauthorized()
			e.Code = "invalid_admin_key"
			e.Message = strings.Replace(e.Message, "a valid API key is needed", "administration needs an operator's key", 1)
			return e
		}
		return nil
	case f.loopback && !f.own(h.Host()):
		return &openai.Error{Status: http.StatusForbidden, Code: "host_not_allowed",
			Message: "the Host header names another machine than this one, as that of a web page would; " +
				"allowed-hosts adds names, and with keys any is taken"}
	case d == changes:
		return f.trust(h, peer)
	}
	return nil
}

// own reports whether a Host header names this machine or an allowed name. The latest one is cached.
func (f *frontend) own(host []byte) bool {
	if last := f.host.Load(); last != nil && *last == string(host) {
		return true
	}
	given := string(host)
	if !auth.OwnHost(given, f.s.cfg.AllowedHosts) {
		return false
	}
	f.host.Store(&given)
	return true
}

// isJSON refuses a body that is not declared as JSON, and one that a web page may have sent.
func isJSON(h *fasthttp.RequestHeader) *openai.Error {
	given := string(h.ContentType())
	switch {
	case auth.JSON(given, has(h, "Origin")):
		return nil
	case given == "":
		return openai.UnsupportedMedia("an Origin header and without Content-Type: application/json")
	default:
		return openai.UnsupportedMedia("Content-Type: " + given)
	}
}

// trust accepts changes without a key, except from a browser's page or through a proxy, which reveal themselves by a
// header.
func (f *frontend) trust(h *fasthttp.RequestHeader, peer net.Addr) *openai.Error {
	e := &openai.Error{Status: http.StatusForbidden, Code: "admin_forbidden"}
	switch {
	case has(h, "Origin"):
		e.Message = "without admin-key-file, changes are not taken from a browser"
	case !f.serves:
		return nil // the address is for administration only
	case !loopbackPeer(peer):
		e.Message = "changes are taken from the gateway's own machine only; set admin-key-file or admin-address to allow others"
	case has(h, "X-Forwarded-For") || has(h, "Forwarded") || has(h, "X-Real-Ip"):
		e.Message = "without admin-key-file or admin-address, changes are not taken through a proxy"
	default:
		return nil
	}
	return e
}

// shut returns why a request is refused by its head alone, or nil.
func (f *frontend) shut(h *fasthttp.RequestHeader) *openai.Error {
	return f.admit(f.areaOf(h).access, h, nil)
}

// unwanted returns why a request's body must not be read, judging by its head, or nil: no key, too long, or no budget
// left.
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

// skipped reports whether a request is answered without reading its body, because no route of its method reads one. A
// short body is still read to keep the connection.
func skipped(h *fasthttp.RequestHeader) bool { return (h.IsGet() || h.IsHead()) && left(h) }

func bearer(h *fasthttp.RequestHeader) auth.Digest {
	var values []string
	for _, v := range h.PeekAll(headerAuthorization) {
		values = append(values, string(v))
	}
	return auth.Bearer(values...)
}

// clientKey returns the digest of the client's key, or an operator's, that a request has: in Authorization, or in the
// headers of Anthropic's and Azure's libraries, which may send both.
func (r *keyring) clientKey(h *fasthttp.RequestHeader) (auth.Digest, bool) {
	for _, name := range [...]string{headerAuthorization, "X-Api-Key", "Api-Key"} {
		d := bearer(h)
		if name != headerAuthorization {
			values := h.PeekAll(name)
			if len(values) != 1 {
				continue
			}
			d = auth.Bearer("Bearer " + string(values[0]))
		}
		if r.client.Hold(d) || r.admin.Hold(d) {
			return d, true
		}
	}
	return auth.Digest{}, false
}

func has(h *fasthttp.RequestHeader, name string) bool { return h.Peek(name) != nil }

// loopbackPeer reports whether a peer is on this machine.
func loopbackPeer(peer net.Addr) bool {
	tcp, ok := peer.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}
