package service

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/kv/index"
	"github.com/tandem-pd/tandem/pools"
)

// filled is a running index of one model, whose workers each hold the whole
// chain.
func filled(t testing.TB, workers int, chain []uint64) (url string) {
	s := newIndex(t, Config{})
	url = start(t, s)
	x := s.backend.(*shared)
	for i := range workers {
		id := fmt.Sprintf("worker-%04d", i)
		must(t, s, 201, "POST", "/register", `{"id": "`+id+`", "model": "m", "block_size": 16}`)
		must(t, s, 200, "POST", "/events", `{"worker": "`+id+`", "events": [{"type": "cleared"}]}`)
		o, _ := x.models["m"].posted.Lookup(id, 0)
		x.models["m"].posted.Store(o, index.Device, chain)
	}
	return url
}

// asking is a client that has read who is registered.
func asking(t testing.TB, cfg ClientConfig) *Client {
	t.Helper()
	c, err := NewClient(cfg, pools.NewRoster(pools.Config{}, quiet), quiet, nil)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	t.Cleanup(func() { stop(); assert.NoError(t, <-ended) })
	require.Eventually(t, func() bool { return c.States()[0].Ranks > 0 }, 20*time.Second, time.Millisecond, "it reads who is registered")
	return c
}

// BenchmarkLookup is one lookup of 256 blocks over loopback, where every worker
// holds all, in the compact form and by the client that gateways use.
func BenchmarkLookup(b *testing.B) {
	chain := make([]uint64, 256)
	for i := range chain {
		chain[i] = uint64(i)*0x9e3779b97f4a7c15 + 1
	}
	for _, workers := range []int{4, 64, 1000} {
		c := asking(b, ClientConfig{URLs: []string{filled(b, workers, chain)}, Timeout: time.Second})
		b.Run(fmt.Sprint("workers=", workers), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				report, out := c.Lookup(b.Context(), "m", 16, chain)
				require.True(b, out == Answered && len(report.Tiers) == workers && report.Tiers[workers-1].Device == 256, out)
			}
		})
	}
}
