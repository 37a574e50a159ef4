package routing

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/fleet"
	"github.com/tandem-pd/tandem/pools"
)

// narrow is a fleet whose one decode worker runs one request at a time, and whose queue holds so many.
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

// line has requests wait one behind another, and records the order in which they are served.
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
		if a, err := l.f.Try(context.Background(), fleet.CompletionPath, body, func(string) { once() }, headers...); err != nil ||
			a.Status != http.StatusOK {
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
			l.join(c.name, fmt.Sprintf(`{"model":"tandem-sim","max_tokens":2,"stream":true,%s"prompt":%q}`, c.hints, fleet.Long),
				c.headers...)
		}
		leave()
		assert.Equal(t, "stricter strict priority header plain negative", l.served(), "served")
		f.Idle()
	})
}

// The class of the header takes turns with the others, one that floods is refused in its share of the queue alone, and
// a name that is no class counts as none. Log and metrics name the class.
func TestClassesTakeTurns(t *testing.T) {
	fleet.Virtual(t, func(t *testing.T) {
		f := fleet.New(t, fleet.Options{
			Prefill: 1, Decode: 1, Speedup: 1,
			Worker: func(c *devfleet.WorkerConfig) {
				c.Engine.MaxNumSeqs, c.Engine.ContextLength, c.Engine.TotalKVBlocks = 1, 1<<17, 1<<14
			},
			Gateway: func(c *stack.GatewayConfig) {
				c.Flow.Queue.Limit, c.Flow.Queue.Timeout, c.Flow.Queue.Classes = 10, time.Minute, fleet.TwoClasses(t)
			},
		})
		leave := occupy(f)
		l := line{f: f}
		text := func(name string) string {
			return fmt.Sprintf(`{"model":"tandem-sim","max_tokens":2,"stream":true,"prompt":"%s %s"}`, name, fleet.Long)
		}
		for _, name := range []string{"r1", "r2", "r3", "r4", "p1", "p2", "odd"} {
			headers := []string{}
			switch name[0] {
			case 'p':
				headers = []string{"x-dynamo-meta-policy-class", " premium "}
			case 'o':
				headers = []string{"x-dynamo-meta-policy-class", "premium_all", "x-request-id", "odd"} // of a family: not to be named
			}
			l.join(name, text(name), headers...)
		}
		assert.Equal(t, http.StatusTooManyRequests, f.Post(fleet.CompletionPath, text("r6")).Status,
			"a sixth regular request of 10 places, half of them its class's: status")
		leave()
		got := l.served()
		assert.True(t, got == "r1 p1 r2 p2 r3 r4 odd" || got == "p1 r1 p2 r2 r3 r4 odd", "served %s", got)
		logs := f.Logs.String()
		if !strings.Contains(logs, "policy_class=premium_all") || !strings.Contains(logs, "ignored_hints=x-dynamo-meta-policy-class") {
			t.Errorf("the log names no class, or not the header that was no class's: %s", logs)
		}
		f.Idle()
		tokens := func(class string) float64 {
			return f.Value("tandem_frontend_router_queue_class_granted_tokens_total", class)
		}
		assert.Greater(t, tokens("regular_all"), tokens("premium_all"), "tokens of the classes")
		assert.NotZero(t, tokens("premium_all"))
		assert.EqualValues(t, 6, f.Value("tandem_frontend_queue_wait_seconds", "regular_all"), "regular requests that waited")
		assert.EqualValues(t, 2, f.Value("tandem_frontend_queue_wait_seconds", "premium_all"), "premium ones")
	})
}

// seats is a fleet of one prefill worker and so many decode workers that run one request each at a time. The first
// of them is tainted.
func seats(t *testing.T, decode int, mode string) *fleet.Fleet {
	f := fleet.New(t, fleet.Options{
		Prefill: 1, Decode: decode, Speedup: 1,
		Worker: func(c *devfleet.WorkerConfig) {
			c.Engine.MaxNumSeqs, c.Engine.ContextLength, c.Engine.TotalKVBlocks = 1, 1<<17, 1<<14
		},
		Gateway: func(c *stack.GatewayConfig) {
			fleet.InMode(mode)(c)
			c.Flow.Queue.Timeout = 10 * time.Second
		},
	})
	w := *f.Gateway.Roster.Snapshot("tandem-sim", pools.Decode).Members[0].Worker
	w.Taints = []string{"gold"}
	f.Put(w)
	return f
}

// take has the worker that nvext names run a request until the returned func is called.
func takeFrom(f *fleet.Fleet, worker string) (leave func()) {
	f.T.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	body := fmt.Sprintf(`{"model":"tandem-sim","max_tokens":100000,"stream":true,"prompt":%q,"nvext":{"decode_worker_id":%q}}`,
		fleet.Long, worker)
	begun := make(chan struct{})
	once := sync.OnceFunc(func() { close(begun) })
	group.Go(func() { _, _ = f.Try(ctx, fleet.CompletionPath, body, func(string) { once() }) })
	select {
	case <-begun:
	case <-time.After(10 * time.Second):
		f.T.Fatal(worker, " was never taken")
	}
	return func() {
		cancel()
		group.Wait()
	}
}

// A request that is bound to a busy worker waits for it without holding up those that are bound to others or to
// none, and is served before later ones once there is room for it.
func TestABoundRequestHoldsUpItsLikeAlone(t *testing.T) {
	for _, c := range []struct{ name, mode, bound, other string }{
		{"pinned", "kv", `"decode_worker_id":"decode-1"`, ""},
		{"tainted", "kv", `"routing_constraints":{"required_taints":["gold"]}`, ""},
		{"direct", "direct", `"decode_worker_id":"decode-1"`, `"decode_worker_id":"decode-2"`},
	} {
		fleet.VirtualRun(t, c.name, func(t *testing.T) {
			f := seats(t, 2, c.mode)
			leave := takeFrom(f, "decode-1")
			var group sync.WaitGroup
			served := make(chan string, 2)
			send := func(name, nvext string) {
				group.Go(func() {
					a := f.Post(fleet.CompletionPath, fleet.Pinned(nvext))
					if a.Status != http.StatusOK {
						t.Errorf("%s: status %d: %s", name, a.Status, a.Body)
						return
					}
					served <- f.Parse(a.Body).Nvext.WorkerID.Decode
				})
			}
			send("the first that is bound", c.bound)
			f.Eventually("it waits", func() bool { return waitingAt(f) == 1 })
			for i := range 3 {
				a := f.Good(fleet.CompletionPath, fleet.Pinned(c.other))
				assert.Equal(t, "decode-2", f.Parse(a.Body).Nvext.WorkerID.Decode, "request %d ran on", i)
			}
			assert.Equal(t, 1, waitingAt(f), "the bound request did not wait for its worker")
			leave()
			group.Wait()
			close(served)
			for w := range served {
				assert.Equal(t, "decode-1", w, "the bound request ran on")
			}
			f.Idle()
		})
	}
}

// In mode eft many requests at once wait in the gateway and not in engines, and every answer is what it would have
// been.
func TestEFTWaitsInTheGateway(t *testing.T) {
	fleet.Virtual(t, func(t *testing.T) {
		const clients = 60
		f := fleet.New(t, fleet.Options{Speedup: 4, Gateway: func(c *stack.GatewayConfig) {
			c.Router.Mode, c.Flow.Queue.Policy = "eft", "hrrn"
		}})
		// Each prompt is its own from the start, and too long for an engine to be given two at once.
		asked := func(i int) fleet.Question {
			return fleet.QuestionOf(i, fmt.Sprint(i, " ", strings.Repeat(fleet.Long, 10)))
		}
		for i := range 4 { // the workers' speeds are known
			q := asked(1000 + i)
			f.Post(q.Path, q.Body)
		}
		most := 0
		watched := make(chan struct{})
		over, stop := context.WithCancel(context.Background())
		go func() {
			defer close(watched)
			for over.Err() == nil {
				for id, w := range f.Workers {
					if b := w.Engine.Books(); id[0] == 'p' {
						most = max(most, b.Running+b.Waiting)
					}
				}
				<-time.After(time.Millisecond)
			}
		}()
		var group sync.WaitGroup
		for i := range clients {
			group.Go(func() {
				q := asked(i)
				if whole, err := f.Verdict(q, f.Post(q.Path, q.Body)); err != nil || !whole {
					t.Errorf("request %d: whole %v, %v", i, whole, err)
				}
			})
		}
		group.Wait()
		stop()
		<-watched
		assert.LessOrEqual(t, most, clients/8, "prompts at one prefill engine")
		t.Logf("up to %d prompts were at one prefill engine", most)
		f.Idle()
	})
}

// Mode auto is kv until a prompt has shown how fast a prefill worker is, then eft; each choice is logged once and
// stands in /workers.
func TestAutoReportsItsChoices(t *testing.T) {
	f := fleet.New(t, fleet.Options{Gateway: func(c *stack.GatewayConfig) { c.Router.Mode = "auto" }})
	mode := func() (mode, reason string) {
		var report struct {
			Pools []struct {
				Role   string `json:"role"`
				Mode   string `json:"router_mode"`
				Reason string `json:"router_mode_reason"`
			} `json:"pools"`
		}
		f.Get("/workers", &report)
		for _, p := range report.Pools {
			if p.Role == "prefill" {
				mode, reason = p.Mode, p.Reason
			}
		}
		return mode, reason
	}
	m, why := mode()
	assert.Equal(t, "kv", m, "before any prompt")
	assert.NotEmpty(t, why)
	for i := range 6 {
		q := fleet.IthQuestion(i)
		if whole, err := f.Verdict(q, f.Post(q.Path, q.Body)); err != nil || !whole {
			t.Errorf("request %d: whole %v, %v", i, whole, err)
		}
	}
	m, why = mode()
	assert.Equal(t, "eft", m, "after six prompts")
	assert.NotEmpty(t, why)
	logged := f.Logs.String()
	for _, mode := range []string{"mode=kv", "mode=eft"} {
		assert.Equal(t, 1, strings.Count(logged, mode), "lines with %s in:\n%s", mode, logged)
	}
	f.Idle()
}

// In mode eft a long prompt is computed in slices that stay in the worker's prefix cache; the decode worker is chosen
// when all of it is computed, and the answer is what it would have been.
func TestEFTSlicesLongPrompts(t *testing.T) {
	const slice, tokens = 64, 16
	f := fleet.New(t, fleet.Options{Prefill: 1, Decode: 2, Gateway: func(c *stack.GatewayConfig) {
		c.Router.Mode, c.Flow.Queue.Policy, c.Router.Slice = "eft", "hrrn", slice
	}})
	prefill := f.Record("prefill-1")
	for _, c := range []struct {
		path, body string
		prompt     []uint32
	}{
		{fleet.CompletionPath, fmt.Sprintf(`"prompt":%q`, strings.Repeat(fleet.Long, 20)),
			fleet.TextPrompt(strings.Repeat(fleet.Long, 20))},
		{fleet.ChatPath, fmt.Sprintf(`"messages":[{"role":"user","content":%q}],"cache_salt":"s"`,
			"Well. "+strings.Repeat(fleet.Long, 20)), fleet.ChatPrompt("Well. " + strings.Repeat(fleet.Long, 20))},
	} {
		t.Run(c.path, func(t *testing.T) {
			a := f.Post(c.path, fmt.Sprintf(`{"model":"tandem-sim","max_tokens":%d,%s}`, tokens, c.body))
			assert.Equal(t, fleet.Expected(c.prompt, tokens), f.Text(a), "answered %q", a.Body)
			if usage := f.Parse(a.Body).Usage; usage.Prompt != len(c.prompt) || usage.Details != nil && usage.Details.Cached > slice {
				t.Errorf("usage %+v, want %d prompt tokens, none cached before", usage, len(c.prompt))
			}
			bodies := prefill.TakeBodies()
			require.GreaterOrEqual(t, len(bodies), len(c.prompt)/slice-1, "calls to prefill, want at least")
			before := 0
			for _, body := range bodies[:len(bodies)-1] {
				var sent struct {
					Prompt    []uint32 `json:"prompt"`
					MaxTokens int      `json:"max_tokens"`
					Salt      string   `json:"cache_salt"`
				}
				path, text, _ := strings.Cut(body, " ")
				if err := json.Unmarshal([]byte(text), &sent); err != nil || path != fleet.CompletionPath || sent.MaxTokens != 1 ||
					!slices.Equal(sent.Prompt, c.prompt[:len(sent.Prompt)]) {
					t.Fatalf("%v: a slice is %s", err, body)
				}
				if n := len(sent.Prompt) - before; n <= 0 || n > slice+slice/2 || (sent.Salt == "s") != (c.path == fleet.ChatPath) {
					t.Errorf("a slice has %d tokens more, salt %q", n, sent.Salt)
				}
				before = len(sent.Prompt)
			}
			f.Idle()
		})
	}
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
		assert.Equal(t, http.StatusOK, waited.Status, "who waited: %s", waited.Body)
		f.Idle()
	})
}
