package stack

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/edge"
	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/router"
)

// What a gateway with 128 workers pays each second to know its problems.
func BenchmarkExamine128(b *testing.B) {
	cfg := GatewayConfig{
		Edge: setting.Default[edge.Config](), Flow: setting.Default[handoff.Config](), Router: router.DefaultConfig(), Goroutines: true,
	}
	g, err := NewGateway(cfg, Links{}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	require.NoError(b, err)
	for i := range 128 {
		role := []pools.Role{pools.Prefill, pools.Decode}[i%2]
		require.NoError(b, g.Roster.Put(pools.Worker{
			ID: fmt.Sprint(role, "-", i), Incarnation: "1", Model: "m", Role: role, Engine: "sim", Address: fmt.Sprintf("http://10.0.0.%d:1", i),
			BlockSize: 16, TotalKVBlocks: 10_000, MaxNumSeqs: 64, ModelInput: "text",
		}))
	}
	now := time.Now()
	for b.Loop() {
		now = now.Add(time.Second)
		g.examiner.examine(now)
	}
}
