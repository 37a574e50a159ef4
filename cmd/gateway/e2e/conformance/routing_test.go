//go:build engines

package conformance

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/lab/testkit"
)

// Mode is what one routing mode reached in CompareModes.
type Mode struct {
	Name string
	// Cached of Prompt tokens were in the engines' caches, by their own counters.
	Cached, Prompt float64
	// TTFT in milliseconds, as vLLM's bench tool has it.
	Mean, P50, P90, P99 float64
}

// CompareModes sends the same load through each routing mode to two vLLM workers whose caches hold a third of it: 60
// prompts with 12 shared prefixes of 1,536 tokens, by vLLM's own bench tool. It takes some 50 s a mode; report is
// called after each.
func CompareModes(ctx context.Context, h *Host, bin string, modes []string, report func(Mode)) error {
	var engines []*Engine
	for i := range 2 {
		e, err := h.Launch(Spec{Name: fmt.Sprintf("routed-%d", i+1),
			Args: []string{"--num-gpu-blocks-override", "420", "--block-size", "32", "--max-model-len", "8192"}})
		if err != nil {
			return err
		}
		engines = append(engines, e)
	}
	for _, e := range engines {
		if err := e.Ready(ctx); err != nil {
			return err
		}
	}
	for _, name := range modes {
		m, err := h.measure(ctx, bin, name, engines)
		if err != nil {
			return fmt.Errorf("mode %s: %w", name, err)
		}
		report(m)
	}
	return nil
}

// measure sends the load through one mode.
func (h *Host) measure(ctx context.Context, bin, mode string, engines []*Engine) (m Mode, err error) {
	m.Name = mode
	for _, e := range engines {
		res, err := http.Post(e.URL+"/reset_prefix_cache", "", nil)
		if err != nil {
			return m, err
		}
		_ = res.Body.Close()
	}
	cached, prompt, err := counters(ctx, engines)
	if err != nil {
		return m, err
	}
	port, err := testkit.FindPort()
	if err != nil {
		return m, err
	}
	g, err := Serve(ctx, bin, "gateway-"+mode, port, engines, "--router-mode", mode, "--sse-heartbeat", "0")
	if err != nil {
		return m, err
	}
	defer g.Close()
	log, err := h.Run(ctx, "bench-"+mode, strings.Fields(fmt.Sprintf("bench serve --backend openai --base-url %s --model tiny --tokenizer %s "+
		"--dataset-name prefix_repetition --prefix-repetition-prefix-len 1536 --prefix-repetition-suffix-len 128 "+
		"--prefix-repetition-num-prefixes 12 --prefix-repetition-output-len 8 --num-prompts 60 --request-rate 1.2 --seed 1 "+
		"--ignore-eos --percentile-metrics ttft --metric-percentiles 50,90,99 --save-result --result-dir %s --result-filename %s.json",
		g.URL, filepath.Join(h.Models, "tiny"), h.Dir, mode))...)
	if err != nil {
		return m, fmt.Errorf("%w\n%s", err, tail(log))
	}
	text, err := os.ReadFile(filepath.Join(h.Dir, mode+".json"))
	if err != nil {
		return m, err
	}
	var result struct {
		Failed int     `json:"failed"`
		Mean   float64 `json:"mean_ttft_ms"`
		P50    float64 `json:"p50_ttft_ms"`
		P90    float64 `json:"p90_ttft_ms"`
		P99    float64 `json:"p99_ttft_ms"`
	}
	if err := json.Unmarshal(text, &result); err != nil {
		return m, err
	}
	if result.Failed > 0 {
		return m, fmt.Errorf("%d requests failed:\n%s", result.Failed, tail(log))
	}
	m.Mean, m.P50, m.P90, m.P99 = result.Mean, result.P50, result.P90, result.P99
	c, p, err := counters(ctx, engines)
	m.Cached, m.Prompt = c-cached, p-prompt
	return m, err
}

// counters sums the engines' counters of prompt tokens: those found in a cache, and all.
func counters(ctx context.Context, engines []*Engine) (cached, all float64, err error) {
	for _, e := range engines {
		cached += e.Metric(ctx, "vllm:prefix_cache_hits_total", &err)
		all += e.Metric(ctx, "vllm:prefix_cache_queries_total", &err)
	}
	return cached, all, err
}

// Metric returns the sum of a metric's series. A failure is left in err.
func (e *Engine) Metric(ctx context.Context, name string, err *error) float64 {
	return Metric(ctx, e.URL, name, err)
}

// Metric returns the sum of a metric's series at a server, or the value of one series with its labels. A failure is left
// in err; so is that the server has no metric of the name.
func Metric(ctx context.Context, base, name string, err *error) (sum float64) {
	req, failure := http.NewRequestWithContext(ctx, http.MethodGet, base+"/metrics", nil)
	if failure != nil {
		*err = failure
		return 0
	}
	res, failure := http.DefaultClient.Do(req)
	if failure != nil {
		*err = failure
		return 0
	}
	defer func() { _ = res.Body.Close() }()
	family, _, _ := strings.Cut(name, "{")
	found := false
	s := bufio.NewScanner(res.Body)
	for s.Scan() {
		found = found || strings.HasPrefix(s.Text(), "# TYPE "+family+" ")
		series, value, ok := strings.Cut(s.Text(), " ")
		if all, _, _ := strings.Cut(series, "{"); !ok || all != name && series != name {
			continue
		}
		found = true
		v, failure := strconv.ParseFloat(value, 64)
		if failure != nil {
			*err = failure
		}
		sum += v
	}
	if s.Err() != nil {
		*err = s.Err()
	} else if !found {
		*err = fmt.Errorf("%s/metrics has no %s", base, family)
	}
	return sum
}

// The sum is of all series, 0 before the first one; a metric that a server does not have is an error, and no 0.
func TestMetric(t *testing.T) {
	// The text format of https://prometheus.io/docs/instrumenting/exposition_formats/.
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("# TYPE run gauge\nrun{rank=\"0\"} 2\nrun{rank=\"1\"} 3\n# TYPE none counter\n"))
	}))
	defer server.Close()
	var err error
	assert.Equal(t, 5., Metric(t.Context(), server.URL, "run", &err))
	assert.Equal(t, 3., Metric(t.Context(), server.URL, `run{rank="1"}`, &err))
	assert.Zero(t, Metric(t.Context(), server.URL, `none{result="released"}`, &err))
	require.NoError(t, err)
	assert.Zero(t, Metric(t.Context(), server.URL, "running", &err))
	require.Error(t, err)
}
