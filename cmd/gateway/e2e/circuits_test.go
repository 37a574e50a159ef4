package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/pools"
)

const (
	token = `{"choices":[{"index":0,"text":" one","finish_reason":null}]}`
	last  = `{"choices":[{"index":0,"text":" end","finish_reason":"length"}]}`
	whole = `{"choices":[{"index":0,"text":" one end","finish_reason":"length"}]}`
)

// firstToken writes a stream's first token, and flushes it.
func firstToken(w http.ResponseWriter) {
	sse(w, token)
	_ = http.NewResponseController(w).Flush()
}

// A worker whose answers all break after their first token has failed three times
// in a row; so has a prefill worker whose hand-offs are of no use.
func TestBrokenAnswersOpenTheCircuit(t *testing.T) {
	t.Run("after the first token", func(t *testing.T) {
		f := newFleet(t, options{alone: true})
		newEngines(f, pools.Both, 1, func(w http.ResponseWriter, r *http.Request) { firstToken(w); dies(w, r) })
		for i := range 3 {
			if open := f.circuits(); len(open) > 0 {
				t.Errorf("after %d broken answers: %v", i, open)
			}
			if a := f.post(completionPath, ask(fmt.Sprint(i, long), 4)); len(a.events) != 2 || f.parse([]byte(a.events[1])).Error == nil {
				t.Errorf("status %d, events %q", a.status, a.events)
			}
		}
		f.eventually("its circuit is open", func() bool { return f.circuits()["engine-both-1"] == fault.Open })
		f.idle()
	})
	t.Run("garbled hand-offs", func(t *testing.T) {
		f := newFleet(t, options{alone: true})
		p := newEngines(f, pools.Prefill, 1, func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"choices":[{"index":0,"text":"x"}],"kv_transfer_params":{"do_remote_prefill":true}}`)
		})
		newEngines(f, pools.Decode, 2, func(w http.ResponseWriter, _ *http.Request) { sse(w, token, last, "[DONE]") })
		for i := range 6 {
			if a := f.post(completionPath, ask(fmt.Sprint(i, long), 4)); a.status != http.StatusOK {
				t.Errorf("status %d: %s", a.status, a.body)
			}
		}
		// Asked all the same, where every prefill worker's circuit is open, and not counted.
		if open := f.circuits(); open["engine-prefill-1"] != fault.Open || p.calls.Load() != 6 {
			t.Errorf("circuits %v after %d calls", open, p.calls.Load())
		}
		f.idle()
	})
}

// The half-open worker of a pool of one is on trial by an answer that is not
// streamed: the next request waits a moment, and not for that answer's end.
func TestTrialByAWholeAnswer(t *testing.T) {
	virtual(t, func(t *testing.T) {
		const openFor = 300 * time.Millisecond
		f := newFleet(t, options{alone: true, gateway: func(c *stack.GatewayConfig) { c.Breakers.OpenFor = openFor }})
		var ill = make(chan struct{})
		ends := make(chan struct{})
		begun := make(chan struct{}, 1)
		e := newEngines(f, pools.Both, 1, func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-ill:
			default:
				w.WriteHeader(http.StatusInternalServerError)
				return
			}
			select {
			case begun <- struct{}{}: // the trial
				<-ends
				_, _ = io.WriteString(w, whole)
			default:
				sse(w, token, last, "[DONE]")
			}
		})
		for range 3 {
			f.post(completionPath, ask(long, 2))
		}
		if got := f.circuits()["engine-both-1"]; got != fault.Open {
			t.Fatalf("its circuit is %q after %d calls", got, e.calls.Load())
		}
		close(ill) // it is well again
		f.eventually("it half-opens", func() bool { return f.circuits()["engine-both-1"] == fault.HalfOpen })
		trial := make(chan answer)
		go func() {
			a, err := f.try(context.Background(), completionPath, strings.Replace(ask(long, 2), `"stream":true,`, "", 1), nil)
			if err != nil {
				t.Error(err)
			}
			trial <- a
		}()
		f.eventually("the trial is under way", func() bool { return len(begun) == 1 })
		if a := f.post(completionPath, ask(long, 2)); a.status != http.StatusOK { // while the trial lasts
			t.Errorf("status %d: %s", a.status, a.body)
		}
		if open := f.circuits(); len(open) > 0 {
			t.Errorf("after a sign of life: %v", open)
		}
		close(ends)
		if a := <-trial; a.status != http.StatusOK {
			t.Errorf("the trial: status %d: %s", a.status, a.body)
		}
		f.idle()
	})
}

// A retry holds its place in the budget until its first token, and not for as long
// as its answer lasts.
func TestRetryGivesItsPlaceBack(t *testing.T) {
	f := newFleet(t, options{alone: true})
	goOn := make(chan struct{})
	var calls counter
	newEngines(f, pools.Both, 2, func(w http.ResponseWriter, _ *http.Request) {
		calls.add()
		if calls.get() == 1 {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		firstToken(w)
		<-goOn
		sse(w, last, "[DONE]")
	})
	a, err := f.try(context.Background(), completionPath, ask(long, 2), func(data string) {
		if data != token {
			return
		}
		if n := f.metric("tandem_frontend_retrying_requests"); n != "0" {
			t.Errorf("%s requests hold a place while they stream", n)
		}
		close(goOn)
	})
	if err != nil || a.status != http.StatusOK || calls.get() != 2 {
		t.Errorf("%v, status %d after %d calls: %s", err, a.status, calls.get(), a.body)
	}
	f.idle()
}
