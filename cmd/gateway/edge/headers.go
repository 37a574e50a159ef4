package edge

import (
	"errors"
	"fmt"
	"net/textproto"
	"slices"
	"strings"

	"github.com/valyala/fasthttp"

	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/trace"
)

const (
	headerTraceParent = "Traceparent"
	headerTraceState  = "Tracestate"

	// maxTraceStateBytes is the longest tracestate passed on. The recommendation requires at least 512.
	maxTraceStateBytes = 1024
)

// ownFields are header fields that the gateway sets, that belong to one connection, or that are a client's secret.
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
	// Engines read the rank from it; see [http1.Leg].
	"X-Data-Parallel-Rank": "the router sets it",
	"X-Vllm-Priority":      "a client would jump the engine's queue",
	"X-Session-Id":         "a client would name another's session to the engine",
	"X-Api-Key":            "it is the client's key to the gateway",
	"Api-Key":              "it is the client's key to the gateway",
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

// checkForward returns why a field must not be forwarded.
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
	case strings.HasPrefix(canonical, "X-Override-"): // SGLang's overrides of hand-offs and ranks
		why, own = "a client would steer a hand-off", true
	case strings.HasPrefix(canonical, "X-Smg-"): // from SGLang's router to its workers
		why, own = "a client would steer a hand-off", true
	}
	if own {
		return errors.New(name + " is never forwarded: " + why)
	}
	return nil
}

// forwarded returns the distinct canonical names of fields to forward.
func forwarded(names []string) []string {
	var out []string
	for _, name := range names {
		if name = textproto.CanonicalMIMEHeaderKey(name); !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

func passTrace(call *handoff.Call, h *fasthttp.RequestHeader) {
	if all := h.PeekAll(headerTraceParent); len(all) == 1 {
		if _, ok := trace.Parse(all[0]); ok {
			call.TraceParent = string(all[0])
			call.TraceState = traceState(h.PeekAll(headerTraceState))
		}
	}
}

// passFields adds the named fields to call for engines, except values with control bytes.
func passFields(call *handoff.Call, h *fasthttp.RequestHeader, names []string) {
	for _, name := range names {
		for _, v := range h.PeekAll(name) {
			if http1.Printable(v) {
				call.Forward = append(call.Forward, http1.Field{Name: name, Value: string(v)})
			}
		}
	}
}

// traceState joins the lines of a tracestate. It drops one that is too long, as the recommendation allows.
func traceState(lines [][]byte) string {
	var parts []string
	size := 0
	for _, l := range lines {
		if !http1.Printable(l) {
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
