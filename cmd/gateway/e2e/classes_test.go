package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/queue"
)

// twoClasses are a class of each of two families, regular the default, with equal shares.
func twoClasses(t *testing.T) *queue.Classes {
	t.Helper()
	c, err := queue.ParseClasses("classes.yaml", []byte(`
default_policy_family: regular
uncached_isl_buckets: [{min_tokens: 0, bucket: all}]
policy_classes:
  - {name: regular_all, policy_family: regular, cache_bucket: all, quantum: 64}
  - {name: premium_all, policy_family: premium, cache_bucket: all, quantum: 64}
`))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// The class of the header takes turns with the others, one that floods is refused in its share of the queue alone, and a
// name that is no class counts as none. Log and metrics name the class.
func TestClassesTakeTurns(t *testing.T) {
	virtual(t, func(t *testing.T) {
		f := newFleet(t, options{
			prefill: 1, decode: 1, speedup: 1,
			worker: func(c *devfleet.WorkerConfig) {
				c.Engine.MaxNumSeqs, c.Engine.ContextLength, c.Engine.TotalKVBlocks = 1, 1<<17, 1<<14
			},
			gateway: func(c *stack.GatewayConfig) {
				c.Flow.Queue.Limit, c.Flow.Queue.Timeout, c.Flow.Queue.Classes = 10, time.Minute, twoClasses(t)
			},
		})
		leave := f.occupy()
		var mu sync.Mutex
		var order []string
		var group sync.WaitGroup
		text := func(name string) string {
			return fmt.Sprintf(`{"model":"tandem-sim","max_tokens":2,"stream":true,"prompt":"%s %s"}`, name, long)
		}
		for i, name := range []string{"r1", "r2", "r3", "r4", "p1", "p2", "odd"} {
			headers := []string{}
			switch name[0] {
			case 'p':
				headers = []string{"x-dynamo-meta-policy-class", " premium "}
			case 'o':
				headers = []string{"x-dynamo-meta-policy-class", "premium_all", "x-request-id", "odd"} // of a family: not to be named
			}
			group.Go(func() {
				once := sync.OnceFunc(func() {
					mu.Lock()
					defer mu.Unlock()
					order = append(order, name)
				})
				if a, err := f.try(context.Background(), completionPath, text(name), func(string) { once() }, headers...); err != nil || a.status != http.StatusOK {
					t.Error(name, err, a.status)
				}
			})
			f.eventually(name+" waits", func() bool { return f.waiting() == i+1 })
		}
		if a := f.post(completionPath, text("r6")); a.status != http.StatusTooManyRequests {
			t.Errorf("a sixth regular request of 10 places, half of them its class's: status %d", a.status)
		}
		leave()
		group.Wait()
		got := strings.Join(order, " ")
		if got != "r1 p1 r2 p2 r3 r4 odd" && got != "p1 r1 p2 r2 r3 r4 odd" {
			t.Errorf("served %s", got)
		}
		logs := f.logs.String()
		if !strings.Contains(logs, "policy_class=premium_all") || !strings.Contains(logs, "ignored_hints=x-dynamo-meta-policy-class") {
			t.Errorf("the log names no class, or not the header that was no class's: %s", logs)
		}
		f.idle()
		families, err := f.reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		tokens, waits := map[string]float64{}, map[string]uint64{}
		for _, family := range families {
			for _, m := range family.GetMetric() {
				for _, l := range m.GetLabel() {
					switch {
					case l.GetName() != "policy_class":
					case family.GetName() == "tandem_frontend_router_queue_class_granted_tokens_total":
						tokens[l.GetValue()] = m.GetCounter().GetValue()
					case family.GetName() == "tandem_frontend_router_queue_class_wait_seconds":
						waits[l.GetValue()] = m.GetHistogram().GetSampleCount()
					}
				}
			}
		}
		if tokens["regular_all"] <= tokens["premium_all"] || tokens["premium_all"] == 0 || waits["regular_all"] != 6 || waits["premium_all"] != 2 {
			t.Errorf("tokens %v, waits %v", tokens, waits)
		}
	})
}
