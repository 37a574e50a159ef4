package edge

import (
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestRoutesAnswer(t *testing.T) {
	sv := serve(t, loopback(t), answerJSON)
	c := sv.dial()
	for line, contains := range map[string]string{
		"GET /v1/models":            `{"object":"list","data":[{"id":"tandem-sim"`,
		"GET /v1/models/":           `{"object":"list"`,
		"GET /v1/models/tandem-sim": `{"id":"tandem-sim"`,
		"GET /v1/models/org/name":   `{"id":"org/name"`,
		"GET /v1/models/org%2Fname": `{"id":"org/name"`,
		"HEAD /v1/models":           "",
		"GET /workers":              `{"pools":[]}`,
		"GET /plan":                 `{"models":[]}`,
		"GET /problems":             `{"problems":[]}`,
		"GET /health":               `{"status":"healthy","detail":{"workers":2}}`,
		"HEAD /health":              "",
		"GET /live":                 `{"status":"live"}`,
		"GET /livez":                `{"status":"live"}`,
		"GET /healthz":              `{"status":"healthy"`,
		"GET /readyz":               `{"status":"healthy"`,
		"GET /ping":                 `{"status":"healthy"`,
		"GET /version":              `{"version":"v0.1.0"}`,
		"GET /load":                 `{"server_load":0}`,
		"GET /openapi.json":         `"info":{"description":`,
		"GET /models":               `{"object":"list","data":[{"id":"tandem-sim"`,
		"HEAD /":                    "",
		"GET /metrics":              `tandem_frontend_open_connections{state="other"} 1`,
	} {
		resp, body := c.ask(get(line))
		assert.Equal(t, 200, resp.StatusCode, line)
		assert.Contains(t, body, contains, line)
		assert.NotEmpty(t, resp.Header.Get("X-Request-Id"), line)
	}
	sv.catalog.unready.Store(true)
	resp, body := sv.ask(get("GET /health"))
	assert.Equal(t, 503, resp.StatusCode)
	assert.Contains(t, body, `"unhealthy"`)
	sv.serves(get("GET /live"))
}

func TestRouteErrors(t *testing.T) {
	sv := serve(t, loopback(t), answerJSON)
	for _, tc := range []struct {
		line, code, allow string
		status            int
		contains          string
	}{
		{"GET /v1/models/none", "model_not_found", "", 404, ""},
		{"GET /v1/models/%zz", "", "", 400, ""},
		{"GET /nothing", "not_found", "", 404, "here; GET /openapi.json lists the paths\""},
		{"POST /V1/COMPLETIONS", "not_found", "", 404, ""},
		{"GET /v1/completions", "method_not_allowed", "POST", 405, ""},
		{"POST /v1/models", "method_not_allowed", "GET, HEAD", 405, ""},
		{"OPTIONS /health", "method_not_allowed", "GET, HEAD", 405, ""},
		{"BREW /coffee", "unknown_method", "", 501, ""},
		{"POST //v1/chat/completions", "not_found", "", 404, "no POST //v1/chat/completions here; the path is /v1/chat/completions\""},
		{"POST /v1//completions?k=secret", "not_found", "", 404, "no POST /v1//completions here; the path is /v1/completions\""},
		{"POST /v1/v1/chat/completions", "not_found", "", 404, "; the path is /v1/chat/completions\""},
		{"POST /openai/deployments/m/chat/completions?api-version=1", "not_found", "", 404, "; the path is /v1/chat/completions\""},
		{"GET //v1/models/org/name", "not_found", "", 404, "; the path is /v1/models/org/name\""},
		{"GET //health", "not_found", "", 404, "; the path is /health\""},
		{"POST //v1/embeddings", "not_found", "", 404, "; the path is /v1/embeddings\""},
		{"POST //v1/audio/speech", "not_found", "", 404, "no POST //v1/audio/speech here; GET /openapi.json lists the paths\""},
		{"GET /v1/responses/resp_1", "response_not_found", "", 404, "store: false"},
		{"GET /v1/responses/resp_1/input_items", "response_not_found", "", 404, "store: false"},
		{"POST /v1/responses/resp_1/cancel", "response_not_found", "", 404, "store: false"},
		{"PUT /rerank", "method_not_allowed", "POST", 405, ""},
	} {
		resp, body := sv.ask(tc.line, " HTTP/1.1\r\nHost: t\r\n\r\n")
		wantError(t, resp, body, tc.status, tc.code)
		assert.Contains(t, body, tc.contains)
		assert.Equal(t, tc.allow, resp.Header.Get("Allow"), tc.line)
	}
}

// docs/reference/api.md lists the routes that are served, and no others.
func TestRoutesAreDocumented(t *testing.T) {
	text, err := os.ReadFile("../../../docs/reference/api.md")
	require.NoError(t, err)
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
	assert.Equal(t, documented, served)
}
