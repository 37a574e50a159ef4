package admission

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/pools"
)

// seats is a fleet of one prefill worker and so many decode workers that run one request each at a time. The first
// of them is tainted.
func seats(t *testing.T, decode int, mode string) *fleet.Fleet {
	f := fleet.New(t, fleet.Options{
		Prefill: 1, Decode: decode, Speedup: 1,
		Worker: func(c *devfleet.WorkerConfig) {
			c.Engine.MaxNumSeqs, c.Engine.ContextLength, c.Engine.TotalKVBlocks = 1, 1<<17, 1<<14
		},
		Gateway: func(c *stack.GatewayConfig) {
			fleet.InMode(mode)(c)
			c.Flow.Queue.Timeout = 10 * time.Second
		},
	})
	w := *f.Gateway.Roster.Snapshot("tandem-sim", pools.Decode).Members[0].Worker
	w.Taints = []string{"gold"}
	f.Put(w)
	return f
}

// take has the worker that nvext names run a request until the returned func is called.
func takeFrom(f *fleet.Fleet, worker string) (leave func()) {
	f.T.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	body := fmt.Sprintf(`{"model":"tandem-sim","max_tokens":100000,"stream":true,"prompt":%q,"nvext":{"decode_worker_id":%q}}`, fleet.Long, worker)
	begun := make(chan struct{})
	once := sync.OnceFunc(func() { close(begun) })
	group.Go(func() { _, _ = f.Try(ctx, fleet.CompletionPath, body, func(string) { once() }) })
	select {
	case <-begun:
	case <-time.After(10 * time.Second):
		f.T.Fatal(worker, " was never taken")
	}
	return func() {
		cancel()
		group.Wait()
	}
}

// A request that is bound to a busy worker waits for it without holding up those that are bound to others or to
// none, and is served before those that came later once there is room for it.
func TestABoundRequestHoldsUpItsLikeAlone(t *testing.T) {
	for _, c := range []struct{ name, mode, bound, other string }{
		{"pinned", "kv", `"decode_worker_id":"decode-1"`, ""},
		{"tainted", "kv", `"routing_constraints":{"required_taints":["gold"]}`, ""},
		{"direct", "direct", `"decode_worker_id":"decode-1"`, `"decode_worker_id":"decode-2"`},
	} {
		fleet.VirtualRun(t, c.name, func(t *testing.T) {
			f := seats(t, 2, c.mode)
			leave := takeFrom(f, "decode-1")
			var group sync.WaitGroup
			served := make(chan string, 2)
			send := func(name, nvext string) {
				group.Go(func() {
					a := f.Post(fleet.CompletionPath, fleet.Pinned(nvext))
					if a.Status != http.StatusOK {
						t.Errorf("%s: status %d: %s", name, a.Status, a.Body)
						return
					}
					served <- f.Parse(a.Body).Nvext.WorkerID.Decode
				})
			}
			send("the first that is bound", c.bound)
			f.Eventually("it waits", func() bool { return waitingAt(f) == 1 })
			for i := range 3 {
				a := f.Good(fleet.CompletionPath, fleet.Pinned(c.other))
				if w := f.Parse(a.Body).Nvext.WorkerID.Decode; w != "decode-2" {
					t.Errorf("request %d ran on %s", i, w)
				}
			}
			if waitingAt(f) != 1 {
				t.Error("the bound request did not wait for its worker")
			}
			leave()
			group.Wait()
			close(served)
			for w := range served {
				if w != "decode-1" {
					t.Errorf("the bound request ran on %s", w)
				}
			}
			f.Idle()
		})
	}
}
