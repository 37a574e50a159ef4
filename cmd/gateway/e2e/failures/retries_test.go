package failures

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/fault"
	"github.com/tandem-pd/tandem/internal/upstream"
	"github.com/tandem-pd/tandem/pools"
)

// outage is a transport whose decode workers have all failed: every first
// attempt fails once all of them are under way, and every retry is held until
// the test lets go.
type outage struct {
	upstream.Transport
	firsts sync.WaitGroup // first attempts to come
	let    chan struct{}  // closed: retries go on

	mu       sync.Mutex
	retrying map[string]bool // requests seen on a retry
	now      map[string]bool // those on one now
	most     int             // at once
	attempts int             // calls to decode
}

func (o *outage) Call(ctx context.Context, leg upstream.Leg) (upstream.Stream, error) {
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
	return nil, &upstream.Error{Worker: leg.Worker, Op: upstream.OpHead, Err: fmt.Errorf("the wire is cut")}
}

// An outage that hits every request at once is not multiplied: at most a fifth
// of the live requests, and ten of few, are tried again at once; the others wait
// for their turn, and each is tried once more, unless its turn does not come within resume-timeout.
func TestOutageIsNotMultiplied(t *testing.T) {
	for _, c := range []struct {
		clients, retries int
		lasts            bool
	}{{8, 8, false}, {30, 10, false}, {100, 20, false}, {30, 10, true}} {
		fleet.VirtualRun(t, fmt.Sprint(c.clients, " requests, lasts ", c.lasts), func(t *testing.T) {
			o := &outage{let: make(chan struct{}), retrying: map[string]bool{}, now: map[string]bool{}}
			o.firsts.Add(c.clients)
			f := fleet.New(t, fleet.Options{Prefill: 2, Decode: 4, Speedup: 1000, Gateway: func(cfg *stack.GatewayConfig) {
				cfg.WrapTransport = func(inner upstream.Transport) upstream.Transport {
					o.Transport = inner
					return o
				}
			}})
			answers, began, tried := make(chan fleet.Answer, c.clients), time.Now(), c.clients
			var group sync.WaitGroup
			for i := range c.clients {
				group.Go(func() {
					a := f.Post(fleet.CompletionPath, fleet.Ask(fmt.Sprint("request ", i), 2))
					answers <- a
				})
			}
			check := func(a fleet.Answer, code string) {
				if e := fleet.FailureIn(a); a.Status != http.StatusBadGateway || e == nil || *e.Code != code {
					t.Errorf("status %d, want %s: %s", a.Status, code, a.Body)
				}
			}
			f.Eventually("the retries are under way, and the others wait", func() bool {
				o.mu.Lock()
				defer o.mu.Unlock()
				return len(o.retrying) >= c.retries && f.Gateway.Flow.Retries().Waiting == c.clients-c.retries
			})
			if c.lasts {
				tried = c.retries
				for range c.clients - tried {
					check(<-answers, "reset")
				}
				if took := time.Since(began).Round(time.Second); took != 30*time.Second {
					t.Errorf("they waited %v for their turn", took)
				}
			}
			close(o.let)
			group.Wait()
			close(answers)
			for a := range answers { // their second worker broke off as well
				check(a, "suspected_poison")
			}
			if len(o.retrying) != tried || o.most != c.retries || o.attempts != c.clients+tried {
				t.Errorf("%d requests were tried again, %d at once, by %d calls; want %d at once", len(o.retrying), o.most,
					o.attempts, c.retries)
			}
			f.Idle()
		})
	}
}

// What the client's own mistake caused is tried once: another worker would say
// the same. It opens no circuit either.
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
				if n := f.hits.Load(); n != requests {
					t.Errorf("%d calls for %d requests", n, requests)
				}
				if open := f.Circuits(); len(open) > 0 {
					t.Errorf("circuits %v", open)
				}
				f.settled()
			})
		}
	}
}

// A worker that fails three times in a row is out of the choice, is shown so,
// and comes back by one request once it has had its time.
func TestEjectedWorkerComesBackByOne(t *testing.T) {
	fleet.Virtual(t, func(t *testing.T) {
		var broken atomic.Bool // calls of decode-1 fail
		var calls atomic.Int64 // that have
		f := fleet.New(t, fleet.Options{Prefill: 1, Decode: 2, Speedup: 1000, Gateway: func(c *stack.GatewayConfig) {
			c.Breakers.OpenFor = 300 * time.Millisecond
			c.WrapTransport = func(inner upstream.Transport) upstream.Transport {
				return transportFunc(func(ctx context.Context, leg upstream.Leg) (upstream.Stream, error) {
					if leg.Worker == "decode-1" && leg.Purpose == string(pools.Decode) && broken.Load() {
						calls.Add(1)
						return nil, &upstream.Error{Worker: leg.Worker, Op: upstream.OpHead, Err: fmt.Errorf("broken")}
					}
					return inner.Call(ctx, leg)
				})
			}
		}})
		circuit := func() fault.State { return cmp.Or(f.Circuits()["decode-1"], fault.Closed) }
		broken.Store(true)
		send := func() { f.Exact(fleet.Long, 2) }
		f.Eventually("its circuit is open", func() bool { send(); return circuit() == fault.Open })
		if n := calls.Load(); n != 3 {
			t.Errorf("open after %d failures", n)
		}
		send()
		if calls.Load() != 3 {
			t.Error("an ejected worker was called")
		}
		f.Eventually("its trial", func() bool { send(); return calls.Load() == 4 })
		if got := circuit(); got != fault.Open {
			t.Errorf("after a trial that failed it is %s", got)
		}
		broken.Store(false)
		f.Eventually("it is back", func() bool { send(); return circuit() == fault.Closed })
		f.Idle()
	})
}

// transportFunc is a Transport made of a function.
type transportFunc func(ctx context.Context, leg upstream.Leg) (upstream.Stream, error)

func (f transportFunc) Call(ctx context.Context, leg upstream.Leg) (upstream.Stream, error) {
	return f(ctx, leg)
}

// dies breaks the connection that a request came on, as an engine that it killed.
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
	none, prefills := http.HandlerFunc(nil), fleet.Says(handsOver)
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
			if a.Header.Get("X-Should-Retry") != "false" {
				t.Errorf("headers %v", a.Header)
			}
			mu.Lock()
			n := len(killed)
			mu.Unlock()
			if n != min(2, c.workers) {
				t.Errorf("%d workers were killed, want %d", n, min(2, c.workers))
			}
			if log := f.Logs.String(); strings.Count(log, "suspected poison") != 1 || strings.Contains(log, fleet.Long) {
				t.Error("not one line of the log names it, or the log has the prompt")
			}
			if got := f.Metric(`tandem_frontend_suspected_poison_total`); got != "1" {
				t.Errorf("the metric is %q", got)
			}
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
	if !strings.Contains(log, "class=refused") {
		t.Fatal("no worker refused the request before the second death: ", log)
	}
	if !strings.Contains(log, `suspected poison`) || !strings.Contains(log, `workers="[engine-both-1 engine-both-2]"`) &&
		!strings.Contains(log, `workers="[engine-both-2 engine-both-1]"`) {
		t.Error(log)
	}
	f.Idle()
}
