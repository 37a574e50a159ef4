package failures

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
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
		f := fleet.New(t, fleet.Options{Alone: true})
		fleet.NewEngines(f, pools.Both, 1, func(w http.ResponseWriter, r *http.Request) { fleet.FirstToken(w); dies(w, r) })
		for i := range 3 {
			if open := f.Circuits(); len(open) > 0 {
				t.Errorf("after %d broken answers: %v", i, open)
			}
			if a := f.Post(fleet.CompletionPath, fleet.Ask(fmt.Sprint(i, fleet.Long), 4)); len(a.Events) != 2 || f.Parse([]byte(a.Events[1])).Error == nil {
				t.Errorf("status %d, events %q", a.Status, a.Events)
			}
		}
		f.Eventually("its circuit is open", func() bool { return f.Circuits()["engine-both-1"] == fault.Open })
		f.Idle()
	})
	t.Run("garbled hand-offs", func(t *testing.T) {
		f := fleet.New(t, fleet.Options{Alone: true})
		p := fleet.NewEngines(f, pools.Prefill, 1, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"choices":[{"index":0,"text":"x"}],"kv_transfer_params":{"do_remote_prefill":true}}`)
		})
		fleet.NewEngines(f, pools.Decode, 2, func(w http.ResponseWriter, _ *http.Request) {
			fleet.SSE(w, fleet.Token, fleet.Last, "[DONE]")
		})
		for i := range 6 {
			if a := f.Post(fleet.CompletionPath, fleet.Ask(fmt.Sprint(i, fleet.Long), 4)); a.Status != http.StatusOK {
				t.Errorf("status %d: %s", a.Status, a.Body)
			}
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
		const openFor = 300 * time.Millisecond
		f := fleet.New(t, fleet.Options{Alone: true, Gateway: func(c *stack.GatewayConfig) { c.Breakers.OpenFor = openFor }})
		var ill = make(chan struct{})
		ends := make(chan struct{})
		begun := make(chan struct{}, 1)
		e := fleet.NewEngines(f, pools.Both, 1, func(w http.ResponseWriter, r *http.Request) {
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
		})
		for range 3 {
			f.Post(fleet.CompletionPath, fleet.Ask(fleet.Long, 2))
		}
		if got := f.Circuits()["engine-both-1"]; got != fault.Open {
			t.Fatalf("its circuit is %q after %d calls", got, e.Calls.Load())
		}
		close(ill) // it is well again
		f.Eventually("it half-opens", func() bool { return f.Circuits()["engine-both-1"] == fault.HalfOpen })
		trial := make(chan fleet.Answer)
		go func() {
			a, err := f.Try(context.Background(), fleet.CompletionPath, strings.Replace(fleet.Ask(fleet.Long, 2), `"stream":true,`, "", 1), nil)
			if err != nil {
				t.Error(err)
			}
			trial <- a
		}()
		f.Eventually("the trial is under way", func() bool { return len(begun) == 1 })
		if a := f.Post(fleet.CompletionPath, fleet.Ask(fleet.Long, 2)); a.Status != http.StatusOK { // while the trial lasts
			t.Errorf("status %d: %s", a.Status, a.Body)
		}
		if open := f.Circuits(); len(open) > 0 {
			t.Errorf("after a sign of life: %v", open)
		}
		close(ends)
		if a := <-trial; a.Status != http.StatusOK {
			t.Errorf("the trial: status %d: %s", a.Status, a.Body)
		}
		f.Idle()
	})
}

// A retry holds its place in the budget until its first token, and not for as long
// as its answer lasts.
func TestRetryGivesItsPlaceBack(t *testing.T) {
	f := fleet.New(t, fleet.Options{Alone: true})
	goOn := make(chan struct{})
	var calls counter
	fleet.NewEngines(f, pools.Both, 2, func(w http.ResponseWriter, _ *http.Request) {
		calls.add()
		if calls.get() == 1 {
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
	if err != nil || a.Status != http.StatusOK || calls.get() != 2 {
		t.Errorf("%v, status %d after %d calls: %s", err, a.Status, calls.get(), a.Body)
	}
	f.Idle()
}
