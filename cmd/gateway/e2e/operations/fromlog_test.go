package operations

import (
	"cmp"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/internal/tokens"
	"github.com/tandem-pd/tandem/lab/replay"
	"github.com/tandem-pd/tandem/lab/simulate"
)

// TestLogToTraceToSimulation: what a fleet served comes back out of its log as a
// trace (lengths, times, and which prompts began alike), and the simulator finds
// about as much of it cached as the fleet did.
func TestLogToTraceToSimulation(t *testing.T) {
	f := fleet.New(t, fleet.Options{Gateway: func(c *stack.GatewayConfig) { c.Observe.LogBlocks = true }})
	sent := &replay.Workload{Name: "sent"}
	for i := range 30 {
		// Three families that share 1,024 tokens, some 1,536; the second half asks
		// what the first did, but for the length of the shared part. No two
		// requests are of one length.
		family := uint64(i % 3)
		own := uint64(100 + i%15)
		sent.Requests = append(sent.Requests, replay.Request{
			Index: i, At: time.Duration(i) * 20 * time.Millisecond, OutputTokens: 3 + i%4,
			Spans: []replay.Span{{ID: family, Tokens: 1024 + 512*(i%2)}, {ID: own, Tokens: 600 + i}},
		})
	}
	prompter, err := replay.NewPrompter(tokens.Sim(), 1)
	require.NoError(t, err)
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	run, err := replay.New(replay.Config{Speed: 1, MaxInFlight: 100, Timeout: time.Minute}, sent, &replay.Endpoint{
		URL: f.URL, Model: "tandem-sim", Prompter: prompter, IgnoreEOS: true, Transport: transport,
	})
	require.NoError(t, err)
	served := replay.Summarize(run.Run(t.Context()))
	require.Equal(t, len(sent.Requests), served.Answered, "of N requests were answered")
	f.Eventually("a line for each request", func() bool { return strings.Count(f.Logs.String(), " msg=request ") == len(sent.Requests) })

	logged, err := replay.FromLog(strings.NewReader(f.Logs.String()), "gateway.log", false)
	require.NoError(t, err)
	dir := t.TempDir()
	var trace strings.Builder
	require.NoError(t, logged.Write(&trace))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "own.jsonl"), []byte(trace.String()), 0o600))
	got, err := replay.ReadTrace(strings.NewReader(trace.String()), "own.jsonl", logged.BlockTokens, 0)
	if err != nil || logged.BlockTokens != 512 || logged.Named != len(sent.Requests) || len(got.Requests) != len(sent.Requests) {
		t.Fatalf("%d rows of %d, blocks of %d: %v", len(got.Requests), logged.Named, logged.BlockTokens, err)
	}
	// A busy machine may have requests overtake one another on their way.
	slices.SortFunc(got.Requests, func(a, b replay.Request) int { return cmp.Compare(a.InputTokens(), b.InputTokens()) })
	slices.SortFunc(sent.Requests, func(a, b replay.Request) int { return cmp.Compare(a.InputTokens(), b.InputTokens()) })
	for i := range got.Requests {
		a, b := &got.Requests[i], &sent.Requests[i]
		assert.True(t, a.InputTokens() == b.InputTokens() && a.OutputTokens == b.OutputTokens,
			"request %d: %d and %d tokens, sent %d and %d", i, a.InputTokens(), a.OutputTokens, b.InputTokens(), b.OutputTokens)
		for j := range i {
			assert.Equal(t, alike(b, &sent.Requests[j])/512*512, alike(a, &got.Requests[j]),
				"requests %d and %d sh tokens by the log, and shared", j, i)
		}
	}

	study, err := simulate.ParsePlan(filepath.Join(dir, "own.yaml"),
		[]byte("workload: {trace: own.jsonl}\nfleet: {workers: 2P2D, block_tokens: 16, kv_tokens: 65536}\nrouter: {mode: kv}\nseeds: [1]\n"))
	require.NoError(t, err)
	report, err := study.Run(t.Context(), nil)
	require.NoError(t, err)
	require.NotNil(t, served.HitRate, "the fleet reports no hit rate")
	simulated := report.Arms[0].Stats["hit_rate"].Mean
	t.Logf("hit rate %.3f served, %.3f simulated", *served.HitRate, simulated)
	assert.True(t, *served.HitRate >= 0.2 && math.Abs(simulated-*served.HitRate) <= 0.15,
		"the fleet found %.3f cached, the simulator %.3f", *served.HitRate, simulated)
}

// alike is how many tokens two prompts share from their beginning.
func alike(a, b *replay.Request) (n int) {
	for i := range min(len(a.Spans), len(b.Spans)) {
		if a.Spans[i].ID != b.Spans[i].ID {
			return n
		}
		shared := min(a.Spans[i].Tokens, b.Spans[i].Tokens)
		n += shared
		if a.Spans[i].Tokens != b.Spans[i].Tokens {
			return n
		}
	}
	return n
}
