package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestLoadSaysWhatItsFiguresShow: however a run went, its report diagnoses
// nothing, has no figure of no value, and repeats the endpoint's own sentence.
func TestLoadSaysWhatItsFiguresShow(t *testing.T) {
	t.Parallel()
	tokens := func(w http.ResponseWriter, n int) {
		for range n {
			fmt.Fprint(w, "data: {\"choices\":[{\"index\":0,\"text\":\"x\"}]}\n\n")
		}
		fmt.Fprint(w, "data: [DONE]\n\n")
	}
	full := func(w http.ResponseWriter) {
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(503)
		fmt.Fprint(w, `{"error":{"message":"the queue is full; try again in 1 s","type":"overloaded_error","code":"server_is_overloaded"}}`)
	}
	answer := func(n int) http.HandlerFunc { return func(w http.ResponseWriter, _ *http.Request) { tokens(w, n) } }
	for _, c := range []struct {
		name     string
		requests int
		complete http.HandlerFunc
		args     string
		says     []string
		not      string // a pattern
	}{
		{
			"all refused", 107, func(w http.ResponseWriter, _ *http.Request) { full(w) }, "",
			[]string{
				"0 answered, 107 refused, 0 failed", "107 http_503 server_is_overloaded: the queue is full; try again in 1 s",
				"Goodput: 0 of 107 requests, since none was answered.", "107 of 107 requests were not answered, 107 of them: http_503 server_is_overloaded: the queue is full",
			},
			`TTFT +0 +0`,
		},
		{"answers without a token", 3, answer(0), "", []string{"Goodput: 0 of 3 requests", "fewer tokens than were asked for: 3"}, `TTFT +[0-9]+ +0`},
		{"one token each", 3, answer(1), "--osl 1", []string{"3 answered"}, `ITL +[0-9]+ +0`},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newOpenAI(t)
			s.answer = c.complete
			page := filepath.Join(t.TempDir(), "r.html")
			args := append([]string{
				"--url", s.URL, "--rate", "1000", "--requests", fmt.Sprint(c.requests), "--isl", "5", "--osl", "3", "--html", page,
			}, strings.Fields(c.args)...)
			status, stdout, stderr := loading(t, args...)
			assert.Equal(t, regexp.MustCompile("refused|http_").MatchString(c.says[0]), status == exitFailed, "whether it fails")
			html, err := os.ReadFile(page)
			require.NoError(t, err)
			head, _, _ := strings.Cut(string(html[strings.Index(string(html), "<h1>"):]), `<div class="plots">`)
			for _, want := range c.says {
				assert.Contains(t, stdout+stderr, want)
			}
			for _, form := range []string{stdout, head} {
				assert.NotRegexp(t, `It lacks|would tell|over seeds|NaN|Inf|Take `, form)
				if c.not != "" {
					assert.NotRegexp(t, c.not, form)
				}
			}
		})
	}
}

// TestLoadDrawsASeed: two runs ask different prompts, the seed that is printed
// repeats one, and a run that finds another's prompts cached says so.
func TestLoadDrawsASeed(t *testing.T) {
	t.Parallel()
	s := newOpenAI(t)
	known := map[string]bool{}
	s.cached = func(ids []any) (cached int) {
		prompt := fmt.Sprint(ids)
		if known[prompt] {
			cached = len(ids)
		}
		known[prompt] = true
		return cached
	}
	const warns = "the caches held prompts of an earlier run"
	one := func(args ...string) (seed, stdout string) {
		status, stdout, stderr := loading(t, append([]string{"--url", s.URL, "--rate", "1000", "--requests", "5", "--isl", "20", "--osl", "1"}, args...)...)
		m := regexp.MustCompile(`seed ([0-9]+) \(--seed ([0-9]+) repeats them\)`).FindStringSubmatch(stderr)
		require.True(t, status == exitOK && m != nil && m[1] == m[2], "status %d\n%s%s", status, stdout, stderr)
		return m[1], stdout
	}
	first, out := one()
	assert.True(t, !strings.Contains(out, warns) && first != "0", "the first run, of seed %s, warns:\n%s", first, out)
	second, out := one()
	assert.True(t, first != second && !strings.Contains(out, warns) && len(known) == 10,
		"seeds %s and %s, %d prompts:\n%s", first, second, len(known), out)
	if _, out = one("--seed", first); !strings.Contains(out, warns) || !strings.Contains(out, "100 of 100 prompt tokens were cached, and this workload repeats only 0") || len(known) != 10 {
		t.Errorf("%d prompts:\n%s", len(known), out)
	}
	// What a workload repeats by itself is no other run's.
	if _, out = one("--shared-prefix", "1"); strings.Contains(out, warns) || !strings.Contains(out, "hit rate 80.0 %") {
		t.Errorf("one prompt five times:\n%s", out)
	}
}
