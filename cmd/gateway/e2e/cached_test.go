package e2e

import (
	"strings"
	"testing"
)

// The log and the metric say what the worker that computed the prompt had cached, whether another decodes or not.
func TestCachedTokensOfTheWorkerThatComputed(t *testing.T) {
	for name, o := range map[string]options{"two legs": {prefill: 1, decode: 1}, "one leg": {both: 1}} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, o)
			body := `{"model":"tandem-sim","max_tokens":2,"prompt":"` + strings.Repeat(long, 4) + `"}`
			f.post(completionPath, body)
			again := f.parse(f.post(completionPath, body).body)
			if again.Usage.Details.Cached == 0 {
				t.Fatal("the second time nothing was cached")
			}
			f.eventually("both requests are counted", func() bool { return f.value("tandem_frontend_cached_tokens") == 2 })
			id, _, _ := strings.Cut(again.ID, "-1")
			line := ""
			for l := range strings.Lines(f.logs.String()) {
				if strings.Contains(l, "msg=request ") && strings.Contains(l, "engine_request_id="+strings.TrimPrefix(id, "cmpl-")+" ") {
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
