package engines

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/lab/devfleet"
)

// Of two legs at once each form of an answer says what prefill had cached: prefill's own answer may be read after decode's, and
// may lack the number, where decode's has it.
func TestCachedTokensOfAPair(t *testing.T) {
	for _, reports := range []bool{true, false} {
		f := sglangFleet(t, 1, 1, func(w *devfleet.WorkerConfig) {
			w.Engine.NoCacheReport = !reports && w.Engine.Role == "prefill"
		}, nil)
		for i, form := range []string{"", `"stream":true,`, `"stream":true,"stream_options":{"include_usage":true},`} {
			for _, tokens := range []int{1, 8} {
				prompt := strings.Repeat(fmt.Sprintf("%d.%d. %s", i, tokens, fleet.Long), 2)
				body := fmt.Sprintf(`{"model":"tandem-sim","max_tokens":%d,%s"prompt":%q,"nvext":{"extra_fields":["routing","timing"]}}`, tokens, form, prompt)
				f.Post(fleet.CompletionPath, body)
				a := f.Post(fleet.CompletionPath, body)
				got := string(a.Body) + strings.Join(a.Events, "\n")
				known := reports || form != `"stream":true,` // a stream without usage does not say it
				if strings.Contains(got, `"actual_cached_tokens":0`) || strings.Contains(got, `"actual_cached_tokens":`) != known ||
					strings.Contains(got, `"usage":{`) && strings.Contains(got, `"cached_tokens":0}`) {
					t.Errorf("prefill reports: %v, %s%d tokens: %s", reports, form, tokens, got)
				}
			}
		}
		freed(f, t, "at the end")
	}
}

// The log and the metric say what the worker that computed the prompt had cached, whether another decodes or not.
func TestCachedTokensOfTheWorkerThatComputed(t *testing.T) {
	for name, o := range map[string]fleet.Options{"two legs": {Prefill: 1, Decode: 1}, "one leg": {Both: 1}} {
		t.Run(name, func(t *testing.T) {
			o.Gateway = func(c *stack.GatewayConfig) { c.Flow.Seed = 19 } // names the second request 1ddb4fcdd7c6d93a: its answer's id has -1 twice
			f := fleet.New(t, o)
			body := `{"model":"tandem-sim","max_tokens":2,"prompt":"` + strings.Repeat(fleet.Long, 4) + `"}`
			f.Post(fleet.CompletionPath, body)
			again := f.Parse(f.Post(fleet.CompletionPath, body).Body)
			if again.Usage.Details.Cached == 0 {
				t.Fatal("the second time nothing was cached")
			}
			f.Eventually("both requests are counted", func() bool { return f.Value("tandem_frontend_cached_tokens") == 2 })
			id, _, _ := strings.Cut(strings.TrimPrefix(again.ID, "cmpl-"), "-")
			line := ""
			for l := range strings.Lines(f.Logs.String()) {
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
