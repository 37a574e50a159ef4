package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
)

// The exit status is the most urgent problem's; another one means that there is no answer. The words have everything that
// GET /problems has, causes first, and fit a terminal.
func TestDoctor(t *testing.T) {
	var answer atomic.Value
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		assert.Equal(t, "/problems", r.URL.Path)
		fmt.Fprint(w, answer.Load())
	}))
	defer server.Close()
	problem := func(kind, severity, because string) string {
		return fmt.Sprintf(`{"kind":%q,"severity":%q,"subject":"m/prefill","workers":["w"],"since":"2026-03-01T12:00:00Z",`+
			`"reason":"what is wrong with it","remedy":"Do it.","help":"https://help/%[1]s.md","because":%[3]q}`, kind, severity, because)
	}
	examine := func(problems string, args ...string) (int, string) {
		answer.Store(`{"at":"2026-03-01T12:00:14.5Z","problems":[` + problems + `]}`)
		status, stdout, stderr := inside(t, nil, append([]string{"doctor", "--admin-url", server.URL}, args...)...)
		assert.Empty(t, stderr)
		return status, stdout
	}
	status, text := examine("")
	assert.Equal(t, 0, status)
	assert.Equal(t, "nothing is wrong\n", text)
	status, text = examine(problem("too_few_workers", "info", ""))
	assert.Equal(t, 0, status)
	assert.Equal(t, "info for 14 s: too_few_workers, m/prefill\n  What is wrong with it.\n  Do it.\n  https://help/too_few_workers.md\n", text)
	status, _ = examine(problem("worker_lost", "warning", "") + "," + problem("too_few_workers", "info", ""))
	assert.Equal(t, 1, status)
	status, text = examine(problem("pool_dead", "warning", "") + "," + problem("pool_limit", "critical", "pool_dead"))
	assert.Equal(t, 2, status)
	assert.Contains(t, text, "\n\ncritical for 14 s: pool_limit, because of pool_dead, m/prefill\n")
	status, text = examine(problem("pool_dead", "critical", ""), "--json")
	assert.Equal(t, 2, status)
	assert.Equal(t, answer.Load().(string)+"\n", text)
	status, text = examine(`{"kind":"of_a_later_version","severity":"warning","subject":"gateway","since":"2026-03-01T12:00:00Z"}`)
	assert.Equal(t, 1, status)
	assert.Contains(t, text, "warning for 14 s: of_a_later_version\n")
	server.Close()
	for _, args := range [][]string{{"--admin-url", server.URL}, {"--no-such-flag"}, {"--admin-key-file", "/nowhere"}, {"word"}} {
		status, stdout, stderr := inside(t, nil, append([]string{"doctor"}, args...)...)
		assert.True(t, status == 3 && stdout == "" && strings.HasPrefix(stderr, "gateway doctor: "), "%v: %d %s%s", args, status, stdout, stderr)
	}
}
