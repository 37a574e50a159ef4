package failures

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/http1"
	"github.com/tandem-pd/tandem/lab/fleet"
	"github.com/tandem-pd/tandem/pools"
)

// A worker whose answers all break after their first token has failed three times
// in a row; so has a prefill worker whose hand-offs are of no use.
func TestBrokenAnswersOpenTheCircuit(t *testing.T) {
	t.Run("after the first token", func(t *testing.T) {
		f, _ := fleet.NewFake(t, pools.Both, 1, func(w http.ResponseWriter, r *http.Request) { fleet.FirstToken(w); dies(w, r) })
		for i := range 3 {
			assert.LessOrEqual(t, len(f.Circuits()), 0, "after %d broken answers", i)
			if a := f.Post(fleet.CompletionPath, fleet.Ask(fmt.Sprint(i, fleet.Long), 4)); len(a.Events) != 2 || fleet.FailureIn(a) == nil {
				t.Errorf("status %d, events %q", a.Status, a.Events)
			}
		}
		f.Eventually("its circuit is open", func() bool { return f.Circuits()["engine-both-1"] == fault.Open })
		f.Idle()
	})
	t.Run("garbled hand-offs", func(t *testing.T) {
		f, p := fleet.NewFake(t, pools.Prefill, 1, fleet.Answers(`{"choices":[{"index":0,"text":"x"}],`+
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
		require.Equal(t, fault.Open, f.Circuits()["engine-both-1"], "its circuit after %d calls", e.Calls.Load())
		close(ill) // it is well again
		f.Eventually("it half-opens", func() bool { return f.Circuits()["engine-both-1"] == fault.HalfOpen })
		var trial sync.WaitGroup
		trial.Go(func() {
			f.Good(fleet.CompletionPath, strings.Replace(fleet.Ask(fleet.Long, 2), `"stream":true,`, "", 1))
		})
		f.Eventually("the trial is under way", func() bool { return len(begun) == 1 })
		f.Good(fleet.CompletionPath, fleet.Ask(fleet.Long, 2)) // while the trial lasts
		assert.LessOrEqual(t, len(f.Circuits()), 0, "after a sign of life")
		close(ends)
		trial.Wait()
		f.Idle()
	})
}

// A retry holds its place in the budget until its first token, and not for as long as its answer lasts.
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
		assert.Zero(t, f.Value("tandem_frontend_retry_slots", "used"), "requests hold a place while they stream")
		close(goOn)
	})
	assert.True(t, err == nil && a.Status == http.StatusOK && calls.Load() == 2,
		"%v, status %d after %d calls: %s", err, a.Status, calls.Load(), a.Body)
	f.Idle()
}

// What an engine reports of the client's own mistake, in an event as vLLM does after its head has left, or in an answer
// with status 200, and an answer for which the gateway has no memory: the client gets it with its status, one call is
// made for it, and no circuit opens.
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
				serve := fleet.Answers(c.answer)
				if stream {
					serve = fleet.Streams(c.answer, "[DONE]")
				}
				f, e := fleet.NewFake(t, pools.Both, 4, serve, small)
				for range 5 {
					a := f.Post(fleet.CompletionPath, fmt.Sprintf(`{"model":"tandem-sim","max_tokens":1,"echo":true,"logprobs":5,`+
						`"stream":%v,"prompt":"hi"}`, stream))
					f.Refused(a, c.status, c.code, c.param)
				}
				assert.EqualValues(t, 5, e.Calls.Load(), "calls")
				assert.Empty(t, f.Circuits())
				f.Idle()
			})
		}
	}
	t.Run("prefill's", func(t *testing.T) {
		f, p := fleet.NewFake(t, pools.Prefill, 2, fleet.Answers(`{"error":{"message":"no","type":"BadRequestError","code":422}}`))
		d := fleet.NewEngines(f, pools.Decode, 1, fleet.Streams("[DONE]"))
		for range 4 {
			f.Refused(f.Post(fleet.CompletionPath, fleet.Ask(fleet.Long, 4)), http.StatusUnprocessableEntity, "", "")
		}
		assert.Equal(t, [2]int64{4, 0}, [2]int64{p.Calls.Load(), d.Calls.Load()}, "calls to prefill and to decode")
		assert.Empty(t, f.Circuits())
		f.Idle()
	})
}

// liar is a proxy of a worker that forwards its facts; infer answers calls for inference.
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

// A worker whose health is fine and whose every call fails costs no answer, and three or four calls: its circuit opens,
// and what its health check still answers does not close it.
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

// outage is a transport whose decode workers have all failed: every first attempt fails once all of them are under way,
// and every retry is held until the test lets go.
type outage struct {
	http1.Transport
	firsts sync.WaitGroup // first attempts to come
	let    chan struct{}  // closed: retries go on

	mu       sync.Mutex
	retrying map[string]bool // requests seen on a retry
	now      map[string]bool // those on one now
	most     int             // at once
	attempts int             // calls to decode
}

func (o *outage) Call(ctx context.Context, leg http1.Leg) (http1.Stream, error) {
	if leg.Purpose == fault.Release {
		return o.Transport.Call(ctx, leg)
	}
	id, n, _ := strings.Cut(leg.RequestID, "-")
	if attempt, err := strconv.Atoi(n); err != nil {
		return nil, fmt.Errorf("no attempt in %q", leg.RequestID)
	} else if attempt > 1 {
		o.mu.Lock()
		o.retrying[id], o.now[id] = true, true
		o.most = max(o.most, len(o.now))
		o.mu.Unlock()
		<-o.let
	}
	if leg.Purpose != string(pools.Decode) {
		return o.Transport.Call(ctx, leg)
	}
	o.mu.Lock()
	o.attempts++
	delete(o.now, id)
	o.mu.Unlock()
	if n == "1" {
		o.firsts.Done()
		o.firsts.Wait()
	}
	return nil, &http1.Error{Worker: leg.Worker, Op: http1.OpHead, Err: fmt.Errorf("the wire is cut")}
}

// An outage that hits every request at once is not multiplied: at most a fifth
// of the live requests, and ten of few, are tried again at once; the others wait
// for their turn, and each is retried once, unless it waits for more than 30 s.
func TestOutageIsNotMultiplied(t *testing.T) {
	for _, c := range []struct {
		clients, retries int
		lasts            bool
	}{{8, 8, false}, {30, 10, false}, {100, 20, false}, {30, 10, true}} {
		fleet.VirtualRun(t, fmt.Sprint(c.clients, " requests, lasts ", c.lasts), func(t *testing.T) {
			o := &outage{let: make(chan struct{}), retrying: map[string]bool{}, now: map[string]bool{}}
			o.firsts.Add(c.clients)
			f := fleet.New(t, fleet.Options{Prefill: 2, Decode: 4, Speedup: 1000, Gateway: func(cfg *stack.GatewayConfig) {
				cfg.WrapTransport = func(inner http1.Transport) http1.Transport {
					o.Transport = inner
					return o
				}
			}})
			answers, began, tried := make(chan fleet.Answer, c.clients), time.Now(), c.clients
			var group sync.WaitGroup
			for i := range c.clients {
				group.Go(func() { answers <- f.Post(fleet.CompletionPath, fleet.Ask(fmt.Sprint("request ", i), 2)) })
			}
			f.Eventually("the retries are under way, and the others wait", func() bool {
				o.mu.Lock()
				defer o.mu.Unlock()
				return len(o.retrying) >= c.retries && f.Gateway.Flow.Retries().Waiting == c.clients-c.retries
			})
			if c.lasts {
				tried = c.retries
				for range c.clients - tried {
					f.Refused(<-answers, http.StatusBadGateway, "reset", "")
				}
				assert.Equal(t, 30*time.Second, time.Since(began).Round(time.Second), "their wait for a turn")
			}
			close(o.let)
			group.Wait()
			close(answers)
			for a := range answers { // their second worker broke off as well
				f.Refused(a, http.StatusBadGateway, "suspected_poison", "")
			}
			if len(o.retrying) != tried || o.most != c.retries || o.attempts != c.clients+tried {
				t.Errorf("%d requests were tried again, %d at once, by %d calls; want %d at once", len(o.retrying), o.most,
					o.attempts, c.retries)
			}
			f.Idle()
		})
	}
}

// What the client's own mistake caused is tried once: another worker would answer the same. It opens no circuit either.
func TestClientsMistakesAreNotRetried(t *testing.T) {
	for _, status := range []int{400, 413, 415, 422} {
		for _, leg := range []string{string(pools.Prefill), string(pools.Decode)} {
			fleet.VirtualRun(t, fmt.Sprint(leg, " ", status), func(t *testing.T) {
				f := newInjectedFleet(t, fault.Rule{Fault: "wrong_status", Probability: 1, Leg: leg, Status: status})
				const requests = 10
				for i := range requests {
					a := f.Post(fleet.CompletionPath, fleet.Ask(fmt.Sprint(i, fleet.Long), 4))
					if e := fleet.FailureIn(a); a.Status != status || e == nil || e.Type != "invalid_request_error" {
						t.Errorf("status %d: %s", a.Status, a.Body)
					}
				}
				assert.EqualValues(t, requests, f.hits.Load(), "calls")
				assert.LessOrEqual(t, len(f.Circuits()), 0, "circuits")
				f.settled()
			})
		}
	}
}

// A worker that fails three times in a row is out of the choice, is shown so,
// and returns by one request after its time.
func TestEjectedWorkerReturnsByOneProbe(t *testing.T) {
	fleet.Virtual(t, func(t *testing.T) {
		var broken atomic.Bool // calls of decode-1 fail
		var calls atomic.Int64 // that have
		f := fleet.New(t, fleet.Options{Prefill: 1, Decode: 2, Speedup: 1000, Gateway: func(c *stack.GatewayConfig) {
			c.Breakers.OpenFor = 300 * time.Millisecond
			c.WrapTransport = func(inner http1.Transport) http1.Transport {
				return transportFunc(func(ctx context.Context, leg http1.Leg) (http1.Stream, error) {
					if leg.Worker == "decode-1" && leg.Purpose == string(pools.Decode) && broken.Load() {
						calls.Add(1)
						return nil, &http1.Error{Worker: leg.Worker, Op: http1.OpHead, Err: fmt.Errorf("broken")}
					}
					return inner.Call(ctx, leg)
				})
			}
		}})
		circuit := func() fault.State { return cmp.Or(f.Circuits()["decode-1"], fault.Closed) }
		broken.Store(true)
		send := func() { f.Exact(fleet.Long, 2) }
		f.Eventually("its circuit is open", func() bool { send(); return circuit() == fault.Open })
		assert.EqualValues(t, 3, calls.Load(), "failures until it is open")
		send()
		assert.EqualValues(t, 3, calls.Load(), "an ejected worker was called")
		f.Eventually("its trial", func() bool { send(); return calls.Load() == 4 })
		assert.Equal(t, fault.Open, circuit(), "after a trial that failed it")
		broken.Store(false)
		f.Eventually("it is back", func() bool { send(); return circuit() == fault.Closed })
		f.Idle()
	})
}

// transportFunc is a Transport made of a function.
type transportFunc func(ctx context.Context, leg http1.Leg) (http1.Stream, error)

func (f transportFunc) Call(ctx context.Context, leg http1.Leg) (http1.Stream, error) {
	return f(ctx, leg)
}

// dies breaks the request's connection, as an engine that it killed.
func dies(w http.ResponseWriter, _ *http.Request) {
	conn, _, err := w.(http.Hijacker).Hijack()
	if err == nil {
		_ = conn.Close()
	}
}

// No request takes a fleet down: one that kills whatever worker it reaches is
// tried on one more and no further, whichever way its deaths look. Its end has a
// name of its own, in the answer, in the log and in a metric, also where it was the only worker that died.
func TestPoisonIsTriedTwice(t *testing.T) {
	const core = `{"error":{"message":"EngineCore encountered an issue. See stack trace (above) for the root cause.",` +
		`"type":"BadRequestError","param":null,"code":400}}`
	none, prefills := http.HandlerFunc(nil), fleet.Answers(handsOver)
	teapot := fleet.Fails(http.StatusTeapot)
	for _, c := range []struct {
		name            string
		workers         int              // of each role
		prefill, decode http.HandlerFunc // prefill none: workers of role both
		by              pools.Role       // whose calls kill
	}{
		{"the connection breaks", 5, none, dies, pools.Decode},
		{"decode's connection breaks after a hand-off", 5, prefills, dies, pools.Decode},
		{"prefill's connection breaks", 5, dies, teapot, pools.Prefill},
		{"the stream ends before its first token", 5, none,
			fleet.Streams(`{"choices":[{"index":0,"text":"","finish_reason":null}]}`), pools.Decode},
		{"the engine's core dies, in an event", 5, none, fleet.Streams(core, "[DONE]"), pools.Decode},
		{"the engine's core dies, by its status", 5, none, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = io.WriteString(w, core)
		}, pools.Decode},
		// 503, which clients' libraries send again by themselves, would kill the only worker each time.
		{"the only worker dies", 1, none, dies, pools.Decode},
		{"the only decode worker dies", 1, prefills, dies, pools.Decode},
		{"the only prefill worker dies", 1, dies, teapot, pools.Prefill},
	} {
		fleet.VirtualRun(t, c.name, func(t *testing.T) {
			f := fleet.New(t, fleet.Options{Alone: true, Gateway: func(g *stack.GatewayConfig) { g.Flow.DecodeFallback = c.workers > 1 }})
			var mu sync.Mutex
			killed := map[string]bool{} // hosts that a call of the request reached
			kill := func(role pools.Role, serve http.HandlerFunc) http.HandlerFunc {
				return func(w http.ResponseWriter, r *http.Request) {
					if role == c.by && !strings.HasSuffix(r.Header.Get("X-Request-Id"), "-release") {
						mu.Lock()
						killed[r.Host] = true
						mu.Unlock()
					}
					serve(w, r)
				}
			}
			role := pools.Both
			if c.prefill != nil {
				role = pools.Decode
				fleet.NewEngines(f, pools.Prefill, c.workers, kill(pools.Prefill, c.prefill))
			}
			fleet.NewEngines(f, role, c.workers, kill(pools.Decode, c.decode))
			a := f.Post(fleet.CompletionPath, fleet.Ask(fleet.Long, 4))
			f.Refused(a, http.StatusBadGateway, "suspected_poison", "")
			assert.Equal(t, "false", a.Header.Get("X-Should-Retry"), "headers %v", a.Header)
			mu.Lock()
			n := len(killed)
			mu.Unlock()
			assert.Equal(t, min(2, c.workers), n, "workers were killed")
			if log := f.Logs.String(); strings.Count(log, "suspected poison") != 1 || strings.Contains(log, fleet.Long) {
				t.Error("not one line of the log names it, or the log has the prompt")
			}
			assert.EqualValues(t, 1, f.Value("tandem_frontend_requests_total", "suspected_poison"), "the metric")
			f.Idle()
		})
	}
}

// The line that suspects a request names the workers that died under it: one that
// refused its connection had never seen it.
func TestPoisonNamesTheDead(t *testing.T) {
	f, _ := fleet.NewFake(t, pools.Both, 2, dies, fleet.InMode("round-robin"))
	w := *f.Gateway.Roster.Snapshot("tandem-sim", pools.Both).Members[0].Worker
	gone := httptest.NewServer(nil)
	gone.Close()
	for _, id := range []string{"engine-both-10", "engine-both-11", "engine-both-12"} { // between the two
		w.ID, w.Address = id, gone.URL
		f.Put(w)
	}
	f.Post(fleet.CompletionPath, fleet.Ask(fleet.Long, 4))
	log := f.Logs.String()
	require.Contains(t, log, "class=refused", "no worker refused the request before the second death")
	if !strings.Contains(log, `suspected poison`) || !strings.Contains(log, `workers="[engine-both-1 engine-both-2]"`) &&
		!strings.Contains(log, `workers="[engine-both-2 engine-both-1]"`) {
		t.Error(log)
	}
	f.Idle()
}

// A gateway that runs out of descriptors or ports, or whose resolver fails, counts that against no worker: clients get
// a 503 that names the cause, and the first request afterwards is served.
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
				f.Refused(a, http.StatusServiceUnavailable, "gateway_error", "")
				assert.True(t, a.Header.Get("Retry-After") != "" && !strings.Contains(string(a.Body), "decode worker failed"),
					"%v %s", a.Header, a.Body)
			}
			assert.LessOrEqual(t, len(f.Circuits()), 0, "circuits")
			for _, p := range f.Gateway.Fleet.Report() {
				for _, w := range p.Workers {
					assert.Equal(t, pools.Up.String(), w.State, "%s", w.ID)
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
