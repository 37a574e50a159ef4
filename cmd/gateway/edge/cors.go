package edge

import (
	"bytes"
	"fmt"
	"net/url"
	"slices"

	"github.com/valyala/fasthttp"
)

// checkOrigin returns why a value of cors-origins is none.
func checkOrigin(origin string) error {
	if origin == "*" {
		return nil
	}
	u, err := url.Parse(origin)
	if err != nil || u.Scheme == "" || u.Host == "" || origin != u.Scheme+"://"+u.Host {
		return fmt.Errorf("%.128q is not an origin such as https://app.example, nor *", origin)
	}
	return nil
}

// cors allows pages of the configured origins to read the answers of clients' routes, errors and streams too. It
// reports whether the request is an allowed preflight, with which a browser sends no key. See
// https://fetch.spec.whatwg.org/#http-cors-protocol.
func (f *frontend) cors(ctx *fasthttp.RequestCtx) (preflight bool) {
	allowed := f.s.cfg.CORSOrigins
	if len(allowed) == 0 || !f.serves || f.areaOf(&ctx.Request.Header).access > clients {
		return false
	}
	in, out := &ctx.Request.Header, &ctx.Response.Header
	out.Add("Vary", "Origin")
	origin := string(in.Peek("Origin"))
	if origin == "" || !slices.Contains(allowed, "*") && !slices.Contains(allowed, origin) {
		return false
	}
	out.Set("Access-Control-Allow-Origin", origin)
	if !in.IsOptions() || !has(in, "Access-Control-Request-Method") {
		out.Set("Access-Control-Expose-Headers", "Retry-After, Retry-After-Ms, X-Should-Retry, X-Request-Id, Request-Id")
		return false
	}
	out.Set("Access-Control-Allow-Methods", "GET, HEAD, POST, OPTIONS")
	if names := in.Peek("Access-Control-Request-Headers"); len(names) > 0 && !bytes.ContainsAny(names, "\r\n") {
		out.SetBytesV("Access-Control-Allow-Headers", names) // x-stainless-*, anthropic-version: any, for none of them grants anything
		out.Add("Vary", "Access-Control-Request-Headers")
	}
	out.Set("Access-Control-Max-Age", "7200") // Chromium's limit
	if has(in, "Access-Control-Request-Private-Network") {
		out.Set("Access-Control-Allow-Private-Network", "true")
	}
	return true
}
