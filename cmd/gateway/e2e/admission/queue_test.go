package admission

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/lab/devfleet"
)

// narrow is a fleet whose one decode worker runs one request at a time, and
// whose queue holds so many.
func narrow(t *testing.T, limit int, timeout time.Duration) *fleet.Fleet {
	return fleet.New(t, fleet.Options{
		Prefill: 1, Decode: 1, Speedup: 1,
		Worker: func(c *devfleet.WorkerConfig) { c.Engine.MaxNumSeqs = 1 },
		Gateway: func(c *stack.GatewayConfig) {
			c.Flow.Queue.Limit = limit
			c.Flow.Queue.Timeout = timeout
		},
	})
}

// occupy sends a request that runs until the returned func is called.
func occupy(f *fleet.Fleet) (leave func()) { return f.OccupyFor(100_000) }

func waitingAt(f *fleet.Fleet) int { return f.Gateway.Flow.Waiting()["tandem-sim"].Waiting }

// line has requests wait one behind another, and knows in which order they are served.
type line struct {
	f     *fleet.Fleet
	group sync.WaitGroup
	mu    sync.Mutex // guards order
	order []string
}

// join adds a request that waits.
func (l *line) join(name, body string, headers ...string) {
	l.f.T.Helper()
	n := waitingAt(l.f)
	l.group.Go(func() {
		once := sync.OnceFunc(func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.order = append(l.order, name)
		})
		if a, err := l.f.Try(context.Background(), fleet.CompletionPath, body, func(string) { once() }, headers...); err != nil || a.Status != http.StatusOK {
			l.f.T.Errorf("%s: %v, status %d: %s", name, err, a.Status, a.Body)
		}
	})
	l.f.Eventually(name+" waits", func() bool { return waitingAt(l.f) == n+1 })
}

// served waits until all are, and returns their order.
func (l *line) served() string {
	l.group.Wait()
	return strings.Join(l.order, " ")
}

// TestQueueFull: a full queue is a 503 at once, with the time to retry.
func TestQueueFull(t *testing.T) {
	fleet.Virtual(t, func(t *testing.T) {
		f := narrow(t, 1, time.Minute)
		leave := occupy(f)
		var group sync.WaitGroup
		var waited fleet.Answer
		group.Go(func() { waited = f.Post(fleet.CompletionPath, fleet.Ask(fleet.Long, 2)) })
		f.Eventually("one request waits", func() bool { return waitingAt(f) == 1 })
		a := f.Post(fleet.CompletionPath, fleet.Ask(fleet.Long, 2))
		e := f.Parse(a.Body).Error
		after, err := strconv.Atoi(a.Header.Get("Retry-After"))
		if a.Status != http.StatusServiceUnavailable || e == nil || *e.Code != "server_is_overloaded" || err != nil || after < 1 {
			t.Errorf("status %d, Retry-After %q: %s", a.Status, a.Header.Get("Retry-After"), a.Body)
		}
		leave()
		group.Wait()
		if waited.Status != http.StatusOK {
			t.Errorf("who waited got %d: %s", waited.Status, waited.Body)
		}
		f.Idle()
	})
}

func TestQueueTimeout(t *testing.T) {
	fleet.Virtual(t, func(t *testing.T) {
		const timeout = 50 * time.Millisecond
		f := narrow(t, 10, timeout)
		leave := occupy(f)
		began := time.Now()
		a := f.Post(fleet.CompletionPath, fleet.Ask(fleet.Long, 2))
		if took := time.Since(began); took < timeout || took > timeout+10*time.Millisecond {
			t.Errorf("took %v", took)
		}
		f.Refused(a, http.StatusGatewayTimeout, "queue_timeout", "")
		leave()
		f.Idle()
	})
}

// Who has the higher priority is served first, by the body or by the headers,
// which win; a strict priority goes before any other.
func TestQueueOrder(t *testing.T) {
	fleet.Virtual(t, func(t *testing.T) {
		f := narrow(t, 10, time.Minute)
		leave := occupy(f)
		l := line{f: f}
		for _, c := range []struct {
			name, hints string
			headers     []string
		}{
			{"plain", ``, nil},
			{"priority", `"nvext":{"agent_hints":{"priority":1000}},`, nil},
			{"strict", `"nvext":{"agent_hints":{"strict_priority":1}},`, nil},
			{"negative", `"nvext":{"agent_hints":{"priority":-1000}},`, nil},
			{"header", `"nvext":{"agent_hints":{"priority":5000}},`, []string{"x-dynamo-request-priority", "500"}},
			{"stricter", `"nvext":{"agent_hints":{"strict_priority":0}},`, []string{"x-dynamo-request-strict-priority", "2"}},
		} {
			l.join(c.name, fmt.Sprintf(`{"model":"tandem-sim","max_tokens":2,"stream":true,%s"prompt":%q}`, c.hints, fleet.Long), c.headers...)
		}
		leave()
		if got, want := l.served(), "stricter strict priority header plain negative"; got != want {
			t.Errorf("served %q, want %q", got, want)
		}
		f.Idle()
	})
}
