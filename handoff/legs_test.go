package handoff

import (
	"context"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/internal/openai"
	"github.com/tandem-pd/tandem/models"
	"github.com/tandem-pd/tandem/pools"
)

// holding answers prefill at once and holds decode calls until their context ends.
type holding struct{ held chan struct{} }

func (h holding) Call(ctx context.Context, leg http1.Leg) (http1.Stream, error) {
	switch pools.Role(leg.Purpose) {
	case pools.Prefill:
		return answer(200, `{"choices":[],"kv_transfer_params":{"do_remote_prefill":true,"do_remote_decode":false,"remote_block_ids":[[1]],"remote_engine_id":"e","remote_request_id":"r","remote_host":"h","remote_port":5600}}`), nil
	case pools.Decode:
		h.held <- struct{}{}
		<-ctx.Done()
	}
	return nil, broken(leg, context.Cause(ctx))
}

// TestRunningRequestsCostTheirBodies: a request that decodes holds its body once,
// and its tokens, of four bytes each, where the gateway has the tokenizer.
func TestRunningRequestsCostTheirBodies(t *testing.T) {
	t.Run("without a tokenizer", func(t *testing.T) { costOfRunning(t, nil) })
	t.Run("with one", func(t *testing.T) { costOfRunning(t, models.Sim(1<<20)) })
}

func costOfRunning(t *testing.T, sim *models.Language) {
	const requests, size = 16, 1 << 20
	net := holding{make(chan struct{})}
	f := build(t, oneOfEach, net, func(c *Config, rooms *Rooms) {
		c.DecodeFallback, rooms.Languages = false, languages(t, sim) // decode waits for the KV
	})
	ctx, leave := context.WithCancel(t.Context())
	var running sync.WaitGroup
	body := `{"model":"m","stream":true,"max_tokens":9,"prompt":"` + strings.Repeat("hello world ", size/12) +
		`"}` // one, so that a cache is predicted once
	start := func() {
		r := scanned(t, openai.Completions, body)
		running.Go(func() {
			_ = f.Serve(ctx, &Call{ID: "x", Request: r, Arrival: time.Now()}, &written{}) // left by its client
		})
		<-net.held
	}
	start()
	before := liveBytes()
	for range requests {
		start()
	}
	each := (liveBytes() - before) / requests
	limit := int64(size * 5 / 4)
	if sim != nil {
		limit += 4 * int64(len(sim.Tokenizer().Encode(nil, body)))
	}
	assert.LessOrEqual(t, each, limit, "a running request of %d bytes holds X, want at most", size)
	leave()
	running.Wait()
	assert.NoError(t, f.Close(t.Context()))
}

// liveBytes is the heap in use without pooled buffers, which two collections empty.
func liveBytes() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
