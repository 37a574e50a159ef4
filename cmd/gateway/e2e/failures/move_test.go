package failures

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/pools"
)

// TestDrainMoves: a drain with move empties a decode worker while its streams have most of their answers to come. They go on
// on the other one, exact; an answer that cannot move ends where it is.
func TestDrainMoves(t *testing.T) {
	fleet.Virtual(t, func(t *testing.T) {
		f := fleet.New(t, fleet.Options{Prefill: 1, Decode: 2, Speedup: 2})
		var stays sync.WaitGroup
		begun := make(chan struct{})
		stays.Go(func() {
			body := `{"model":"tandem-sim","stream":true,"max_tokens":100,"ignore_eos":true,"logprobs":true,"messages":[{"role":"user","content":"Hello"}]}`
			once := sync.OnceFunc(func() { close(begun) })
			a, err := f.Try(context.Background(), fleet.ChatPath, body, func(string) { once() })
			if want := fleet.Generated(fleet.ChatPrompt("Hello"), 100, false); err != nil || f.Text(a) != want {
				t.Errorf("%v: the answer that stays is %q, want %q", err, f.Text(a), want)
			}
		})
		<-begun
		f.Streams(12, 400, func() {
			if got := changeOf(f, "/workers/decode-1/move"); got != http.StatusOK {
				t.Fatalf("status %d", got)
			}
			f.Eventually("decode-1 is empty", func() bool { return f.Workers["decode-1"].Engine.Books().Running == 0 })
			if f.Workers["decode-2"].Engine.Books().Running == 0 {
				t.Error("the answers had ended before: nothing was shown")
			}
		})
		stays.Wait()
		if logs := f.Logs.String(); !strings.Contains(logs, "resumes=1") || strings.Contains(logs, "circuit open") {
			t.Error("no answer moved, or a circuit opened")
		}
		f.Idle()
	})
}

// TestRollingRestart restarts every worker of a fleet under load, each after a drain with move: no answer fails, none changes.
func TestRollingRestart(t *testing.T) {
	fleet.Virtual(t, func(t *testing.T) {
		o := fleet.Options{Prefill: 2, Decode: 2, Speedup: 4}
		f := fleet.New(t, o)
		ctx, stop := context.WithCancel(context.Background())
		defer stop()
		var group sync.WaitGroup
		var answered atomic.Int64
		for i := range 8 {
			group.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					f.Exact(fmt.Sprint(i, n, fleet.Long), 120)
					answered.Add(1)
				}
			})
		}
		for _, id := range []string{"decode-1", "prefill-1", "decode-2", "prefill-2"} {
			before := answered.Load()
			f.Eventually("answers come", func() bool { return answered.Load() >= before+8 })
			if got := changeOf(f, "/workers/"+id+"/move"); got != http.StatusOK {
				t.Fatalf("status %d", got)
			}
			f.Eventually(id+" is empty", func() bool {
				b := f.Workers[id].Engine.Books()
				return b.Running+b.Waiting+b.Transferring+len(b.Pinned) == 0 && !strings.Contains(f.Books(), id+": ")
			})
			f.Workers[id].Kill()
			f.Start(pools.Role(id[:strings.IndexByte(id, '-')]), id, o, slog.New(slog.DiscardHandler))
			if got := changeOf(f, "/workers/"+id+"/uncordon"); got != http.StatusOK {
				t.Fatalf("status %d", got)
			}
		}
		stop()
		group.Wait()
		if !strings.Contains(f.Logs.String(), "resumes=") {
			t.Error("no answer moved")
		}
		f.Idle()
	})
}

// change makes a change as an operator does, and returns the status.
func changeOf(f *fleet.Fleet, path string) int {
	f.T.Helper()
	res, err := f.HTTP().Post(f.URL+path, "", nil)
	if err != nil {
		f.T.Fatal(err)
	}
	defer res.Body.Close()
	return res.StatusCode
}
