package failures

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
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
		f, p := fleet.NewFake(t, pools.Prefill, 1, fleet.Says(`{"choices":[{"index":0,"text":"x"}],`+
			`"kv_transfer_params":{"do_remote_prefill":true}}`))
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

// What an engine reports of the client's own mistake, in an event as vLLM does after its head has left, or in an answer with
// status 200, and an answer for which the gateway has no memory: the client gets it with its status, one call is made for it,
// and no circuit opens.
func TestAnswersThatBlameNoWorker(t *testing.T) {
	const mistake = `{"error":{"message":"n must be 1","type":"BadRequestError","param":"n","code":400}}`
	large := `{"choices":[{"index":0,"text":" a","logprobs":{"tokens":["` + strings.Repeat("x", 12<<20) + `"]},"finish_reason":"length"}]}`
	small := func(c *stack.GatewayConfig) { c.Edge.MaxBodyBytes, c.Edge.BodyBudgetBytes = 1<<20, 32<<20 }
	for _, c := range []struct {
		name, answer string
		status       int
		code, param  string
	}{
		{"a mistake", mistake, http.StatusBadRequest, "rejected_by_engine", "n"},
		{"no memory", large, http.StatusServiceUnavailable, "body_budget_exhausted", ""},
	} {
		for _, stream := range []bool{true, false} {
			t.Run(fmt.Sprint(c.name, ", stream ", stream), func(t *testing.T) {
				serve := fleet.Says(c.answer)
				if stream {
					serve = fleet.Streams(c.answer, "[DONE]")
				}
				f, e := fleet.NewFake(t, pools.Both, 4, serve, small)
				for range 5 {
					a := f.Post(fleet.CompletionPath, fmt.Sprintf(`{"model":"tandem-sim","max_tokens":1,"echo":true,"logprobs":5,`+
						`"stream":%v,"prompt":"hi"}`, stream))
					f.Refused(a, c.status, c.code, c.param)
				}
				if n, open := e.Calls.Load(), f.Circuits(); n != 5 || len(open) > 0 {
					t.Errorf("%d calls for 5 requests, circuits %v", n, open)
				}
				f.Idle()
			})
		}
	}
	t.Run("prefill's", func(t *testing.T) {
		f, p := fleet.NewFake(t, pools.Prefill, 2, fleet.Says(`{"error":{"message":"no","type":"BadRequestError","code":422}}`))
		d := fleet.NewEngines(f, pools.Decode, 1, fleet.Streams("[DONE]"))
		for range 4 {
			f.Refused(f.Post(fleet.CompletionPath, fleet.Ask(fleet.Long, 4)), http.StatusUnprocessableEntity, "", "")
		}
		if n := p.Calls.Load(); n != 4 || d.Calls.Load() != 0 || len(f.Circuits()) > 0 {
			t.Errorf("%d calls to prefill, %d to decode, circuits %v", n, d.Calls.Load(), f.Circuits())
		}
		f.Idle()
	})
}

// A worker that lost its key, its model or its route answers every call at once,
// and so draws requests. It is the worker's failure: another one answers, and no
// client is refused for its own key.
func TestWorkersOwn4xx(t *testing.T) {
	for status, code := range map[int]string{401: "engine_error", 404: "not_served", 408: "engine_error"} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			f, bad := fleet.NewFake(t, pools.Both, 1, fleet.Fails(status))
			f.Refused(f.Post(fleet.CompletionPath, fleet.Ask("hi", 4)), http.StatusBadGateway, code, "")
			f.Start(pools.Both, "good", fleet.Options{Speedup: 1000}, slog.New(slog.DiscardHandler))
			for i := range 40 {
				f.Exact(fmt.Sprint(i, fleet.Long), 2)
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

// A gateway whose own descriptors, ports or resolver are at their end holds it
// against no worker: clients get a 503 that says so, and the first request after
// it is served.
func TestOwnWantBlamesNoWorker(t *testing.T) {
	for name, want := range map[string]error{
		"descriptors": os.NewSyscallError("socket", syscall.EMFILE),
		"ports":       os.NewSyscallError("connect", syscall.EADDRNOTAVAIL),
		"resolver":    &net.DNSError{Err: "server misbehaving", Name: "worker"},
	} {
		t.Run(name, func(t *testing.T) {
			var lacks atomic.Bool
			lacks.Store(true)
			f := fleet.New(t, fleet.Options{Speedup: 1000, Gateway: func(c *stack.GatewayConfig) {
				c.Upstream.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
					if lacks.Load() {
						return nil, &net.OpError{Op: "dial", Net: network, Err: want}
					}
					return new(net.Dialer).DialContext(ctx, network, address)
				}
			}})
			for range 5 {
				a := f.Post(fleet.CompletionPath, fleet.Ask(fleet.Long, 2))
				err := f.Parse(a.Body).Error
				if a.Status != http.StatusServiceUnavailable || err == nil || *err.Code != "gateway_error" ||
					a.Header.Get("Retry-After") == "" || strings.Contains(err.Message, "decode worker failed") {
					t.Errorf("status %d: %s", a.Status, a.Body)
				}
			}
			if open := f.Circuits(); len(open) > 0 {
				t.Errorf("circuits %v", open)
			}
			for _, p := range f.Gateway.Fleet.Report() {
				for _, w := range p.Workers {
					if w.State != pools.Up.String() {
						t.Errorf("%s is %s", w.ID, w.State)
					}
				}
			}
			lacks.Store(false)
			if p, d := f.Served(f.Post(fleet.CompletionPath, fleet.Ask(fleet.Long, 2))); p == "" || d == "" {
				t.Errorf("after it: served by %q and %q", p, d)
			}
			f.Idle()
		})
	}
}

// liar stands before a worker and passes on what the worker says of itself; calls for inference are answered by infer.
type liar struct {
	*httptest.Server
	looks, calls atomic.Int64 // at its health; for inference
}

func newLiar(t *testing.T, port int, infer http.HandlerFunc) *liar {
	l := &liar{}
	pass := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: fmt.Sprintf("127.0.0.1:%d", port)})
	pass.Transport = fleet.Client(t).Transport
	l.Server = fleet.ServeHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			l.looks.Add(1)
			pass.ServeHTTP(w, r)
			return
		}
		if body, _ := io.ReadAll(r.Body); strings.Contains(string(body), `"`+stack.SimModel+`"`) { // else it is a release
			l.calls.Add(1)
		}
		infer(w, r)
	})
	return l
}

// A worker whose health is fine and whose every call fails costs no answer, and three or four calls: its circuit opens, and what
// it goes on saying of its health does not close it.
func TestWorkersThatLieAboutTheirHealth(t *testing.T) {
	hang := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	for name, infer := range map[string]http.HandlerFunc{
		"hangs": hang,
		"fails": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) },
		"hangs after the head": func(w http.ResponseWriter, r *http.Request) {
			fleet.SSE(w)
			_ = http.NewResponseController(w).Flush()
			hang(w, r)
		},
		"cuts": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		for _, role := range []pools.Role{pools.Prefill, pools.Decode} {
			fleet.VirtualRun(t, fmt.Sprint(role, " ", name), func(t *testing.T) {
				cfg := fleet.GatewayConfig()
				cfg.Prefill.Timeout, cfg.Decode.FirstTokenTimeout = 300*time.Millisecond, 300*time.Millisecond
				cfg.Breakers.OpenFor = time.Hour
				var lies *liar
				f, _ := fleet.NewByURL(t, cfg, func(id string, port int) string {
					if id == string(role)+"-1" {
						lies = newLiar(t, port, infer)
						return lies.URL
					}
					return fmt.Sprintf("http://127.0.0.1:%d", port)
				})
				id := string(role) + "-1"
				before, _ := f.Gateway.Roster.Lookup(id)
				round := func(n string) {
					t.Helper()
					for i := range 10 {
						a := f.Exact(fmt.Sprint(n, i, fleet.Long), 6)
						if p, d := f.Served(a); p != "prefill-2" && role == pools.Prefill || d != "decode-2" && role == pools.Decode {
							t.Errorf("request %d was served by %q and %q", i, p, d)
						}
					}
				}
				round("first")
				looked := lies.looks.Load()
				f.Eventually("its health is looked at many times more, and everything else again",
					func() bool { return lies.looks.Load() > looked+20 })
				round("second")
				calls := int64(3)
				if name == "fails" && role == pools.Decode {
					calls = 4 // two in each request, which count when the other worker has answered
				}
				if n := lies.calls.Load(); n != calls || f.Circuits()[id] != fault.Open {
					t.Errorf("it was called %d times; circuits %v", n, f.Circuits())
				}
				after, in := f.Gateway.Roster.Lookup(id)
				if !in || after.Worker.Incarnation != before.Worker.Incarnation {
					t.Errorf("it is in the roster: %v, as the same process: %v", in, after.Worker.Incarnation == before.Worker.Incarnation)
				}
				f.Idle()
			})
		}
	}
}
