package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/lab/devfleet"
)

// ask prints what a stream of vLLM's form holds, and ends with an error for each way in which such a stream can fail.
func TestAsk(t *testing.T) {
	t.Parallel()
	const head = `data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1,"model":"m",`
	const chunk = head + `"choices":[{"index":0,"delta":{"content":"%s"},"logprobs":null,"finish_reason":null}]}` + "\n\n"
	usage := head + `"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"total_tokens":11}}` + "\n\n"
	seen := `data: {"id":"chatcmpl-1","choices":[],"nvext":{"worker_id":{"prefill_worker_id":"p1","decode_worker_id":"d2"},` +
		`"timing":{"queue_ms":1,"prefill_ms":20.4,"transfer_ms":3},"routing":{"predicted_cached_tokens":0,"actual_cached_tokens":4}}}` + "\n\n"
	lost := `data: {"error":{"message":"decode worker lost"}}` + "\n\n"
	hello := fmt.Sprintf(chunk, "Hel") + fmt.Sprintf(chunk, "lo")
	for body, want := range map[string]struct {
		status       int
		text, stderr string
	}{
		hello + usage + seen + "data: [DONE]\n\n": {exitOK, "Hello\n\np1 prefilled, d2 decoded · TTFT ", ""},
		hello + "data: [DONE]\n\n":                {exitOK, "Hello\n\nTTFT ", ""},
		hello:                                     {exitFailed, "Hello", "the stream ended without [DONE]"},
		hello + lost:                              {exitFailed, "Hello", "the answer ended with an error: decode worker lost"},
		"data: <html>\n\n":                        {exitFailed, "", "an event is not a chunk"},
		"data: " + strings.Repeat("x", maxAskEvent+1000): {exitFailed, "", "gateway ask: "},
	} {
		var asked struct {
			Model    string
			Messages []struct{ Content string }
		}
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodGet {
				_, _ = io.WriteString(w, `{"object":"list","data":[{"id":"m","object":"model"}]}`)
				return
			}
			_ = json.NewDecoder(r.Body).Decode(&asked)
			w.Header().Set("X-Request-Id", "abc")
			_, _ = io.WriteString(w, body)
		}))
		status, stdout, stderr := inside(t, nil, "ask", "--url", server.URL, "Hi", "there")
		server.Close()
		assert.Equal(t, want.status, status, stderr)
		assert.True(t, strings.HasPrefix(stdout, want.text), stdout)
		assert.Contains(t, stderr, want.stderr)
		if want.status == exitOK {
			assert.True(t, strings.HasSuffix(stdout, "\nrequest abc\n"), stdout)
		}
		assert.Equal(t, "m", asked.Model)
		assert.Equal(t, "Hi there", asked.Messages[0].Content)
	}
	refusing := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && r.Header.Get("Authorization") != "Bearer empty" {
			http.Error(w, `{"error":{"message":"a key is missing"}}`, http.StatusUnauthorized)
			return
		}
		_, _ = io.WriteString(w, `{"data":[]}`)
	}))
	defer refusing.Close()
	lines(t, nil, "ask", []line{
		{"", exitUsage, "it takes the text"},
		{"hello --url http://127.0.0.1:1", exitFailed, "start one with `gateway dev`"},
		{"hello --url " + refusing.URL, exitFailed, "401 Unauthorized: a key is missing"},
		{"hello --url " + refusing.URL + " --api-key-file " + written(t, "key", "empty\n"), exitFailed, "lists no model"},
		{"hello --api-key-file /nowhere", exitUsage, "/nowhere"},
	})
}

// A fleet of dev serves the load that dev prints: simulated with the workers' own fit, at the limits that load has.
func TestDevPrintsALoadThatItsFleetServes(t *testing.T) {
	t.Parallel()
	for _, fleet := range [][2]int{{1, 1}, {2, 2}, {1, 4}, {6, 1}, {0, 2}} {
		workers := fmt.Sprintf("%dP%dD", fleet[0], fleet[1])
		if fleet[0] == 0 {
			workers = fmt.Sprint(fleet[1])
		}
		plan := written(t, "plan.yaml", fmt.Sprintf("fleet: {workers: %s, fit: qwen3-32b-h100-tp2}\nslo: {ttft: 2s, itl: 25ms}\n"+
			"workload: {input_tokens: 1000, output_tokens: 100, stages: [{rate: %g, duration: 60s}]}\n",
			workers, devfleet.Rate(fleet[0], fleet[1], 1)))
		out := written(t, "out.json", "")
		status, _, stderr := inside(t, nil, "simulate", plan, "--seeds", "1", "--json", out)
		require.Equal(t, exitOK, status, stderr)
		var report struct {
			Arms []struct{ Goodput struct{ Mean float64 } }
		}
		raw, err := os.ReadFile(out)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(raw, &report))
		assert.GreaterOrEqual(t, report.Arms[0].Goodput.Mean, .95, workers)
	}
}
