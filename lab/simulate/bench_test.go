package simulate

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/lab/replay"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/queue"
	"github.com/tandem-pd/tandem/router"
)

const conversation = "../../../shared/data/mooncake_fast25/conversation_trace.jsonl.gz"

func trace(tb testing.TB, limit int) *replay.Workload {
	tb.Helper()
	f, err := os.Open(conversation)
	if err != nil {
		tb.Skipf("reads ../shared, which is absent: %v", err)
	}
	defer f.Close()
	w, err := replay.ReadTrace(f, "conversation", replay.MooncakeBlockTokens, limit)
	require.NoError(tb, err)
	return w
}

// h200 is what recipe R3 has as a worker.
func h200(block int) engine.Config {
	return engine.Config{
		BlockSize: block, TotalKVBlocks: 671_000 / block,
		Latency: engine.Latency{A: 10.5, B: 0.0625, Ctx: 0.0344, Prefill: 45.5, Quad: 1.43},
	}
}

func arm(w *replay.Workload, block int, mode string, fleet ...Group) Config {
	base := router.DefaultConfig()
	base.Mode, base.Seed, base.QueueThreshold = mode, 1, -1
	routers := map[pools.Role]router.Config{}
	for _, role := range []pools.Role{pools.Prefill, pools.Decode, pools.Both} {
		routers[role] = base.For(role)
	}
	return Config{
		Stages:  []Stage{{Name: "trace", Requests: w.Requests, Chains: NewChains(w.Requests, block)}},
		Fleet:   fleet,
		Routers: routers,
		Queue:   queue.Config{Policy: "fcfs", Limit: 1 << 20, Timeout: 24 * time.Hour, Bytes: 1 << 40},
	}
}

func BenchmarkConversation(b *testing.B) {
	w := trace(b, 0)
	for _, block := range []int{64, 16} {
		agg := Group{Count: 8, Role: pools.Both, Engine: h200(block)}
		p, d := Group{Count: 6, Role: pools.Prefill, Engine: h200(block)}, Group{Count: 2, Role: pools.Decode, Engine: h200(block)}
		for name, cfg := range map[string]Config{
			"agg-rr":  arm(w, block, "round-robin", agg),
			"agg-kv":  arm(w, block, "kv", agg),
			"6P2D-rr": arm(w, block, "round-robin", p, d),
			"6P2D-kv": arm(w, block, "kv", p, d),
		} {
			b.Run(name+"/"+map[int]string{64: "64", 16: "16"}[block], func(b *testing.B) {
				for b.Loop() {
					out, err := Run(b.Context(), cfg)
					if err != nil {
						b.Fatal(err)
					}
					s := replay.Summarize(out.Samples)
					good := 0
					for _, x := range out.Samples {
						if x.Outcome == replay.Answered && x.TTFT <= replay.Millis(2*time.Second) && x.ITL <= replay.Millis(25*time.Millisecond) {
							good++
						}
					}
					b.ReportMetric(s.TTFT.Mean.Float(), "ttft-ms")
					b.ReportMetric(s.TTFT.P99.Float(), "p99-ms")
					b.ReportMetric(s.ITL.Mean.Float(), "itl-ms")
					b.ReportMetric(*s.HitRate, "hit")
					b.ReportMetric(float64(good)/float64(len(out.Samples)), "goodput")
					b.ReportMetric(float64(out.Steps), "steps")
				}
			})
		}
	}
}
