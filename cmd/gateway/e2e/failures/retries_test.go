package failures

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
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
				t.Errorf("%d requests were tried again, %d at once, by %d calls; want %d at once", len(o.retrying), o.most, o.attempts, c.retries)
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
