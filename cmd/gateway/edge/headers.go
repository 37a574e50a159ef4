package edge

import (
	"errors"
	"fmt"
	"net/textproto"
	"slices"
	"strings"

	"github.com/valyala/fasthttp"

	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/tracecontext"
	"github.com/tandem-pd/tandem/internal/upstream"
)

const (
	headerTraceParent = "Traceparent"
	headerTraceState  = "Tracestate"

	// maxTraceStateBytes is the longest tracestate that is passed on. The recommendation asks for 512 at least.
	maxTraceStateBytes = 1024
)

// ownFields are the fields that a call to an engine has from the gateway, that belong to one connection, or that are
// a client's secret.
var ownFields = map[string]string{
	"Authorization":       "it is the client's key to the gateway",
	"Proxy-Authorization": "it is the client's key to a proxy",
	"Proxy-Authenticate":  "it belongs to one connection",
	"Cookie":              "it is the client's secret",
	"Set-Cookie":          "it is an answer's",
	"Host":                "the gateway sets it",
	"User-Agent":          "the gateway sets it",
	"Accept":              "the gateway sets it",
	"Accept-Encoding":     "the gateway reads answers as they are",
	"X-Request-Id":        "the gateway sets it",
	// The name under which engines take a rank; see upstream.Leg.
	"X-Data-Parallel-Rank": "the router sets it",
	"X-Vllm-Priority":      "a client would jump the engine's queue",
	"X-Session-Id":         "a client would name another's session to the engine",
	"X-Api-Key":            "it is the client's key to the gateway",
	headerGateway:          "the gateway sets it",
	headerTraceParent:      "it is passed on anyway",
	headerTraceState:       "it is passed on anyway",
	"Connection":           "it belongs to one connection",
	"Keep-Alive":           "it belongs to one connection",
	"Proxy-Connection":     "it belongs to one connection",
	"Te":                   "it belongs to one connection",
	"Trailer":              "it belongs to one connection",
	"Transfer-Encoding":    "it belongs to one connection",
	"Upgrade":              "it belongs to one connection",
	"Expect":               "it belongs to one connection",
}

// checkForward says why a field of that name may not be forwarded.
func checkForward(name string) error {
	const token = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	if name == "" || len(name) > 128 || strings.Trim(name, token) != "" {
		return fmt.Errorf("%.128q is not the name of a header", name)
	}
	canonical := textproto.CanonicalMIMEHeaderKey(name)
	why, own := ownFields[canonical]
	switch {
	case own:
	case strings.HasPrefix(canonical, "Content-"):
		why, own = "the gateway writes the body", true
	case strings.HasPrefix(canonical, "X-Override-"): // SGLang's, for what bodies say of hand-offs and ranks
		why, own = "a client would steer a hand-off", true
	case strings.HasPrefix(canonical, "X-Smg-"): // of SGLang's router, to its workers
		why, own = "a client would steer a hand-off", true
	}
	if own {
		return errors.New(name + " is never forwarded: " + why)
	}
	return nil
}

// forwarded returns the names of the fields to forward in canonical form, each
// once.
func forwarded(names []string) []string {
	var out []string
	for _, name := range names {
		if name = textproto.CanonicalMIMEHeaderKey(name); !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// passTrace notes in call the trace that a request carries, which goes on to engines.
func passTrace(call *handoff.Call, h *fasthttp.RequestHeader) {
	if all := h.PeekAll(headerTraceParent); len(all) == 1 {
		if _, ok := tracecontext.Parse(all[0]); ok {
			call.TraceParent = string(all[0])
			call.TraceState = traceState(h.PeekAll(headerTraceState))
		}
	}
}

// passFields notes in call the fields called names, which go on to engines. Values with a control byte are left out.
func passFields(call *handoff.Call, h *fasthttp.RequestHeader, names []string) {
	for _, name := range names {
		for _, v := range h.PeekAll(name) {
			if printable(v) {
				call.Forward = append(call.Forward, upstream.Field{Name: name, Value: string(v)})
			}
		}
	}
}

// traceState joins the lines of a tracestate, which are one list. One that is
// too long is left out, as the recommendation allows.
func traceState(lines [][]byte) string {
	var parts []string
	size := 0
	for _, l := range lines {
		if !printable(l) {
			return ""
		}
		if size += len(l) + 1; size > maxTraceStateBytes {
			return ""
		}
		if len(l) > 0 {
			parts = append(parts, string(l))
		}
	}
	return strings.Join(parts, ",")
}

// printable reports whether b can stand as a field's value: no control byte but
// the tab.
func printable(b []byte) bool {
	for _, c := range b {
		if c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}
