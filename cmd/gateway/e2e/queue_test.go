package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/lab/devfleet"
)

// narrow is a fleet whose one decode worker runs one request at a time, and
// whose queue holds so many.
func narrow(t *testing.T, limit int, timeout time.Duration) *fleet {
	return newFleet(t, options{
		prefill: 1, decode: 1, speedup: 1,
		worker: func(c *devfleet.WorkerConfig) { c.Engine.MaxNumSeqs = 1 },
		gateway: func(c *stack.GatewayConfig) {
			c.Flow.Queue.Limit = limit
			c.Flow.Queue.Timeout = timeout
		},
	})
}

// occupy sends a request that runs until the returned func is called.
func (f *fleet) occupy() (leave func()) { return f.occupyFor(100_000) }

// occupyFor is occupy with an answer of so many tokens at the most.
func (f *fleet) occupyFor(tokens int) (leave func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() { _, _ = f.try(ctx, completionPath, ask(long, tokens), func(string) { f.first(-1) }) })
	f.eventually("the decode worker is taken", func() bool { return f.started() > 0 })
	return func() {
		cancel()
		group.Wait()
	}
}

func (f *fleet) waiting() int { return f.gateway.Flow.Waiting()["tandem-sim"].Waiting }

// TestQueueFull: a full queue is a 503 at once, with the time to retry.
func TestQueueFull(t *testing.T) {
	virtual(t, func(t *testing.T) {
		f := narrow(t, 1, time.Minute)
		leave := f.occupy()
		var group sync.WaitGroup
		var waited answer
		group.Go(func() { waited = f.post(completionPath, ask(long, 2)) })
		f.eventually("one request waits", func() bool { return f.waiting() == 1 })
		a := f.post(completionPath, ask(long, 2))
		e := f.parse(a.body).Error
		after, err := strconv.Atoi(a.header.Get("Retry-After"))
		if a.status != http.StatusServiceUnavailable || e == nil || *e.Code != "server_is_overloaded" || err != nil || after < 1 {
			t.Errorf("status %d, Retry-After %q: %s", a.status, a.header.Get("Retry-After"), a.body)
		}
		leave()
		group.Wait()
		if waited.status != http.StatusOK {
			t.Errorf("who waited got %d: %s", waited.status, waited.body)
		}
		f.idle()
	})
}

func TestQueueTimeout(t *testing.T) {
	virtual(t, func(t *testing.T) {
		f := narrow(t, 10, 50*time.Millisecond)
		leave := f.occupy()
		a := f.post(completionPath, ask(long, 2))
		if e := f.parse(a.body).Error; a.status != http.StatusGatewayTimeout || e == nil || *e.Code != "queue_timeout" {
			t.Errorf("status %d: %s", a.status, a.body)
		}
		leave()
		f.idle()
	})
}

// Who has the higher priority is served first, by the body or by the headers,
// which win; a strict priority goes before any other.
func TestQueueOrder(t *testing.T) {
	virtual(t, func(t *testing.T) {
		f := narrow(t, 10, time.Minute)
		leave := f.occupy()
		var mu sync.Mutex
		var order []string
		var group sync.WaitGroup
		for i, c := range []struct {
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
			group.Go(func() {
				body := fmt.Sprintf(`{"model":"tandem-sim","max_tokens":2,"stream":true,%s"prompt":%q}`, c.hints, long)
				once := sync.OnceFunc(func() {
					mu.Lock()
					defer mu.Unlock()
					order = append(order, c.name)
				})
				if _, err := f.try(context.Background(), completionPath, body, func(string) { once() }, c.headers...); err != nil {
					t.Error(err)
				}
			})
			f.eventually(c.name+" waits", func() bool { return f.waiting() == i+1 })
		}
		leave()
		group.Wait()
		if got, want := strings.Join(order, " "), "stricter strict priority header plain negative"; got != want {
			t.Errorf("served %q, want %q", got, want)
		}
		f.idle()
	})
}

// A request that no worker could ever hold is refused at once, not queued.
func TestTooBigForAnyWorker(t *testing.T) {
	f := newFleet(t, options{prefill: 1, decode: 1, speedup: 1, worker: func(c *devfleet.WorkerConfig) {
		c.Engine.ContextLength, c.Engine.TotalKVBlocks, c.Engine.MaxNumSeqs = 2048, 128, 1
	}})
	leave := f.occupyFor(1500)
	var group sync.WaitGroup
	group.Go(func() { f.post(completionPath, ask(long, 2)) })
	f.eventually("another request waits", func() bool { return f.waiting() == 1 })
	ids := strings.TrimSuffix(strings.Repeat("12,", 2045), ",")
	a := f.post(completionPath, `{"model":"tandem-sim","max_tokens":1,"prompt":[`+ids+`]}`)
	if e := f.parse(a.body).Error; a.status != http.StatusBadRequest || e == nil || *e.Code != "context_length_exceeded" || !strings.Contains(e.Message, "context length is 2032 tokens") {
		t.Errorf("status %d: %s", a.status, a.body)
	}
	if f.waiting() != 1 {
		t.Error("the refusal was not at once: the queue has moved on")
	}
	leave()
	group.Wait()
	f.idle()
}

// A prompt that would fit only a worker which drains is refused at once, and holds
// up nobody for queue-timeout.
func TestFitsOnlyADrainingWorker(t *testing.T) {
	f := newFleet(t, options{prefill: 1, decode: 2, worker: func(c *devfleet.WorkerConfig) {
		c.Engine.ContextLength, c.Engine.TotalKVBlocks = 2048, 256
	}, gateway: func(c *stack.GatewayConfig) { c.Flow.Queue.Timeout = time.Minute }})
	small, _ := f.gateway.Roster.Lookup("decode-2")
	w := *small.Worker
	w.TotalKVBlocks = 64
	if err := f.gateway.Roster.Put(w); err != nil {
		t.Fatal(err)
	}
	if err := f.gateway.Roster.Drain("decode-1", true); err != nil {
		t.Fatal(err)
	}
	ids := strings.TrimSuffix(strings.Repeat("12,", 1500), ",")
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	a, err := f.try(ctx, completionPath, `{"model":"tandem-sim","max_tokens":1,"prompt":[`+ids+`]}`, nil)
	if err != nil {
		t.Fatal(err)
	}
	f.refused(t, a, http.StatusServiceUnavailable, "no_worker", "")
	f.idle()
}

// Long prompts wait in the queue while every prefill worker has more booked
// than its threshold, and all are answered.
func TestPrefillThreshold(t *testing.T) {
	f := newFleet(t, options{prefill: 1, decode: 1, speedup: 20, gateway: func(c *stack.GatewayConfig) {
		c.Router.QueueThreshold = .5
	}})
	waited := false
	var group sync.WaitGroup
	for i := range 6 {
		group.Go(func() {
			if a := f.post(completionPath, ask(fmt.Sprintf("%d %s", i, strings.Repeat(long, 240)), 2)); a.status != http.StatusOK {
				t.Errorf("status %d: %s", a.status, a.body)
			}
		})
	}
	f.eventually("somebody waits", func() bool {
		waited = waited || f.waiting() > 0
		return waited
	})
	group.Wait()
	f.idle()
}
