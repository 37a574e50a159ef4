package e2e

import (
	"strings"
	"testing"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
)

// The log and the metric say what the worker that computed the prompt had cached, whether another decodes or not.
func TestCachedTokensOfTheWorkerThatComputed(t *testing.T) {
	for name, o := range map[string]options{"two legs": {prefill: 1, decode: 1}, "one leg": {both: 1}} {
		t.Run(name, func(t *testing.T) {
			o.gateway = func(c *stack.GatewayConfig) { c.Flow.Seed = 19 } // names the second request 1ddb4fcdd7c6d93a: its answer's id has -1 twice
			f := newFleet(t, o)
			body := `{"model":"tandem-sim","max_tokens":2,"prompt":"` + strings.Repeat(long, 4) + `"}`
			f.post(completionPath, body)
			again := f.parse(f.post(completionPath, body).body)
			if again.Usage.Details.Cached == 0 {
				t.Fatal("the second time nothing was cached")
			}
			f.eventually("both requests are counted", func() bool { return f.value("tandem_frontend_cached_tokens") == 2 })
			id, _, _ := strings.Cut(strings.TrimPrefix(again.ID, "cmpl-"), "-")
			line := ""
			for l := range strings.Lines(f.logs.String()) {
				if strings.Contains(l, "msg=request ") && strings.Contains(l, "engine_request_id="+id+" ") {
					line = l
				}
			}
			_, after, _ := strings.Cut(line, "cached_tokens=")
			if said, _, _ := strings.Cut(after, " "); said == "" || said == "0" {
				t.Errorf("the answer says that %d tokens were cached, the log %q", again.Usage.Details.Cached, line)
			}
		})
	}
}
