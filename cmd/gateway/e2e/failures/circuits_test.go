package failures

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/pools"
)

// A worker whose answers all break after their first token has failed three times
// in a row; so has a prefill worker whose hand-offs are of no use.
func TestBrokenAnswersOpenTheCircuit(t *testing.T) {
	t.Run("after the first token", func(t *testing.T) {
		f, _ := fleet.NewFake(t, pools.Both, 1, func(w http.ResponseWriter, r *http.Request) { fleet.FirstToken(w); dies(w, r) })
		for i := range 3 {
			if open := f.Circuits(); len(open) > 0 {
				t.Errorf("after %d broken answers: %v", i, open)
			}
			if a := f.Post(fleet.CompletionPath, fleet.Ask(fmt.Sprint(i, fleet.Long), 4)); len(a.Events) != 2 || fleet.FailureIn(a) == nil {
				t.Errorf("status %d, events %q", a.Status, a.Events)
			}
		}
		f.Eventually("its circuit is open", func() bool { return f.Circuits()["engine-both-1"] == fault.Open })
		f.Idle()
	})
	t.Run("garbled hand-offs", func(t *testing.T) {
		f, p := fleet.NewFake(t, pools.Prefill, 1, fleet.Says(`{"choices":[{"index":0,"text":"x"}],"kv_transfer_params":{"do_remote_prefill":true}}`))
		fleet.NewEngines(f, pools.Decode, 2, fleet.Streams(fleet.Token, fleet.Last, "[DONE]"))
		for i := range 6 {
			f.Good(fleet.CompletionPath, fleet.Ask(fmt.Sprint(i, fleet.Long), 4))
		}
		// Asked all the same, where every prefill worker's circuit is open, and not counted.
		if open := f.Circuits(); open["engine-prefill-1"] != fault.Open || p.Calls.Load() != 6 {
			t.Errorf("circuits %v after %d calls", open, p.Calls.Load())
		}
		f.Idle()
	})
}

// The half-open worker of a pool of one is on trial by an answer that is not
// streamed: the next request waits a moment, and not for that answer's end.
func TestTrialByAWholeAnswer(t *testing.T) {
	fleet.Virtual(t, func(t *testing.T) {
		ill, ends, begun := make(chan struct{}), make(chan struct{}), make(chan struct{}, 1)
		f, e := fleet.NewFake(t, pools.Both, 1, func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-ill:
			default:
				panic(http.ErrAbortHandler)
			}
			select {
			case begun <- struct{}{}: // the trial
				<-ends
				_, _ = io.WriteString(w, fleet.Whole)
			default:
				fleet.SSE(w, fleet.Token, fleet.Last, "[DONE]")
			}
		}, func(c *stack.GatewayConfig) { c.Breakers.OpenFor = 300 * time.Millisecond })
		for range 3 {
			f.Post(fleet.CompletionPath, fleet.Ask(fleet.Long, 2))
		}
		if got := f.Circuits()["engine-both-1"]; got != fault.Open {
			t.Fatalf("its circuit is %q after %d calls", got, e.Calls.Load())
		}
		close(ill) // it is well again
		f.Eventually("it half-opens", func() bool { return f.Circuits()["engine-both-1"] == fault.HalfOpen })
		var trial sync.WaitGroup
		trial.Go(func() {
			f.Good(fleet.CompletionPath, strings.Replace(fleet.Ask(fleet.Long, 2), `"stream":true,`, "", 1))
		})
		f.Eventually("the trial is under way", func() bool { return len(begun) == 1 })
		f.Good(fleet.CompletionPath, fleet.Ask(fleet.Long, 2)) // while the trial lasts
		if open := f.Circuits(); len(open) > 0 {
			t.Errorf("after a sign of life: %v", open)
		}
		close(ends)
		trial.Wait()
		f.Idle()
	})
}

// A retry holds its place in the budget until its first token, and not for as long
// as its answer lasts.
func TestRetryGivesItsPlaceBack(t *testing.T) {
	goOn := make(chan struct{})
	var calls atomic.Int64
	f, _ := fleet.NewFake(t, pools.Both, 2, func(w http.ResponseWriter, _ *http.Request) {
		if calls.Add(1) == 1 {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		fleet.FirstToken(w)
		<-goOn
		fleet.SSE(w, fleet.Last, "[DONE]")
	})
	a, err := f.Try(context.Background(), fleet.CompletionPath, fleet.Ask(fleet.Long, 2), func(data string) {
		if data != fleet.Token {
			return
		}
		if n := f.Metric("tandem_frontend_retrying_requests"); n != "0" {
			t.Errorf("%s requests hold a place while they stream", n)
		}
		close(goOn)
	})
	if err != nil || a.Status != http.StatusOK || calls.Load() != 2 {
		t.Errorf("%v, status %d after %d calls: %s", err, a.Status, calls.Load(), a.Body)
	}
	f.Idle()
}
