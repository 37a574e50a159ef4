//go:build engines

package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var httpPort = flag.Int("http-port", 8000, "port of the gateway of BenchmarkTry")

// TestSetup builds what the engines need, unless this machine has it.
func TestSetup(t *testing.T) {
	for kind := range strings.SplitSeq(*engines, ",") {
		_, _, _, err := setup(t.Context(), kind, *tokenizer, os.Stderr)
		require.NoError(t, err)
	}
}

// trial is a run for people, whose progress goes to standard output.
type trial struct {
	*Host
	began time.Time
	bin   string
}

func (t *trial) report(format string, args ...any) {
	fmt.Printf("%4.0f s  %s\n", time.Since(t.began).Seconds(), fmt.Sprintf(format, args...))
}

// newTrial starts the host of the engine and builds the gateway.
func newTrial(ctx context.Context, b *testing.B) *trial {
	cache, err := Cache()
	require.NoError(b, err)
	t := &trial{began: time.Now()}
	t.report("Needs 9 GB in %s, 5 GB of memory and two cores; about 4 minutes, and 1 when the packages are there. Ctrl-C ends it.", cache)
	dir := b.TempDir()
	t.report("building the gateway; setting up %s and importing it; logs are in %s", *engines, dir)
	t.bin, err = Build(ctx, "../../../..", dir, os.Stderr)
	require.NoError(b, err)
	t.Host, err = Start(ctx, *engines, *tokenizer, dir, os.Stderr)
	require.NoError(b, err)
	b.Cleanup(func() { _ = t.Close() })
	return t
}

// BenchmarkTry is `make try-vllm`: a pair of prefill and decode workers, a first chat, and the console until Ctrl-C.
func BenchmarkTry(b *testing.B) {
	ctx, stop := signal.NotifyContext(b.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	t := newTrial(ctx, b)
	t.report("starting a prefill and a decode worker")
	var pair []*Engine
	for _, role := range []string{"prefill", "decode"} {
		e, err := t.Launch(Spec{Name: role, Role: role})
		require.NoError(b, err)
		pair = append(pair, e)
	}
	for _, e := range pair {
		require.NoError(b, e.Ready(ctx))
	}
	g, err := Serve(ctx, t.bin, "gateway", *httpPort, pair)
	require.NoError(b, err)
	defer g.Close()
	const question = `{"model":"tiny","messages":[{"role":"user","content":"Which worker has my KV?"}],"max_tokens":16,"nvext":{"extra_fields":["worker_id","timing"]}}`
	t.report("asking: %s", question)
	res, err := http.Post(g.URL+"/v1/chat/completions", "application/json", strings.NewReader(question))
	require.NoError(b, err)
	defer func() { _ = res.Body.Close() }()
	text, err := io.ReadAll(res.Body)
	require.NoError(b, err)
	var answer struct {
		Choices []struct{ Message struct{ Content string } }
		Nvext   json.RawMessage
	}
	require.NoError(b, json.Unmarshal(text, &answer), "%s", text)
	require.NotEmpty(b, answer.Choices, "%s", text)
	t.report("answer, of a model with random weights: %q %s", answer.Choices[0].Message.Content, answer.Nvext)
	t.report("The console is at %s/. Try:\n\n    curl -N %[1]s/v1/chat/completions -H 'content-type: application/json' -d '{\"model\":\"tiny\",\"stream\":true,\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}'\n", g.URL)
	<-ctx.Done()
}

// BenchmarkModes is `make try-vllm-routing`: it prints each routing mode's results.
func BenchmarkModes(b *testing.B) {
	t := newTrial(b.Context(), b)
	t.report("starting two workers whose caches hold a third of the load's prefixes; then 50 s a mode")
	var rows bytes.Buffer
	rows.WriteString("\n| mode | cached of the prompt tokens (engines' counters) | TTFT mean | p50 | p90 | p99, ms |\n|---|---|---|---|---|---|\n")
	require.NoError(b, CompareModes(b.Context(), t.Host, t.bin, []string{"round-robin", "kv", "auto"}, func(m Mode) {
		t.report("%s: %.1f %% of %.0f tokens cached, TTFT mean %.0f ms", m.Name, 100*m.Cached/m.Prompt, m.Prompt, m.Mean)
		fmt.Fprintf(&rows, "| %s | %.1f %% of %.0f | %.0f | %.0f | %.0f | %.0f |\n", m.Name, 100*m.Cached/m.Prompt, m.Prompt, m.Mean,
			m.P50, m.P90, m.P99)
	}))
	fmt.Print(rows.String())
}
