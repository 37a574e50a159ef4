package failures

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/pools"
)

// An engine finds the client's mistake after its head has left and reports it in an
// event, as vLLM does, or in an answer with status 200. The client gets the
// mistake with its status, one call is made for it, and no circuit opens.
func TestClientsMistakeInsideAnAnswer(t *testing.T) {
	const said = `{"error":{"message":"n must be 1","type":"BadRequestError","param":"n","code":400}}`
	for _, stream := range []bool{true, false} {
		t.Run(fmt.Sprint("stream ", stream), func(t *testing.T) {
			f := fleet.New(t, fleet.Options{Alone: true})
			e := fleet.NewEngines(f, pools.Both, 4, func(w http.ResponseWriter, r *http.Request) {
				if stream {
					fleet.SSE(w, said, "[DONE]")
				} else {
					_, _ = io.WriteString(w, said)
				}
			})
			const requests = 5
			for range requests {
				a := f.Post(fleet.CompletionPath, fmt.Sprintf(`{"model":"tandem-sim","max_tokens":4,"stream":%v,"prompt":"hi"}`, stream))
				err := f.Parse(a.Body).Error
				if a.Status != http.StatusBadRequest || err == nil || err.Message != "n must be 1" || err.Param == nil || *err.Param != "n" || *err.Code != "rejected_by_engine" {
					t.Errorf("status %d: %s", a.Status, a.Body)
				}
			}
			if n := e.Calls.Load(); n != requests {
				t.Errorf("%d calls for %d requests", n, requests)
			}
			if open := f.Circuits(); len(open) > 0 {
				t.Errorf("circuits %v", open)
			}
			f.Idle()
		})
	}
}

// A client asks for an answer for which the gateway has no memory, whole or in one event: it gets one typed error, one call is made
// for it, and no circuit opens.
func TestLargeAnswersBlameNoWorker(t *testing.T) {
	large := `{"choices":[{"index":0,"text":" a","logprobs":{"tokens":["` + strings.Repeat("x", 12<<20) + `"]},"finish_reason":"length"}]}`
	for _, stream := range []bool{true, false} {
		t.Run(fmt.Sprint("stream ", stream), func(t *testing.T) {
			f := fleet.New(t, fleet.Options{Alone: true, Gateway: func(c *stack.GatewayConfig) { c.Edge.MaxBodyBytes, c.Edge.BodyBudgetBytes = 1<<20, 32<<20 }})
			e := fleet.NewEngines(f, pools.Both, 4, func(w http.ResponseWriter, r *http.Request) {
				if stream {
					fleet.SSE(w, large, "[DONE]")
				} else {
					_, _ = io.WriteString(w, large)
				}
			})
			const requests = 5
			for range requests {
				a := f.Post(fleet.CompletionPath, fmt.Sprintf(`{"model":"tandem-sim","max_tokens":1,"echo":true,"logprobs":5,"stream":%v,"prompt":"hi"}`, stream))
				if err := f.Parse(a.Body).Error; a.Status != http.StatusServiceUnavailable || err == nil || *err.Code != "body_budget_exhausted" {
					t.Errorf("status %d: %.200s", a.Status, a.Body)
				}
			}
			if n, open := e.Calls.Load(), f.Circuits(); n != requests || len(open) > 0 {
				t.Errorf("%d calls for %d requests, circuits %v", n, requests, open)
			}
			f.Idle()
		})
	}
}

// The same on the prefill leg.
func TestClientsMistakeInsidePrefillsAnswer(t *testing.T) {
	f := fleet.New(t, fleet.Options{Alone: true})
	d := fleet.NewEngines(f, pools.Decode, 1, func(w http.ResponseWriter, _ *http.Request) { fleet.SSE(w, "[DONE]") })
	e := fleet.NewEngines(f, pools.Prefill, 2, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"error":{"message":"no","type":"BadRequestError","code":422}}`)
	})
	for range 4 {
		if a := f.Post(fleet.CompletionPath, fleet.Ask(fleet.Long, 4)); a.Status != http.StatusUnprocessableEntity {
			t.Errorf("status %d: %s", a.Status, a.Body)
		}
	}
	if n := e.Calls.Load(); n != 4 || d.Calls.Load() != 0 || len(f.Circuits()) > 0 {
		t.Errorf("%d calls to prefill, %d to decode, circuits %v", n, d.Calls.Load(), f.Circuits())
	}
	f.Idle()
}

// A worker that lost its key, its model or its route answers every call at once,
// and so draws requests. It is the worker's failure: another one answers, and no
// client is refused for its own key.
func TestWorkersOwn4xx(t *testing.T) {
	for status, code := range map[int]string{401: "engine_error", 403: "engine_error", 404: "not_served", 405: "engine_error", 408: "engine_error"} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			f := fleet.New(t, fleet.Options{Alone: true})
			bad := fleet.NewEngines(f, pools.Both, 1, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(status)
				_, _ = io.WriteString(w, `{"error":"Unauthorized"}`)
			})
			alone := f.Post(fleet.CompletionPath, fleet.Ask("hi", 4))
			if err := f.Parse(alone.Body).Error; alone.Status != http.StatusBadGateway || err == nil || *err.Code != code {
				t.Errorf("by itself: status %d: %s", alone.Status, alone.Body)
			}
			f.Start(pools.Both, "good", fleet.Options{Speedup: 1000}, slog.New(slog.DiscardHandler))
			for i := range 40 {
				if a := f.Post(fleet.CompletionPath, fleet.Ask(fmt.Sprint(i, fleet.Long), 2)); a.Status != http.StatusOK {
					t.Errorf("request %d: status %d: %s", i, a.Status, a.Body)
				}
			}
			// A 408 on a connection that had been idle is answered to by one more call.
			most := map[int]int64{408: 6}[status]
			if n := bad.Calls.Load(); n < 3 || n > max(3, most) || f.Circuits()["engine-both-1"] != fault.Open {
				t.Errorf("it was called %d times, circuits %v", n, f.Circuits())
			}
			f.Idle()
		})
	}
}
