package routing

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/service"
	"github.com/tandem-pd/tandem/handoff"
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/lab/fleet"
	"github.com/tandem-pd/tandem/lab/replay"
	"github.com/tandem-pd/tandem/lab/simulate"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router"
)

// TestSelectChoosesAsSimulated: `gateway select` and the simulator choose the same workers for the same requests, seed
// and fleet, where nothing but the seed decides among equal workers. TestSimulateAgreesWithTheWire compares the
// gateway.
func TestSelectChoosesAsSimulated(t *testing.T) {
	const requests, tokens, blockSize = 40, 50, 16
	base := router.DefaultConfig()
	base.Seed = 9
	routers := base.ByRole()
	for name, counts := range map[string]map[pools.Role]int{
		"3P4D": {pools.Prefill: 3, pools.Decode: 4}, "5": {pools.Both: 5},
	} {
		t.Run(name, func(t *testing.T) {
			sel := startSelect(t, service.SelectConfig{Routers: routers})
			plan := simulate.Config{
				Routers: routers, Queue: setting.Default[queue.Config](),
				Name: func(_, i int) string { return handoff.SeededID(9, uint64(i+1)) },
			}
			for role, count := range counts {
				plan.Fleet = append(plan.Fleet, simulate.Group{Count: count, Role: role, Engine: engine.Config{
					BlockSize: blockSize, TotalKVBlocks: 1000, MaxNumSeqs: 8, MaxNumBatchedTokens: 512, ContextLength: 4096,
				}})
				for i := range count {
					record, _ := json.Marshal(pools.Worker{
						ID: fmt.Sprintf("%s-%d", role, i+1), Incarnation: "1", Model: simulate.Model, Role: role, Engine: "sim",
						Address: "http://127.0.0.1:1", BlockSize: blockSize, TotalKVBlocks: 1000, MaxNumSeqs: 8, MaxNumBatchedTokens: 512,
						ContextLength: 4096,
					})
					sel.Post("/workers", string(record))
				}
			}
			stage := simulate.Stage{Name: "all"}
			for i := range requests { // an hour apart: each finds an idle fleet
				stage.Requests = append(stage.Requests, replay.Request{
					Index: i, At: time.Duration(i) * time.Hour, OutputTokens: 1, Spans: []replay.Span{{ID: uint64(i), Tokens: tokens}},
				})
			}
			stage.Chains = simulate.NewChains(stage.Requests, blockSize)
			plan.Stages = []simulate.Stage{stage}
			out, err := simulate.Run(t.Context(), plan)
			require.NoError(t, err)
			different := map[string]bool{}
			for i, s := range out.Samples {
				ids := make([]string, tokens)
				for k := range ids {
					ids[k] = fmt.Sprint(1000*i + k)
				}
				prompt := "[" + strings.Join(ids, ",") + "]"
				want := s.PrefillWorker + " " + s.DecodeWorker
				different[want] = true
				var chosen struct{ Legs []struct{ Worker string } }
				require.NoError(t, json.Unmarshal(sel.Post("/select",
					`{"model":"simulated","id":"`+handoff.SeededID(9, uint64(i+1))+`","token_ids":`+prompt+`}`).Body, &chosen))
				got := " " + chosen.Legs[len(chosen.Legs)-1].Worker
				if len(chosen.Legs) == 2 {
					got = chosen.Legs[0].Worker + got
				}
				assert.Equal(t, want, got, "request %d: select and the simulator", i)
			}
			assert.GreaterOrEqual(t, len(different), 3, "pairs that were chosen: nothing was drawn")
		})
	}
}

// startSelect runs the service of `gateway select` until the test ends.
func startSelect(t *testing.T, cfg service.SelectConfig) *fleet.Fleet {
	t.Helper()
	s, err := service.NewSelect(service.Config{}, cfg, nil, http.NotFoundHandler(), slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	require.NoError(t, err)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, ln) }()
	t.Cleanup(func() {
		stop()
		assert.NoError(t, <-ended, "select")
	})
	sel := &fleet.Fleet{T: t, URL: "http://" + ln.Addr().String()}
	sel.Eventually("select is ready", func() bool { return sel.Status("/ready") == http.StatusOK })
	return sel
}
