package real

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/pools"
)

// soakFor is how long TestSoak lasts: the wire's own proof is -soak 30m.
var soakFor = flag.Duration("soak", 2*time.Second, "how long TestSoak has workers killed under its streams")

// soakStreams is how many streams are open at a time.
const soakStreams = 200

// soakLeaves is how many descriptors and goroutines more than before may be there in the end: the gateway's own calls to
// workers, its watches and the runtime's.
const soakLeaves = 20

// TestSoak keeps streams open, some of whose clients leave in the middle or read slowly, while workers die at random and
// come back. Each stream ends well, is refused or fails by a typed event; and in the end descriptors and goroutines are
// what they were before, and memory what it was after the first streams.
func TestSoak(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d, relay %s, %v", seed, *fleet.Relayed, *soakFor)
	f := fleet.New(t, fleet.Options{
		Prefill: 2, Decode: 3, Speedup: 20,
		Worker:  func(c *devfleet.WorkerConfig) { c.Engine.Lease = time.Second },
		Gateway: func(c *stack.GatewayConfig) { c.Pools.DownFor = 50 * time.Millisecond },
	})
	var whole, failed, left atomic.Int64
	stream := func(rng *rand.Rand, tokens int) {
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		stays, leavesAt, seen := rng.IntN(4) > 0, rng.IntN(tokens), 0
		slow := rng.IntN(10) == 0
		a, err := f.Try(ctx, fleet.CompletionPath, fleet.Ask(fmt.Sprintf("%d says %s", rng.Uint64(), fleet.Long), tokens), func(string) {
			if seen++; !stays && seen > leavesAt {
				leave()
			}
			if slow {
				<-time.After(5 * time.Millisecond)
			}
		})
		switch {
		case err != nil && ctx.Err() != nil:
			left.Add(1)
		case err != nil:
			t.Errorf("an answer broke off: %v", err)
		case a.Status != http.StatusOK:
			failed.Add(1)
		case len(a.Events) > 0 && a.Events[len(a.Events)-1] == "[DONE]":
			whole.Add(1)
		case len(a.Events) > 0 && strings.Contains(a.Events[len(a.Events)-1], `"error"`):
			failed.Add(1)
		default:
			t.Errorf("a stream ended with %q", a.Events[max(0, len(a.Events)-1):])
		}
	}
	soak := func(d time.Duration, kills bool) {
		ctx, stop := context.WithTimeout(t.Context(), d)
		defer stop()
		var all sync.WaitGroup
		for i := range soakStreams {
			all.Go(func() {
				for rng := rand.New(rand.NewPCG(seed, uint64(i))); ctx.Err() == nil; {
					stream(rng, 50+rng.IntN(300))
				}
			})
		}
		if kills {
			killAtRandom(f, ctx, rand.New(rand.NewPCG(seed, 1<<32)))
		}
		all.Wait()
	}
	stream(rand.New(rand.NewPCG(seed, 0)), 50)
	before := footprintOf(f)
	soak(min(*soakFor/5, 10*time.Second), false)
	before.heap = footprintOf(f).heap // caches are full of what the first streams asked
	soak(*soakFor, true)
	t.Logf("%d streams ended well, %d failed by name, %d clients left", whole.Load(), failed.Load(), left.Load())
	if whole.Load() == 0 || left.Load() == 0 {
		t.Error("nothing was shown")
	}
	var after footprint
	defer func() { t.Logf("before %+v, after %+v", before, after) }()
	f.Eventually("descriptors, goroutines and memory are back", func() bool {
		<-time.After(50 * time.Millisecond) // the look itself takes a fleet's time: a collection, books of every engine
		after = footprintOf(f)
		return after.files <= before.files+soakLeaves && after.goroutines <= before.goroutines+soakLeaves && after.heap <= before.heap+before.heap/4+16<<20
	})
}

// killAtRandom kills a worker now and then, at most all but one of its role, and starts it again.
func killAtRandom(f *fleet.Fleet, ctx context.Context, rng *rand.Rand) {
	ids := []string{"prefill-1", "prefill-2", "decode-1", "decode-2", "decode-3"}
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Duration(200+rng.IntN(800)) * time.Millisecond):
		}
		id := ids[rng.IntN(len(ids))]
		f.Workers[id].Kill()
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(rng.IntN(500)) * time.Millisecond):
		}
		role := pools.Role(id[:strings.IndexByte(id, '-')])
		f.Start(role, id, fleet.Options{Speedup: 20, Worker: func(c *devfleet.WorkerConfig) { c.Engine.Lease = time.Second }}, slog.New(slog.DiscardHandler))
	}
}

// footprint is what a fleet at rest takes.
type footprint struct {
	files, goroutines int
	heap              uint64 // bytes
}

func footprintOf(f *fleet.Fleet) footprint {
	f.Idle()
	http.DefaultClient.CloseIdleConnections()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		f.T.Fatal(err)
	}
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return footprint{len(files), runtime.NumGoroutine(), m.HeapAlloc}
}
