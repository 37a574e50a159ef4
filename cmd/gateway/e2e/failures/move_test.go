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
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/pools"
)

// TestDrainMoves: a drain with move empties a decode worker while its streams have most of their answers to come. They go on
// on the other one, exact; an answer that cannot move ends where it is.
func TestDrainMoves(t *testing.T) {
	fleet.Virtual(t, func(t *testing.T) {
		f := fleet.New(t, fleet.Options{Prefill: 1, Decode: 2, Speedup: 2})
		const streams, tokens = 12, 400
		var begun, group sync.WaitGroup
		begun.Add(streams + 1)
		stream := func(path, body, want string, finish string) {
			n := 0
			a, err := f.Try(context.Background(), path, body, func(string) {
				if n++; n == 5 {
					begun.Done()
				}
			})
			if err != nil {
				t.Error(err)
				return
			}
			if got := f.Text(a); got != want || a.Events[len(a.Events)-1] != finish {
				t.Errorf("the answer is %q, want %q", got, want)
			}
		}
		for i := range streams {
			prompt := fmt.Sprint(i, fleet.Long)
			group.Go(func() {
				stream(fleet.CompletionPath, fleet.Ask(prompt, tokens), fleet.Answered(prompt, tokens), "[DONE]")
			})
		}
		group.Go(func() { // it stays
			body := `{"model":"tandem-sim","stream":true,"max_tokens":100,"ignore_eos":true,"logprobs":true,"messages":[{"role":"user","content":"Hello"}]}`
			stream(fleet.ChatPath, body, fleet.Generated(fleet.ChatPrompt("Hello"), 100, false), "[DONE]")
		})
		begun.Wait()
		if got := changeOf(f, "/workers/decode-1/move"); got != http.StatusOK {
			t.Fatalf("status %d", got)
		}
		moved := time.Now()
		f.Eventually("decode-1 is empty", func() bool { return f.Workers["decode-1"].Engine.Books().Running == 0 })
		t.Logf("empty after %v; decode-2 has %d", time.Since(moved), f.Workers["decode-2"].Engine.Books().Running)
		if f.Workers["decode-2"].Engine.Books().Running == 0 {
			t.Error("the answers had ended before: nothing was shown")
		}
		group.Wait()
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
		var answered, moved atomic.Int64
		for i := range 8 {
			group.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					prompt := fmt.Sprint(i, n, fleet.Long)
					a, err := f.Try(context.Background(), fleet.CompletionPath, fleet.Ask(prompt, 120), nil)
					if err != nil || a.Status != http.StatusOK {
						t.Errorf("%v, status %d: %s", err, a.Status, a.Body)
						return
					}
					if got, want := f.Text(a), fleet.Answered(prompt, 120); got != want || a.Events[len(a.Events)-1] != "[DONE]" {
						t.Errorf("the answer is %q, want %q", got, want)
					}
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
		moved.Store(int64(strings.Count(f.Logs.String(), "resumes=")))
		t.Logf("%d answers, %d moves", answered.Load(), moved.Load())
		if moved.Load() == 0 {
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
