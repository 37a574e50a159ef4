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
// compressed, and none larger than in the row.
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
			answers := func(status int, contains string, length int, body string, headers ...string) {
				t.Helper()
				resp, answer := sv.ask(get(name, append(headers, fmt.Sprintf("Content-Length: %d", length))...), body)
				assert.Equal(t, status, resp.StatusCode, "%s with %d bytes and %q: %s", name, length, headers, answer)
				assert.Contains(t, answer, contains, "%s with %q", name, headers)
			}
			own := map[access][]string{anybody: {key(adminKey)}, clients: {key(clientKey)}, viewers: {key(adminKey)}, operators: {key(adminKey)},
				changes: {key(adminKey)}}[r.access]
			for _, framing := range []string{ // and not a byte of the body: an answer means that it was not waited for
				"Content-Length: 1000\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n100\r\n",
				"Expect: 100-continue\r\nContent-Length: 1000\r\n\r\n", "Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n",
			} {
				if r.access == anybody {
					break
				}
				c := sv.dial()
				resp, answer := c.ask(name+" HTTP/1.1\r\nHost: t\r\n", framing)
				wantError(t, resp, answer, 401, map[bool]string{true: "invalid_api_key", false: "invalid_admin_key"}[r.access == clients])
				assert.True(t, resp.Close, "%s, %q: the connection stays open with a body on its way", name, framing)
				c.ends()
			}
			answers(415, "", 3, "\x1f\x8b\x08", append(own, "Content-Encoding: br")...)
			if r.method != http.MethodPost {
				continue
			}
			if r.body == 0 {
				if strings.HasSuffix(path, "/forget") { // of one that is here
					answers(409, "worker_not_lost", 2, "{}", own...)
				} else {
					answers(200, "", 2, "{}", own...)
				}
				continue
			}
			// As above, of a body that is too large.
			if r.takesForm() {
				answers(413, "", r.body+1, "", append(own, "Content-Type: application/x-www-form-urlencoded")...)
				continue // TestSignIn has the rest
			}
			answers(413, "", r.body+1, "", append(own, "Content-Type: application/json")...)
			for _, contentType := range []string{"Content-Type: text/plain", "Content-Type: application/x-www-form-urlencoded",
				"Origin: https://evil.example"} {
				header, _, _ := strings.Cut(contentType, ":") // which the refusal names
				answers(415, header, 2, "{}", append(own, contentType)...)
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
				b := map[string]string{http.MethodPost: goodBody}[r.method]
				request := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n", r.method, path,
					tc.host, len(b))
				if tc.withKeys {
					request += key(map[bool]string{true: clientKey, false: adminKey}[r.access == clients]) + "\r\n"
				}
				resp, answer := sv.ask(request, "\r\n", b)
				if tc.allowed || r.access == anybody {
					assert.NotEqual(t, 403, resp.StatusCode, "%s %s: %s", r.method, path, answer)
				} else {
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
