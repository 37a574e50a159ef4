package operations

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/lab/fleet"
	"github.com/tandem-pd/tandem/lab/replay"
	"github.com/tandem-pd/tandem/lab/simulate"
)

// reports are the pages of `load --html` and `simulate --html`, by their paths.
func reports(t *testing.T) map[string][]byte {
	t.Helper()
	rng := rand.New(rand.NewPCG(1, 2))
	load := &replay.Report{
		Title: "A run", Target: "http://127.0.0.1:8000 tandem-sim", Workload: "Poisson, 8 req/s, 3,000 tokens in (750 shared), 100 out",
		Speed: 1, Seed: 7,
		Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Limits: replay.Limits{TTFT: 2 * time.Second, ITL: 25 * time.Millisecond},
	}
	for i := range 1500 {
		s := replay.Sample{Index: i, Outcome: replay.Answered, Status: 200, Scheduled: replay.Millis(i) * replay.Millis(100*time.Millisecond),
			CachedTokens: 750, PromptTokens: 3000,
			InputTokens: 3000, AskedTokens: 100, OutputTokens: 100, PrefillWorker: fmt.Sprint("prefill-", 1+i%3),
			DecodeWorker: fmt.Sprint("decode-", 1+i%2)}
		s.TTFT = replay.Millis(float64(100*time.Millisecond) * (1 + rng.ExpFloat64()))
		end := s.TTFT
		for range 99 {
			gap := replay.Millis(float64(8*time.Millisecond) * (1 + rng.Float64()))
			s.Gaps, end = append(s.Gaps, gap), end+gap
		}
		s.End(time.Duration(end))
		if i%200 == 0 {
			s = replay.Sample{Index: i, Outcome: "http_503", Code: "server_is_overloaded", Detail: "the queue is full", Status: 503,
				Scheduled: s.Scheduled, E2E: replay.Millis(time.Millisecond), CachedTokens: -1}
		}
		load.Samples = append(load.Samples, s)
	}
	load.Finish()
	var page bytes.Buffer
	require.NoError(t, load.WriteHTML(&page))
	dir := t.TempDir()
	plan, html := filepath.Join(dir, "plan.yaml"), filepath.Join(dir, "report.html")
	text := "name: a study\nfleet: {workers: 4, fit: qwen3-32b-h200-tp2}\nslo: {ttft: 2s, itl: 25ms}\narms:\n" +
		"  - {name: 4 round-robin, set: {router.mode: round-robin}}\n  - {name: 2P2D kv, set: {router.mode: kv, fleet.workers: 2P2D}}\n"
	require.NoError(t, os.WriteFile(plan, []byte(text), 0o600))
	study := &simulate.Settings{HTML: html}
	require.NoError(t, study.Run(t.Context(), []string{plan}, new(bytes.Buffer), new(bytes.Buffer)))
	written, err := os.ReadFile(html)
	require.NoError(t, err)
	return map[string][]byte{"/load": page.Bytes(), "/simulate": written}
}

// Reports are readable at both widths and in both themes, and ask no other host for anything. Over plain HTTP their headings
// have a scope, and nothing in them is fetched.
func TestBrowserReports(t *testing.T) {
	t.Parallel()
	pages := reports(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write(pages[r.URL.Path]) // a browser that left does not read it
	}))
	defer server.Close()
	f := &site{Fleet: &fleet.Fleet{T: t, URL: server.URL}}
	if *chromium == "" {
		for path := range pages {
			_, body := f.get(path)
			if strings.Count(body, "<svg") < 4 || strings.Contains(body, "<th>") || strings.Contains(body, "<script") ||
				elsewhere.MatchString(body) {
				t.Errorf("%s has %d plots, a heading without a scope, a script, or something of another host", path, strings.Count(body, "<svg"))
			}
		}
		return
	}
	b := f.open(t)
	for _, theme := range []string{"light", "dark"} {
		for _, width := range []int64{1280, 390} {
			b.as(width, theme)
			for path := range pages {
				b.do(chromedp.Navigate(f.URL + path))
				for _, problem := range look[[]string](b, audit) {
					t.Errorf("%s %s at %d: %s", path, theme, width, problem)
				}
				if plots := look[int](b, `[...document.querySelectorAll("section svg")].filter((e) => e.getBoundingClientRect().width > 200).length`); plots < 4 {
					t.Errorf("%s %s at %d: %d plots can be seen", path, theme, width, plots)
				}
				b.clean(path + " " + theme)
			}
		}
	}
}
