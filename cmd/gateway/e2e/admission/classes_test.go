package admission

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/lab/devfleet"
)

// The class of the header takes turns with the others, one that floods is refused in its share of the queue alone, and a
// name that is no class counts as none. Log and metrics name the class.
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
		if a := f.Post(fleet.CompletionPath, text("r6")); a.Status != http.StatusTooManyRequests {
			t.Errorf("a sixth regular request of 10 places, half of them its class's: status %d", a.Status)
		}
		leave()
		got := l.served()
		if got != "r1 p1 r2 p2 r3 r4 odd" && got != "p1 r1 p2 r2 r3 r4 odd" {
			t.Errorf("served %s", got)
		}
		logs := f.Logs.String()
		if !strings.Contains(logs, "policy_class=premium_all") || !strings.Contains(logs, "ignored_hints=x-dynamo-meta-policy-class") {
			t.Errorf("the log names no class, or not the header that was no class's: %s", logs)
		}
		f.Idle()
		families, err := f.Reg.Gather()
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
