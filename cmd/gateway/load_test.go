package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/lab/replay"
)

// openAI is an endpoint that answers at once and remembers what it was asked.
type openAI struct {
	*httptest.Server
	answer http.HandlerFunc       // in place of complete's own; nil: none
	cached func(prompt []any) int // of the prompt's tokens; nil: half

	mu      sync.Mutex
	prompts []any
	keys    map[string]bool
}

func newOpenAI(t *testing.T) *openAI {
	s := &openAI{keys: map[string]bool{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"data":[{"id":"the-model"},{"id":"another"}]}`)
	})
	mux.HandleFunc("POST /v1/completions", s.complete)
	s.Server = httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

func (s *openAI) complete(w http.ResponseWriter, r *http.Request) {
	if s.answer != nil {
		s.answer(w, r)
		return
	}
	var in struct {
		Model     string
		Prompt    any
		MaxTokens int `json:"max_tokens"`
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil || in.Model != "the-model" {
		http.Error(w, `{"error":{"message":"what?"}}`, http.StatusBadRequest)
		return
	}
	ids, _ := in.Prompt.([]any)
	cached := len(ids) / 2
	s.mu.Lock()
	if s.cached != nil {
		cached = s.cached(ids)
	}
	s.prompts = append(s.prompts, in.Prompt)
	s.keys[r.Header.Get("Authorization")] = true
	s.mu.Unlock()
	for range in.MaxTokens {
		fmt.Fprint(w, "data: {\"choices\":[{\"index\":0,\"text\":\"x\"}]}\n\n")
		_ = http.NewResponseController(w).Flush()
	}
	fmt.Fprintf(w, "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":%d,\"completion_tokens\":%d,\"prompt_tokens_details\":{\"cached_tokens\":%d}}}\n\ndata: [DONE]\n\n", len(ids), in.MaxTokens, cached)
}

func loading(t *testing.T, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	return inside(t, nil, append([]string{"load"}, args...)...)
}

func TestLoadMakesAWorkloadAndReports(t *testing.T) {
	t.Parallel()
	s := newOpenAI(t)
	folder := t.TempDir()
	out, summary, page := filepath.Join(folder, "r.jsonl"), filepath.Join(folder, "r.json"), filepath.Join(folder, "r.html")
	status, stdout, stderr := loading(t, "--url", s.URL+"/v1/", "--rate", "500", "--requests", "40", "--seed", "1", "--isl", "50",
		"--osl", "3",
		"--shared-prefix", "0.5", "--api-key-file", written(t, "key", "secret\nother\n"), "--title", "Forty", "--out", out, "--json", summary,
		"--html", page)
	if status != exitOK || !strings.Contains(stdout, "40 answered, 0 failed") || !strings.Contains(stdout, "hit rate 50.0 %") {
		t.Fatalf("status %d\n%s%s", status, stdout, stderr)
	}
	assert.Contains(t, stderr, "model the-model, seed 1 (--seed 1 repeats them)", "the model and the seed are missing")
	assert.True(t, len(s.prompts) == 40 && s.keys["Bearer secret"] && len(s.keys) == 1,
		"%d prompts, keys %v", len(s.prompts), s.keys)
	first, second := s.prompts[0].([]any), s.prompts[1].([]any)
	common := 0
	for common < len(first) && first[common] == second[common] {
		common++
	}
	assert.True(t, len(first) == 50 && len(second) == 50 && common == 25,
		"prompts of %d and %d tokens with %d in common", len(first), len(second), common)
	read := func(path string) string {
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		return string(data)
	}
	assert.Equal(t, 40, strings.Count(read(out), "\n"), "lines, want 40")
	var report replay.Report
	if err := json.Unmarshal([]byte(read(summary)), &report); err != nil || report.Summary.Answered != 40 ||
		report.Summary.TTFT.Count != 40 || report.Seed != 1 {
		t.Errorf("%+v, error %v", report, err)
	}
	assert.Contains(t, read(page), "<title>Forty</title>", "the HTML report has no title")
}

// Ctrl-C in the middle ends with a report of what ran.
func TestLoadIsEndedByItsContext(t *testing.T) {
	s := newOpenAI(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var asked atomic.Int32
	s.answer = func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1) == 4 {
			cancel()
		}
		fmt.Fprint(w, "data: {\"choices\":[{\"index\":0,\"text\":\"x\"}]}\n\ndata: [DONE]\n\n")
	}
	trace := written(t, "trace.jsonl", strings.Repeat(`{"timestamp":0,"session_id":"a","input_length":10,"output_length":1}`+"\n", 4)+
		`{"timestamp":0,"session_id":"a","delay":3600000,"input_length":10,"output_length":1}`)
	status, stdout, stderr := runIn(ctx, nil, "load", "--url", s.URL, "--trace", trace)
	if status != exitOK || !strings.Contains(stdout, "ended before its time: 4 of 5 requests were due") ||
		strings.Contains(stdout, " 1 failed") {
		t.Errorf("status %d\n%s%s", status, stdout, stderr)
	}
}

// Where each request is refused, the report has no figure of no value, and repeats the endpoint's own sentence.
func TestLoadOfAnEndpointThatRefuses(t *testing.T) {
	t.Parallel()
	s := newOpenAI(t)
	s.answer = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(503)
		fmt.Fprint(w, `{"error":{"message":"the queue is full; try again in 1 s","type":"overloaded_error","code":"server_is_overloaded"}}`)
	}
	status, stdout, stderr := loading(t, "--url", s.URL, "--rate", "1000", "--requests", "107", "--isl", "5", "--osl", "3")
	assert.Equal(t, exitFailed, status)
	for _, want := range []string{
		"0 answered, 107 refused, 0 failed", "http_503      server_is_overloaded       107  the queue is full; try again in 1 s\n",
		"Goodput: 0 of 107 requests, since none was answered.",
		"107 of 107 requests were not answered, 107 of them: http_503 server_is_overloaded: the queue is full",
	} {
		assert.Contains(t, stdout+stderr, want)
	}
	assert.NotRegexp(t, `It lacks|would tell|over seeds|NaN|Inf|Take |TTFT +0 +0`, stdout)
}

// TestLoadDrawsASeed: two runs ask different prompts, the seed that is printed
// repeats one, and a run that finds another's prompts cached reports it.
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
		status, stdout, stderr := loading(t, append([]string{"--url", s.URL, "--rate", "1000", "--requests", "5", "--isl", "20", "--osl", "1"},
			args...)...)
		m := regexp.MustCompile(`seed ([0-9]+) \(--seed ([0-9]+) repeats them\)`).FindStringSubmatch(stderr)
		require.True(t, status == exitOK && m != nil && m[1] == m[2], "status %d\n%s%s", status, stdout, stderr)
		return m[1], stdout
	}
	first, out := one()
	assert.True(t, !strings.Contains(out, warns) && first != "0", "the first run, of seed %s, warns:\n%s", first, out)
	second, out := one()
	assert.True(t, first != second && !strings.Contains(out, warns) && len(known) == 10,
		"seeds %s and %s, %d prompts:\n%s", first, second, len(known), out)
	if _, out = one("--seed", first); !strings.Contains(out, warns) ||
		!strings.Contains(out, "100 of 100 prompt tokens were cached, and this workload repeats only 0") || len(known) != 10 {
		t.Errorf("%d prompts:\n%s", len(known), out)
	}
	// What a workload repeats by itself is no other run's.
	if _, out = one("--shared-prefix", "1"); strings.Contains(out, warns) || !strings.Contains(out, "hit rate 80.0 %") {
		t.Errorf("one prompt five times:\n%s", out)
	}
}

func TestLoadRefuses(t *testing.T) {
	t.Parallel()
	trace := written(t, "trace.jsonl", `{"timestamp":0,"input_length":10}`)
	lines(t, nil, "load", []line{
		{"--rate 1 --trace x", exitUsage, "--trace FILE and --rate R: only one"},
		{"--isl 5", exitUsage, "isl (flag)"},
		{"--trace-block-size 16", exitUsage, "the built-in one"},
		{"--trace /nowhere/x.jsonl", exitUsage, "/nowhere/x.jsonl is absent; `gateway traces` lists"},
		{"--trace /nowhere/conversation_trace.jsonl.gz", exitUsage, "`gateway traces fetch /nowhere/conversation_trace.jsonl.gz` downloads it"},
		{"--trace " + trace, exitUsage, "trace.jsonl:1: output_length: missing"},
		{"--trace " + trace + " --isl 5", exitUsage, "isl (flag)"},
		{"--rate 1 --requests 0 --duration 0", exitUsage, "never end"},
		{"--rate 1 --url localhost:8000", exitUsage, "is not an address, as http://HOST:PORT"},
		{"--rate 1 --tokenizer " + trace, exitUsage, "trace.jsonl"},
		{"--rate 1 --api-key-file /nowhere/key", exitUsage, "/nowhere/key"},
		{"--rate 1 --model m --html /nowhere/r.html", exitFailed, "/nowhere/r.html"},
		{"--rate 1 --url http://127.0.0.1:1", exitFailed, "nothing listens at http://127.0.0.1:1: start a fleet to try with `gateway dev`"},
		{"--help-all", exitOK, "--shared-prefix"},
	})
}
