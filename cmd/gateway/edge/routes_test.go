package edge

import (
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
)

func TestRoutesAnswer(t *testing.T) {
	sv := serve(t, loopback(t), answerJSON)
	for _, tc := range []struct {
		method, path string
		status       int
		contains     string
	}{
		{"GET", "/v1/models", 200, `{"object":"list","data":[{"id":"tandem-sim"`},
		{"GET", "/v1/models/", 200, `{"object":"list"`},
		{"GET", "/v1/models/tandem-sim", 200, `{"id":"tandem-sim"`},
		{"GET", "/v1/models/org/name", 200, `{"id":"org/name"`},
		{"GET", "/v1/models/org%2Fname", 200, `{"id":"org/name"`},
		{"HEAD", "/v1/models", 200, ""},
		{"GET", "/workers", 200, `{"pools":[]}`},
		{"GET", "/health", 200, `{"status":"healthy","detail":{"workers":2}}`},
		{"HEAD", "/health", 200, ""},
		{"GET", "/live", 200, `{"status":"live"}`},
		{"GET", "/metrics", 200, "tandem_frontend_open_connections 1"},
	} {
		t.Run(tc.method+tc.path, func(t *testing.T) {
			req, err := http.NewRequest(tc.method, "http://"+sv.ln.Addr().String()+tc.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			c := sv.dial()
			c.t = t
			if err := req.Write(c); err != nil {
				t.Fatal(err)
			}
			resp, err := http.ReadResponse(c.br, req)
			if err != nil {
				t.Fatal(err)
			}
			var b strings.Builder
			if err := resp.Write(&b); err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != tc.status || !strings.Contains(b.String(), tc.contains) {
				t.Errorf("got %s; want status %d and %q", b.String(), tc.status, tc.contains)
			}
			if resp.Header.Get("X-Request-Id") == "" {
				t.Error("no x-request-id")
			}
			c.Close()
			eventually(t, "the connection's end", func() bool { return sv.main.conns.len() == 0 })
		})
	}
}

func TestRouteErrors(t *testing.T) {
	sv := serve(t, loopback(t), answerJSON)
	for _, tc := range []struct {
		line, code, allow string
		status            int
		says              string
	}{
		{"GET /v1/models/none", "model_not_found", "", 404, ""},
		{"GET /v1/models/%zz", "", "", 400, ""},
		{"GET /nothing", "not_found", "", 404, ""},
		{"POST /V1/COMPLETIONS", "not_found", "", 404, ""},
		{"GET /v1/completions", "method_not_allowed", "POST", 405, ""},
		{"DELETE /v1/chat/completions", "method_not_allowed", "POST", 405, ""},
		{"POST /v1/models", "method_not_allowed", "GET, HEAD", 405, ""},
		{"OPTIONS /health", "method_not_allowed", "GET, HEAD", 405, ""},
		{"BREW /coffee", "unknown_method", "", 501, ""},
		{"POST //v1/chat/completions", "not_found", "", 404, "no POST //v1/chat/completions here; the path is /v1/chat/completions\""},
		{"POST /v1//completions?k=secret", "not_found", "", 404, "no POST /v1//completions here; the path is /v1/completions\""},
		{"POST /v1/v1/chat/completions", "not_found", "", 404, "; the path is /v1/chat/completions\""},
		{"POST /chat/completions", "not_found", "", 404, "; the path is /v1/chat/completions\""},
		{"POST /openai/deployments/m/chat/completions?api-version=1", "not_found", "", 404, "; the path is /v1/chat/completions\""},
		{"GET //v1/models/org/name", "not_found", "", 404, "; the path is /v1/models/org/name\""},
		{"GET //health", "not_found", "", 404, "; the path is /health\""},
		{"POST //v1/embeddings", "not_found", "", 404, "no POST //v1/embeddings here\""},
	} {
		t.Run(tc.line, func(t *testing.T) {
			c := sv.dial()
			c.send(tc.line, " HTTP/1.1\r\nHost: t\r\n\r\n")
			resp, body := c.receive()
			if wantError(t, resp, body, tc.status, tc.code); !strings.Contains(body, tc.says) {
				t.Errorf("%s, want %s", body, tc.says)
			}
			if allow := resp.Header.Get("Allow"); allow != tc.allow {
				t.Errorf("Allow: %q, want %q", allow, tc.allow)
			}
		})
	}
}

func TestUnhealthyWithoutWorkers(t *testing.T) {
	sv := serve(t, loopback(t), answerJSON)
	sv.catalog.unready.Store(true)
	c := sv.dial()
	c.send("GET /health HTTP/1.1\r\nHost: t\r\n\r\nGET /live HTTP/1.1\r\nHost: t\r\n\r\n")
	if resp, body := c.receive(); resp.StatusCode != 503 || !strings.Contains(body, `"unhealthy"`) {
		t.Errorf("/health: %d %s", resp.StatusCode, body)
	}
	if resp, _ := c.receive(); resp.StatusCode != 200 {
		t.Errorf("/live: %d", resp.StatusCode)
	}
}

// docs/reference/api.md lists the routes that are served, and no others.
func TestRoutesAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../../docs/reference/api.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "\n## Endpoints\n")
	table, _, _ = strings.Cut(table, "\n## ")
	var documented []string
	for _, row := range strings.Split(table, "\n") {
		cells := strings.Split(row, "|")
		if len(cells) < 3 || !strings.Contains(cells[1], "`") {
			continue
		}
		method, before := "", ""
		for i, name := range strings.Split(cells[1], "`") {
			if i%2 == 0 {
				continue
			}
			if m, path, ok := strings.Cut(name, " "); ok {
				method, name, before = m, path, path[:strings.LastIndexByte(path, '/')]
			} else if method == "POST" {
				name = before + name // "/drain" after "/workers/ID/cordon"
			}
			documented = append(documented, method+" "+name)
		}
	}
	var served []string
	sv := serve(t, newPipes(), answerJSON)
	for _, r := range sv.main.table(http.NotFoundHandler()) {
		served = append(served, r.method+" "+strings.NewReplacer(":id", "ID", "*", "NAME").Replace(r.path))
	}
	slices.Sort(documented)
	slices.Sort(served)
	if !slices.Equal(documented, served) {
		t.Errorf("docs/reference/api.md lists %q, served are %q", documented, served)
	}
}
