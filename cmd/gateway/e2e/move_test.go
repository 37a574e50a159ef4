package e2e

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

	"github.com/tandem-pd/tandem/pools"
)

// TestDrainMoves: a drain with move empties a decode worker while its streams have most of their answers to come. They go on
// on the other one, exact; an answer that cannot move ends where it is.
func TestDrainMoves(t *testing.T) {
	virtual(t, func(t *testing.T) {
		f := newFleet(t, options{prefill: 1, decode: 2, speedup: 2})
		const streams, tokens = 12, 400
		var begun, group sync.WaitGroup
		begun.Add(streams + 1)
		stream := func(path, body, want string, finish string) {
			n := 0
			a, err := f.try(context.Background(), path, body, func(string) {
				if n++; n == 5 {
					begun.Done()
				}
			})
			if err != nil {
				t.Error(err)
				return
			}
			if got := f.text(a); got != want || a.events[len(a.events)-1] != finish {
				t.Errorf("the answer is %q, want %q", got, want)
			}
		}
		for i := range streams {
			prompt := fmt.Sprint(i, long)
			group.Go(func() {
				stream(completionPath, ask(prompt, tokens), generated(textPrompt(prompt), tokens, false), "[DONE]")
			})
		}
		group.Go(func() { // it stays
			body := `{"model":"tandem-sim","stream":true,"max_tokens":100,"ignore_eos":true,"logprobs":true,"messages":[{"role":"user","content":"Hello"}]}`
			stream(chatPath, body, generated(chatPrompt("Hello"), 100, false), "[DONE]")
		})
		begun.Wait()
		if got := f.change("/workers/decode-1/move"); got != http.StatusOK {
			t.Fatalf("status %d", got)
		}
		moved := time.Now()
		f.eventually("decode-1 is empty", func() bool { return f.workers["decode-1"].Engine.Books().Running == 0 })
		t.Logf("empty after %v; decode-2 has %d", time.Since(moved), f.workers["decode-2"].Engine.Books().Running)
		if f.workers["decode-2"].Engine.Books().Running == 0 {
			t.Error("the answers had ended before: nothing was shown")
		}
		group.Wait()
		if logs := f.logs.String(); !strings.Contains(logs, "resumes=1") || strings.Contains(logs, "circuit open") {
			t.Error("no answer moved, or a circuit opened")
		}
		f.idle()
	})
}

// TestRollingRestart restarts every worker of a fleet under load, each after a drain with move: no answer fails, none changes.
func TestRollingRestart(t *testing.T) {
	virtual(t, func(t *testing.T) {
		o := options{prefill: 2, decode: 2, speedup: 4}
		f := newFleet(t, o)
		ctx, stop := context.WithCancel(context.Background())
		defer stop()
		var group sync.WaitGroup
		var answered, moved atomic.Int64
		for i := range 8 {
			group.Go(func() {
				for n := 0; ctx.Err() == nil; n++ {
					prompt := fmt.Sprint(i, n, long)
					a, err := f.try(context.Background(), completionPath, ask(prompt, 120), nil)
					if err != nil || a.status != http.StatusOK {
						t.Errorf("%v, status %d: %s", err, a.status, a.body)
						return
					}
					if got, want := f.text(a), generated(textPrompt(prompt), 120, false); got != want || a.events[len(a.events)-1] != "[DONE]" {
						t.Errorf("the answer is %q, want %q", got, want)
					}
					answered.Add(1)
				}
			})
		}
		for _, id := range []string{"decode-1", "prefill-1", "decode-2", "prefill-2"} {
			before := answered.Load()
			f.eventually("answers come", func() bool { return answered.Load() >= before+8 })
			if got := f.change("/workers/" + id + "/move"); got != http.StatusOK {
				t.Fatalf("status %d", got)
			}
			f.eventually(id+" is empty", func() bool {
				b := f.workers[id].Engine.Books()
				return b.Running+b.Waiting+b.Transferring+len(b.Pinned) == 0 && !strings.Contains(f.books(), id+": ")
			})
			f.workers[id].kill()
			f.start(pools.Role(id[:strings.IndexByte(id, '-')]), id, o, slog.New(slog.DiscardHandler))
			if got := f.change("/workers/" + id + "/uncordon"); got != http.StatusOK {
				t.Fatalf("status %d", got)
			}
		}
		stop()
		group.Wait()
		moved.Store(int64(strings.Count(f.logs.String(), "resumes=")))
		t.Logf("%d answers, %d moves", answered.Load(), moved.Load())
		if moved.Load() == 0 {
			t.Error("no answer moved")
		}
		f.idle()
	})
}

// change makes a change as an operator does, and returns the status.
func (f *fleet) change(path string) int {
	f.t.Helper()
	res, err := f.http().Post(f.url+path, "", nil)
	if err != nil {
		f.t.Fatal(err)
	}
	defer res.Body.Close()
	return res.StatusCode
}
