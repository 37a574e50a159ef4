package real

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/fleet"
	"github.com/tandem-pd/tandem/pools"
)

// TestSoak keeps streams open over sockets, some of whose clients leave in the middle or read slowly, while workers die
// at random and come back. Each stream ends well, is refused or fails by a typed event, and in the end descriptors and
// goroutines are back.
func TestSoak(t *testing.T) {
	const streams, deaths = 30, 4
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d, relay %s", seed, *fleet.Relayed)
	o := fleet.Options{
		Prefill: 2, Decode: 3, Speedup: 20,
		Worker: func(c *devfleet.WorkerConfig) { c.Engine.Lease = time.Second },
		Gateway: func(c *stack.GatewayConfig) {
			c.Pools.DownFor, c.Upstream.IdleTimeout = 50*time.Millisecond, 200*time.Millisecond
		},
	}
	f := fleet.New(t, o)
	f.Exact(fleet.Long, 50)
	files, goroutines := footprintOf(f)
	var whole, left atomic.Int64
	ctx, over := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for i := range streams {
		all.Go(func() {
			for rng := rand.New(rand.NewPCG(seed, uint64(i))); ctx.Err() == nil; {
				client, leave := context.WithCancel(t.Context())
				stays, slow, seen := rng.IntN(4) > 0, rng.IntN(10) == 0, 0
				a, err := f.Try(client, fleet.CompletionPath,
					fleet.Ask(fmt.Sprintf("%d says %s", rng.Uint64(), fleet.Long), 50+rng.IntN(100)), func(string) {
						if seen++; !stays && seen > 20 {
							leave()
						}
						if slow {
							<-time.After(5 * time.Millisecond)
						}
					})
				switch gone := client.Err() != nil; {
				case err != nil && gone:
					left.Add(1)
				case err != nil || a.Status == http.StatusOK && a.Events[len(a.Events)-1] != "[DONE]" && fleet.FailureIn(a) == nil:
					t.Errorf("%v: a stream ended with %q", err, a.Events[max(0, len(a.Events)-1):])
				case a.Status == http.StatusOK && fleet.FailureIn(a) == nil:
					whole.Add(1)
				}
				leave()
			}
		})
	}
	for i := range deaths {
		<-time.After(200 * time.Millisecond)
		id := []string{"prefill-1", "decode-1", "prefill-2", "decode-2"}[i]
		f.Workers[id].Kill()
		<-time.After(100 * time.Millisecond)
		f.Start(pools.Role(id[:len(id)-2]), id, o, slog.New(slog.DiscardHandler))
	}
	over()
	all.Wait()
	t.Logf("%d streams ended well, %d clients left", whole.Load(), left.Load())
	assert.True(t, whole.Load() != 0 && left.Load() != 0, "nothing was shown")
	f.Eventually("descriptors and goroutines are back, but for the gateway's own calls to workers, its watches and the runtime's",
		func() bool {
			<-time.After(50 * time.Millisecond) // the look itself takes a fleet's time: books of every engine
			nowFiles, now := footprintOf(f)
			return nowFiles <= files+20 && now <= goroutines+20
		})
}

// footprintOf is what a fleet at rest takes.
func footprintOf(f *fleet.Fleet) (files, goroutines int) {
	f.Idle()
	http.DefaultClient.CloseIdleConnections()
	open, err := os.ReadDir("/proc/self/fd")
	require.NoError(f.T, err)
	return len(open), runtime.NumGoroutine()
}
