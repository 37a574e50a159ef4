package edge

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What browsers do for openai-node in a page (https://fetch.spec.whatwg.org/#cors-preflight-fetch): a preflight without
// a key, then the request, whose answer they hide from the page unless it names the page's origin.
func TestCORS(t *testing.T) {
	client := keyFile(t, clientKey)
	sv := serve(t, loopback(t), answerStream, func(c *Config) {
		c.APIKeyFile, c.CORSOrigins = client, []string{"https://app.example"}
	})
	const page = "Origin: https://app.example"
	c := sv.dial()
	asks := "Access-Control-Request-Method: POST"
	names := "authorization,content-type,x-stainless-lang,x-stainless-retry-count,anthropic-version"
	resp, body := c.ask(get("OPTIONS /v1/chat/completions", page, asks, "Access-Control-Request-Headers: "+names))
	assert.Equal(t, http.StatusNoContent, resp.StatusCode, body)
	assert.Equal(t, names, resp.Header.Get("Access-Control-Allow-Headers"))
	assert.Contains(t, resp.Header.Get("Access-Control-Allow-Methods"), "POST")
	for name, request := range map[string]string{
		"stream":  post(goodBody, page, key(clientKey)),
		"no key":  post(goodBody, page),
		"no path": get("GET /v1/nothing", page, key(clientKey)),
		"models":  get("GET /v1/models", page, key(clientKey)),
	} {
		resp, body := sv.ask(request)
		assert.Equal(t, "https://app.example", resp.Header.Get("Access-Control-Allow-Origin"), "%s: %s", name, body)
		assert.Equal(t, "Origin", resp.Header.Get("Vary"), name)
		assert.Contains(t, resp.Header.Get("Access-Control-Expose-Headers"), "Retry-After", name)
	}
	for name, request := range map[string]string{
		"another origin":  get("OPTIONS /v1/chat/completions", "Origin: https://evil.example", asks),
		"a part of one":   get("OPTIONS /v1/chat/completions", "Origin: https://app.example.evil", asks),
		"null":            get("OPTIONS /v1/chat/completions", "Origin: null", asks),
		"administration":  get("OPTIONS /workers", page, asks),
		"no preflight":    get("OPTIONS /v1/chat/completions", asks),
		"operators' read": get("GET /workers", page),
	} {
		resp, body := sv.ask(request)
		assert.Empty(t, resp.Header.Get("Access-Control-Allow-Origin"), "%s: %s", name, body)
		assert.NotEqual(t, http.StatusNoContent, resp.StatusCode, name)
	}
	all := serve(t, loopback(t), answerJSON, func(c *Config) { c.CORSOrigins = []string{"*"} })
	resp, _ = all.ask(get("OPTIONS /v1/models", "Origin: https://any.example", "Access-Control-Request-Method: GET"))
	assert.Equal(t, "https://any.example", resp.Header.Get("Access-Control-Allow-Origin"))
	none := serve(t, loopback(t), answerJSON)
	resp, _ = none.ask(get("OPTIONS /v1/models", "Origin: https://any.example", "Access-Control-Request-Method: GET"))
	assert.Equal(t, http.StatusMethodNotAllowed, resp.StatusCode)
	assert.Empty(t, resp.Header.Get("Vary"))
}

func TestOriginsAreChecked(t *testing.T) {
	for _, good := range []string{"*", "https://app.example", "http://localhost:3000", "vscode-webview://abc"} {
		require.NoError(t, checkOrigin(good), good)
	}
	for _, bad := range []string{"app.example", "https://app.example/", "https://app.example/path", "null", ""} {
		assert.Error(t, checkOrigin(bad), bad)
	}
}
