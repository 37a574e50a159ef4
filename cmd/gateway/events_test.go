package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/observe"
)

// The events of all gateways of a group come from one of them, also after another was killed, and its end is one.
func TestEventsOfAGroup(t *testing.T) {
	t.Parallel()
	r := newReplicas(t, 1, 1)
	a, b, c := r.join(0), r.join(0), r.join(0)
	know(2, a, b, c)
	look := func(args string) (report observe.EventsReport, stderr string) {
		t.Helper()
		status, stdout, stderr := inside(t, nil, append([]string{"events", "--admin-url", a.url}, strings.Fields(args)...)...)
		require.Equal(t, exitOK, status, stderr)
		if strings.Contains(args, "--json") {
			require.NoError(t, json.Unmarshal([]byte(stdout), &report))
		}
		return report, stdout + stderr
	}
	report, _ := look("--json --kind worker")
	require.Len(t, report.Others, 2)
	joined := map[string]int{}
	for _, e := range report.Events {
		if e.Message == "worker joined" {
			joined[e.Gateway] += e.Count
		}
	}
	assert.Equal(t, map[string]int{report.Gateway: 2, report.Others[0].Gateway: 2, report.Others[1].Gateway: 2}, joined)
	_, text := look("--kind group,worker")
	for _, part := range []string{report.Gateway + " answered at ", "INFO  worker   worker joined", " gateway joined the group replica="} {
		assert.Contains(t, text, part)
	}
	_, _, err := b.complete("", "Hello", 2)
	require.NoError(t, err)
	var own struct {
		Requests []struct {
			ID string `json:"request_id"`
		}
	}
	b.eventually("b has the request", func() bool {
		_, body := get(b.url + "/requests?limit=1")
		return json.Unmarshal([]byte(body), &own) == nil && len(own.Requests) == 1
	})
	status, page := get(a.url + "/console/requests?id=" + own.Requests[0].ID)
	assert.True(t, status == http.StatusOK && strings.Contains(page, "kept by ") && strings.Contains(page, "<b>Prefill</b> prefill-1"),
		"b's request at a: %d", status)
	status, page = get(a.url + "/console/requests?id=nobodys")
	assert.True(t, status == http.StatusNotFound && strings.Contains(page, "kept on 3 gateways."), "nobody's request at a: %d", status)
	followed(t, a)
	c.kill()
	a.eventually("c's death is an event, and c is named as silent or gone", func() bool {
		report, text = look("--since 30m --json --kind group")
		return strings.Contains(text, "gateway died") && len(report.Others) == 1
	})
	lines(t, nil, "events", []line{
		{"--admin-url " + a.url + " --since 1h --until 59m --kind kv", exitOK, "events: 0"},
		{"--admin-url " + a.url + " --since yesterday", exitUsage, "since: \"yesterday\" is no duration such as 10m"},
		{"--admin-url " + a.url + " --kind cat", exitFailed, `"cat" is none of worker, circuit`},
		{"--admin-url http://127.0.0.1:1", exitFailed, "cannot reach the gateway"},
	})
}

// The clock of a gateway may be behind, or its answer late: with --follow its events are printed too, and each once.
func TestFollowedClocks(t *testing.T) {
	t.Parallel()
	ctx, end := context.WithCancel(t.Context())
	now, asked := time.Now(), 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		report := observe.EventsReport{Gateway: "a", Now: now, Others: []observe.OtherGateway{{Gateway: "b"}}}
		add := func(gateway, message string, at time.Time) {
			report.Events = append(report.Events, observe.Event{Time: at, Last: at, Count: 1, Level: "INFO", Gateway: gateway, Message: message})
		}
		if asked++; asked > 1 {
			add("b", "late", now.Add(-2*time.Second))
		}
		if add("a", "early", now); asked == 3 {
			end()
		}
		_ = json.NewEncoder(w).Encode(report)
	}))
	defer server.Close()
	var out strings.Builder
	status := run(ctx, []string{"events", "--admin-url", server.URL, "--follow"},
		process{program: "gateway", stdout: &out, stderr: io.Discard, readFile: os.ReadFile})
	assert.Equal(t, exitOK, status)
	assert.True(t, strings.Count(out.String(), " a INFO") == 1 && strings.Count(out.String(), "late") == 1, out.String())
}

// followed has what happens printed while it happens.
func followed(t *testing.T, a *proc) {
	t.Helper()
	ctx, end := context.WithCancel(t.Context())
	out, in := io.Pipe()
	status := make(chan int, 1)
	go func() {
		status <- run(ctx, []string{"events", "--admin-url", a.url, "--kind", "operator,worker", "--follow"},
			process{program: "gateway", stdout: in, stderr: io.Discard, readFile: os.ReadFile})
		_ = in.Close()
	}()
	printed, seen := bufio.NewScanner(out), map[string]int{}
	for printed.Scan() {
		if len(seen) == 0 {
			a.order("cordon", "decode-1")
		}
		if seen[printed.Text()]++; strings.Contains(printed.Text(), "worker cordoned") {
			break
		}
	}
	end()
	_, _ = io.Copy(io.Discard, out)
	assert.Equal(t, exitOK, <-status, "the end of a --follow")
	for line, n := range seen {
		assert.Equal(t, 1, n, "printed again: %s", line)
	}
	a.order("uncordon", "decode-1")
}
