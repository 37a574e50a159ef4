package edge

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

// TestEveryRouteHasItsChecks walks the tables: whoever adds a route is held to
// what every route keeps. Without the key, no body is read; with it, none that is
// compressed, and none that is larger than the row says.
func TestEveryRouteHasItsChecks(t *testing.T) {
	client, admin := keyFile(t, clientKey), keyFile(t, adminKey)
	keys := func(c *Config) { c.APIKeyFile, c.AdminKeyFile, c.Console = client, admin, newPaper() }
	together := serve(t, loopback(t), answerJSON, keys)
	apart := serve(t, loopback(t), answerJSON, keys, func(c *Config) { c.AdminAddress = "127.0.0.1:0" })
	apartAdmin, _ := apart.administered()
	walked := 0
	for f, sv := range map[*frontend]*served{together.main: together, apart.main: apart, apart.admin: apartAdmin} {
		for _, r := range f.table(http.NotFoundHandler()) {
			walked++
			path := strings.NewReplacer(":id", "decode-1", "*", "tandem-sim").Replace(r.path)
			name := r.method + " " + path
			ask := func(length int, body string, headers ...string) (*http.Response, string) {
				t.Helper()
				return sv.ask(get(name, append(headers, fmt.Sprintf("Content-Length: %d", length))...), body)
			}
			own := map[access][]string{clients: {key(clientKey)}, viewers: {key(adminKey)}, operators: {key(adminKey)}, changes: {key(adminKey)}}[r.access]
			if r.access != anybody {
				// The body is announced and never sent: an answer means that it was not waited for.
				resp, body := ask(1000, "")
				if code := map[bool]string{true: "invalid_api_key", false: "invalid_admin_key"}[r.access == clients]; resp.StatusCode != 401 || !strings.Contains(body, code) {
					t.Errorf("%s without a key: status %d, %s", name, resp.StatusCode, body)
				}
			}
			if resp, body := ask(3, "\x1f\x8b\x08", append(own, "Content-Encoding: gzip")...); resp.StatusCode != 415 {
				t.Errorf("%s with a compressed body: status %d, %s", name, resp.StatusCode, body)
			}
			if r.method != http.MethodPost {
				continue
			}
			if r.body == 0 {
				if resp, body := ask(2, "{}", own...); resp.StatusCode != 200 && !strings.Contains(body, "worker_not_lost") { // forget, of one that is here
					t.Errorf("%s with a body that nobody reads: status %d, %s", name, resp.StatusCode, body)
				}
				continue
			}
			// As above, of a body that is too large.
			if r.takesForm() {
				if resp, body := ask(r.body+1, "", append(own, "Content-Type: application/x-www-form-urlencoded")...); resp.StatusCode != 413 {
					t.Errorf("%s with a form of %d bytes: status %d, %s", name, r.body+1, resp.StatusCode, body)
				}
				continue // TestSignIn has the rest
			}
			if resp, body := ask(r.body+1, "", append(own, "Content-Type: application/json")...); resp.StatusCode != 413 {
				t.Errorf("%s with a body of %d bytes: status %d, %s", name, r.body+1, resp.StatusCode, body)
			}
			for _, contentType := range []string{"Content-Type: text/plain", "Content-Type: application/x-www-form-urlencoded", "Origin: https://evil.example"} {
				header, _, _ := strings.Cut(contentType, ":") // which the refusal names
				if resp, body := ask(2, "{}", append(own, contentType)...); resp.StatusCode != 415 || !strings.Contains(body, header) {
					t.Errorf("%s with %s: status %d, %s", name, contentType, resp.StatusCode, body)
				}
			}
			assert.True(t, r.access != changes || r.body <= maxAdminBytes,
				"%s takes %d bytes; administration takes %d", name, r.body, maxAdminBytes)
		}
	}
	assert.GreaterOrEqual(t, walked, 20)
}

// TestHostOnTheLoopback: a page whose name resolves to this machine sends that
// name as Host. Where a key is asked for, or others reach the address anyway, any
// name is taken.
func TestHostOnTheLoopback(t *testing.T) {
	client, admin := keyFile(t, clientKey), keyFile(t, adminKey)
	bodies := map[string]string{http.MethodPost: goodBody}
	for _, tc := range []struct {
		name     string
		set      option
		host     string
		allowed  bool // where a key could be asked for
		withKeys bool
	}{
		{"this machine", func(c *Config) {}, "localhost:8000", true, false},
		{"its address", func(c *Config) {}, "127.0.0.1", true, false},
		{"a page's name", func(c *Config) {}, "evil.example", false, false},
		{"a name that is allowed", func(c *Config) { c.AllowedHosts = []string{"llm.example"} }, "llm.example", true, false},
		{"an address for everybody", func(c *Config) { c.Host = "0.0.0.0" }, "evil.example", true, false},
		{"keys", func(c *Config) { c.APIKeyFile, c.AdminKeyFile = client, admin }, "llm.example", true, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			sv := serve(t, loopback(t), answerJSON, func(c *Config) { c.AllowedHosts = nil }, tc.set)
			for _, r := range sv.main.table(http.NotFoundHandler()) {
				path := strings.NewReplacer(":id", "decode-1", "*", "tandem-sim").Replace(r.path)
				if path == "/busy_threshold" && r.method == http.MethodPost {
					continue // its body is another one
				}
				b := bodies[r.method]
				request := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n", r.method, path, tc.host, len(b))
				if tc.withKeys {
					request += key(map[bool]string{true: clientKey, false: adminKey}[r.access == clients]) + "\r\n"
				}
				resp, answer := sv.ask(request, "\r\n", b)
				if allowed := resp.StatusCode != http.StatusForbidden; allowed != (tc.allowed || r.access == anybody) {
					t.Errorf("%s %s: status %d, %s", r.method, path, resp.StatusCode, answer)
				} else if !allowed {
					wantError(t, resp, answer, 403, "host_not_allowed")
				}
			}
		})
	}
}

// TestRefusalsAreLoggedWithinBounds: what strangers send does not fill the log,
// and the metrics count all of it.
func TestRefusalsAreLoggedWithinBounds(t *testing.T) {
	sv := serve(t, loopback(t), answerJSON)
	c := sv.dial()
	for range 50 {
		c.send(post("[]"))
		c.receive()
	}
	c.send(get("GET /nothing"))
	c.receive()
	log := sv.logs.String()
	assert.Equal(t, 11, strings.Count(log, "request refused"), "10 of one kind and 1 of another:\n%s", log)
	for _, part := range []string{"suppressed=0", "client=127.0.0.1:", "method=GET path=/nothing"} {
		assert.Contains(t, log, part)
	}
	assert.EqualValues(t, 50, sv.metric("tandem_frontend_http_responses_total", "400"))
}
