package operations

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// paths are the console's pages, each with words that it shows.
var paths = []struct{ path, words string }{
	{"/", "Prefill pool|Decode pool|prefill-1|decode-3|Queue"},
	{"/console/now", "TTFT p50|ITL p99|Throughput|Last 15 minutes"},
	{"/console/requests", "Latest|Slowest|prefill-|→ decode-"},
	{"/console/events", "worker joined|All gateways|decode-3"},
	{"/console/cache", "Family|predicted cached|prefill-1"},
	{"/console/queue", "Retry-After now|By class|Waits longest"},
	{"/console/settings", "http-port|flag|default"},
}

// fields are those of a page.
var fields = regexp.MustCompile(`<input id="([^"]+)"`)

// elsewhere finds what would be fetched from another host. The namespace of SVG is a name, and no address.
var elsewhere = regexp.MustCompile(`(?:src|href|action)="(?:https?:)?//`)

// Pages are whole without a script, quick, and ask for nothing outside.
func TestPages(t *testing.T) {
	t.Parallel()
	f := newFleet(t, false)
	for range 12 {
		require.NoError(t, f.ask(t.Context(), ""))
	}
	for _, p := range paths {
		f.Eventually(p.path+" shows all of its words", func() bool {
			_, body := f.get(p.path)
			for word := range strings.SplitSeq(p.words, "|") {
				if !strings.Contains(body, word) {
					return false
				}
			}
			return true
		})
		best := time.Hour
		var body string
		for range 3 { // this machine may be busy with something else
			began := time.Now()
			_, body = f.get(p.path)
			best = min(best, time.Since(began))
		}
		assert.LessOrEqual(t, best, 300*time.Millisecond, "%s takes", p.path)
		assert.Empty(t, elsewhere.FindString(body), "%s refers to another host", p.path)
		for _, part := range []string{`<html lang="en">`, "<h1", `aria-current="page"`, `<main id="main"`} {
			assert.Equal(t, 1, strings.Count(body, part), "%s has %s N times", p.path, part)
		}
		for _, field := range fields.FindAllStringSubmatch(body, -1) {
			assert.Contains(t, body, `<label for="`+field[1]+`"`, p.path)
		}
		if strings.Contains(body, "<th>") || strings.Contains(body, "<table") && !strings.Contains(body, "<th scope=") {
			t.Errorf("%s: a table's heading has no scope", p.path)
		}
		if strings.Contains(body, " style=") || strings.Contains(body, "<script>") || strings.Contains(body, "onclick") {
			t.Errorf("%s has a style or a script of its own, which the policy bars", p.path)
		}
		assert.True(t, !strings.Contains(body, "<no value>") && !strings.Contains(body, "NaN") && !strings.Contains(body, "%!"),
			"%s shows a figure that is none:\n%s", p.path, body)
	}
	if status, script := f.get("/static/console.js"); status != http.StatusOK || !strings.Contains(script, "visibilitychange") {
		t.Errorf("the script: %d", status)
	}
	if status, body := f.get("/console/nothing"); status != http.StatusNotFound || !strings.Contains(body, "no such page") {
		t.Errorf("a page that there is not: %d", status)
	}
	if status, _ := f.get("/console/requests/nothing"); status != http.StatusNotFound {
		t.Errorf("a request that there is not: %d", status)
	}
}

// watch reads the console's stream, and calls each with every event until it returns true.
func (f *site) watch(within time.Duration, each func(live map[string]string, raw string) (done bool)) bool {
	f.T.Helper()
	ctx, cancel := context.WithTimeout(f.T.Context(), within)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, f.URL+"/console/stream", nil)
	require.NoError(f.T, err)
	res, err := http.DefaultClient.Do(req)
	require.NoError(f.T, err)
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		var event struct{ Live map[string]string }
		require.NoError(f.T, json.Unmarshal([]byte(data), &event), "in %s", data)
		if each(event.Live, data) {
			return true
		}
	}
	return false
}

// The page of a request has its steps, and every candidate with the terms of its cost. An answer that is not streamed has no first
// token to show: one bar for decode's call, and dashes.
func TestRequestPages(t *testing.T) {
	t.Parallel()
	f := newFleet(t, false)
	for id, c := range map[string]struct {
		stream     bool
		has, lacks []string
	}{
		"streamed": {true, []string{
			"<b>Prefill</b> prefill-", "<b>Transfer</b> decode-", "<b>Decode</b> decode-", "✓ chosen", "Predicted", "Actual", "Prefix family",
			"for prefill", "for decode", `<th scope="row">prefill-1`, `<th scope="row">prefill-2`, `<th scope="row">prefill-3`,
			`<th scope="row">decode-1`, `<th scope="row">decode-2`, `<th scope="row">decode-3`,
		}, nil},
		"my-whole-answer": {false, []string{"<b>Transfer and decode</b> decode-", "<b>–</b> TTFT", "<b>–</b> ITL, mean"},
			[]string{"<b>Transfer</b>", "<b>Decode</b>"}},
	} {
		require.NoError(t, f.send(t.Context(), id, c.stream))
		var body string
		f.Eventually("the request is kept", func() bool {
			var status int
			status, body = f.get("/console/requests?id=" + id)
			return status == http.StatusOK
		})
		for _, part := range c.has {
			assert.Contains(t, body, part, id)
		}
		for _, part := range c.lacks {
			assert.NotContains(t, body, part, id)
		}
	}
	_, list := f.get("/console/requests")
	assert.Equal(t, 1, strings.Count(list, "my-whole-answer"), "it is none of the slowest by TTFT")
}

// Nothing of a prompt or an answer leaves by the console.
func TestNoPromptOnAnyPage(t *testing.T) {
	t.Parallel()
	f := newFleet(t, false)
	stop := f.load(4)
	f.Eventually("requests flow", func() bool { return f.sent.Load() > 30 })
	events := 0
	f.watch(20*time.Second, func(_ map[string]string, raw string) bool {
		assert.True(t, !strings.Contains(raw, "xylophone") && !strings.Contains(raw, "marmalade"),
			"an event has a word of a prompt: %s", raw)
		assert.LessOrEqual(t, len(raw), 20_000, "an event bytes")
		events++
		return events == 3
	})
	assert.Equal(t, 3, events, "events came, want 3")
	assert.NoError(t, stop())
	pages := []string{"/console/points", "/console/marks", "/events", "/console/requests?limit=1000"}
	for _, p := range paths {
		pages = append(pages, p.path)
	}
	_, list := f.get("/console/requests")
	pages = append(pages, regexp.MustCompile(`/console/requests/[^"]+`).FindAllString(list, 5)...)
	require.GreaterOrEqual(t, len(pages), 9, "only N pages are there")
	for _, path := range pages {
		if _, body := f.get(path); strings.Contains(body, "xylophone") || strings.Contains(body, "marmalade") {
			t.Errorf("%s has a word of a prompt", path)
		}
	}
}
