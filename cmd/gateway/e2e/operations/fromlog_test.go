package operations

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/internal/tokens"
	"github.com/tandem-pd/tandem/lab/fleet"
	"github.com/tandem-pd/tandem/lab/replay"
)

// TestLogToTrace: what a fleet served is in its log and becomes a trace: lengths, times, and which prompts began alike.
func TestLogToTrace(t *testing.T) {
	f := fleet.New(t, fleet.Options{Gateway: func(c *stack.GatewayConfig) { c.Observe.Log = "blocks" }})
	sent := &replay.Workload{Name: "sent"}
	for i := range 30 {
		// Three families that share 1,024 tokens, some 1,536; the second half asks what the first did, but for the
		// length of the shared part. No two requests are of one length.
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
	require.Equal(t, len(sent.Requests), served.Answered, "answered requests")
	f.Eventually("a line for each request", func() bool { return strings.Count(f.Logs.String(), " msg=request ") == len(sent.Requests) })

	logged, err := replay.FromLog(strings.NewReader(f.Logs.String()), "gateway.log", false)
	require.NoError(t, err)
	var trace strings.Builder
	require.NoError(t, logged.Write(&trace))
	got, err := replay.ReadTrace(strings.NewReader(trace.String()), "own.jsonl", logged.BlockTokens, 0)
	if err != nil || logged.BlockTokens != 512 || logged.Named != len(sent.Requests) || len(got.Requests) != len(sent.Requests) {
		t.Fatalf("%d rows of %d, blocks of %d: %v", len(got.Requests), logged.Named, logged.BlockTokens, err)
	}
	// A busy machine may have requests overtake one another on their way.
	for _, w := range []*replay.Workload{got, sent} {
		slices.SortFunc(w.Requests, func(a, b replay.Request) int { return cmp.Compare(a.InputTokens(), b.InputTokens()) })
		for i := range w.Requests {
			w.Requests[i].Index, w.Requests[i].At = i, time.Duration(i)
		}
	}
	gotShared, sentShared := got.Shared(), sent.Shared()
	for i := range got.Requests {
		a, b := &got.Requests[i], &sent.Requests[i]
		assert.True(t, a.InputTokens() == b.InputTokens() && a.OutputTokens == b.OutputTokens,
			"request %d: %d and %d tokens, sent %d and %d", i, a.InputTokens(), a.OutputTokens, b.InputTokens(), b.OutputTokens)
		assert.Equal(t, sentShared[i]/512*512, gotShared[i], "tokens that request %d shares with one before it", i)
	}
}
