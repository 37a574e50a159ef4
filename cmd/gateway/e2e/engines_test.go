package e2e

import (
	"bufio"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/pools"
)

// engines are workers that answer as a test has them answer.
type engines struct {
	calls atomic.Int64 // of all of them
	serve http.HandlerFunc
}

// newEngines adds n workers of that role, whose answers are serve's. A fleet takes
// them once a role.
func newEngines(f *fleet, role pools.Role, n int, serve http.HandlerFunc) *engines {
	f.t.Helper()
	e := &engines{serve: serve}
	for i := range n {
		server := serveHTTP(f.t, func(w http.ResponseWriter, r *http.Request) {
			e.calls.Add(1)
			_, _ = io.Copy(io.Discard, r.Body)
			e.serve(w, r)
		})
		err := f.gateway.Roster.Put(pools.Worker{
			ID: fmt.Sprintf("engine-%s-%d", role, i+1), Incarnation: "1", Model: stack.SimModel, Role: role, Engine: "sim",
			Address: server.URL, BlockSize: 16, ModelInput: "text", TotalKVBlocks: 10_000, MaxNumSeqs: 64,
		})
		if err != nil {
			f.t.Fatal(err)
		}
	}
	return e
}

// circuits are the states of all circuits that are not closed, by worker.
func (f *fleet) circuits() map[string]fault.State {
	open := map[string]fault.State{}
	for _, p := range f.gateway.Fleet.Report() {
		for _, w := range p.Workers {
			if w.Circuit != fault.Closed && w.LostFor == nil {
				open[w.ID] = w.Circuit
			}
		}
	}
	return open
}

// metric is the value of one series as /metrics shows it, empty where it is absent.
func (f *fleet) metric(series string) string {
	f.t.Helper()
	res, err := f.http().Get(f.url + "/metrics")
	if err != nil {
		f.t.Fatal(err)
	}
	defer res.Body.Close()
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), series+" "); ok {
			return value
		}
	}
	return ""
}

// sse writes events of a stream with status 200.
func sse(w http.ResponseWriter, events ...string) {
	w.Header().Set("Content-Type", "text/event-stream")
	for _, data := range events {
		_, _ = fmt.Fprintf(w, "data: %s\n\n", data)
	}
}

// An engine finds the client's mistake after its head has left and says so in an
// event, as vLLM does, or in an answer with status 200. The client gets the
// mistake with its status, one call is made for it, and no circuit opens.
func TestClientsMistakeInsideAnAnswer(t *testing.T) {
	const said = `{"error":{"message":"n must be 1","type":"BadRequestError","param":"n","code":400}}`
	for _, stream := range []bool{true, false} {
		t.Run(fmt.Sprint("stream ", stream), func(t *testing.T) {
			f := newFleet(t, options{alone: true})
			e := newEngines(f, pools.Both, 4, func(w http.ResponseWriter, r *http.Request) {
				if stream {
					sse(w, said, "[DONE]")
				} else {
					_, _ = io.WriteString(w, said)
				}
			})
			const requests = 5
			for range requests {
				a := f.post(completionPath, fmt.Sprintf(`{"model":"tandem-sim","max_tokens":4,"stream":%v,"prompt":"hi"}`, stream))
				err := f.parse(a.body).Error
				if a.status != http.StatusBadRequest || err == nil || err.Message != "n must be 1" || err.Param == nil || *err.Param != "n" || *err.Code != "rejected_by_engine" {
					t.Errorf("status %d: %s", a.status, a.body)
				}
			}
			if n := e.calls.Load(); n != requests {
				t.Errorf("%d calls for %d requests", n, requests)
			}
			if open := f.circuits(); len(open) > 0 {
				t.Errorf("circuits %v", open)
			}
			f.idle()
		})
	}
}

// A client asks for an answer for which the gateway has no memory, whole or in one event: it gets one typed error, one call is made
// for it, and no circuit opens.
func TestLargeAnswersBlameNoWorker(t *testing.T) {
	large := `{"choices":[{"index":0,"text":" a","logprobs":{"tokens":["` + strings.Repeat("x", 12<<20) + `"]},"finish_reason":"length"}]}`
	for _, stream := range []bool{true, false} {
		t.Run(fmt.Sprint("stream ", stream), func(t *testing.T) {
			f := newFleet(t, options{alone: true, gateway: func(c *stack.GatewayConfig) { c.Edge.MaxBodyBytes, c.Edge.BodyBudgetBytes = 1<<20, 32<<20 }})
			e := newEngines(f, pools.Both, 4, func(w http.ResponseWriter, r *http.Request) {
				if stream {
					sse(w, large, "[DONE]")
				} else {
					_, _ = io.WriteString(w, large)
				}
			})
			const requests = 5
			for range requests {
				a := f.post(completionPath, fmt.Sprintf(`{"model":"tandem-sim","max_tokens":1,"echo":true,"logprobs":5,"stream":%v,"prompt":"hi"}`, stream))
				if err := f.parse(a.body).Error; a.status != http.StatusServiceUnavailable || err == nil || *err.Code != "body_budget_exhausted" {
					t.Errorf("status %d: %.200s", a.status, a.body)
				}
			}
			if n, open := e.calls.Load(), f.circuits(); n != requests || len(open) > 0 {
				t.Errorf("%d calls for %d requests, circuits %v", n, requests, open)
			}
			f.idle()
		})
	}
}

// The same on the prefill leg.
func TestClientsMistakeInsidePrefillsAnswer(t *testing.T) {
	f := newFleet(t, options{alone: true})
	d := newEngines(f, pools.Decode, 1, func(w http.ResponseWriter, _ *http.Request) { sse(w, "[DONE]") })
	e := newEngines(f, pools.Prefill, 2, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"error":{"message":"no","type":"BadRequestError","code":422}}`)
	})
	for range 4 {
		if a := f.post(completionPath, ask(long, 4)); a.status != http.StatusUnprocessableEntity {
			t.Errorf("status %d: %s", a.status, a.body)
		}
	}
	if n := e.calls.Load(); n != 4 || d.calls.Load() != 0 || len(f.circuits()) > 0 {
		t.Errorf("%d calls to prefill, %d to decode, circuits %v", n, d.calls.Load(), f.circuits())
	}
	f.idle()
}

// A worker that lost its key, its model or its route answers every call at once,
// and so draws requests. It is the worker's failure: another one answers, and no
// client is told that its own key is wrong.
func TestWorkersOwn4xx(t *testing.T) {
	for status, code := range map[int]string{401: "engine_error", 403: "engine_error", 404: "not_served", 405: "engine_error", 408: "engine_error"} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			f := newFleet(t, options{alone: true})
			bad := newEngines(f, pools.Both, 1, func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(status)
				_, _ = io.WriteString(w, `{"error":"Unauthorized"}`)
			})
			alone := f.post(completionPath, ask("hi", 4))
			if err := f.parse(alone.body).Error; alone.status != http.StatusBadGateway || err == nil || *err.Code != code {
				t.Errorf("by itself: status %d: %s", alone.status, alone.body)
			}
			f.start(pools.Both, "good", options{speedup: 1000}, slog.New(slog.DiscardHandler))
			for i := range 40 {
				if a := f.post(completionPath, ask(fmt.Sprint(i, long), 2)); a.status != http.StatusOK {
					t.Errorf("request %d: status %d: %s", i, a.status, a.body)
				}
			}
			// A 408 on a connection that had been idle is answered to by one more call.
			most := map[int]int64{408: 6}[status]
			if n := bad.calls.Load(); n < 3 || n > max(3, most) || f.circuits()["engine-both-1"] != fault.Open {
				t.Errorf("it was called %d times, circuits %v", n, f.circuits())
			}
			f.idle()
		})
	}
}
