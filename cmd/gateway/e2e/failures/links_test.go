package failures

import (
	"context"
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
)

// TestLinksBreak: a worker whose connections are reset, or carry nothing any more, costs no answer: streams go on on the other decode
// worker, token for token, at once or after the limit for silence; prompts that prefill is not reached for are computed by decode.
func TestLinksBreak(t *testing.T) {
	const idle, prefill = 500 * time.Millisecond, time.Second
	for name, c := range map[string]struct {
		role   string
		silent bool
		wait   time.Duration // that the break costs at the least, and 300 ms more at the most
	}{
		"decode reset":   {"decode", false, 0},
		"decode silent":  {"decode", true, idle},
		"prefill reset":  {"prefill", false, 0},
		"prefill silent": {"prefill", true, prefill},
	} {
		fleet.VirtualRun(t, name, func(t *testing.T) {
			f := fleet.New(t, fleet.Options{Prefill: 1, Decode: 2, Speedup: 2, Gateway: func(c *stack.GatewayConfig) {
				c.Decode.StreamIdleTimeout, c.Decode.FirstTokenTimeout, c.Prefill.Timeout = idle, idle, prefill
			}})
			cut := func(id string) {
				at, _ := url.Parse(f.Workers[id].Record().Address)
				fleet.NetworkOf(t).CutOff(at.Host, c.silent)
			}
			var silence time.Duration
			last, n := time.Now(), 0
			for i := range 4 {
				prompt := fmt.Sprint(i, fleet.Long)
				if last = time.Now(); i == 1 && c.role == "prefill" {
					cut("prefill-1")
				}
				a, err := f.Try(context.Background(), fleet.CompletionPath, fleet.Ask(prompt, 100), func(string) {
					silence, last = max(silence, time.Since(last)), time.Now()
					if n++; n == 30 && c.role == "decode" {
						cut(f.Generating())
					}
				})
				if err != nil {
					t.Fatal(err)
				}
				if got := f.Text(a); got != fleet.Answered(prompt, 100) || a.Events[len(a.Events)-1] != "[DONE]" {
					t.Errorf("answer %d is %q and ends with %q", i, got, a.Events[len(a.Events)-1])
				}
			}
			if silence < c.wait || silence > c.wait+300*time.Millisecond {
				t.Errorf("the longest silence is %v, the limit %v", silence, c.wait)
			}
			f.Idle()
		})
	}
}
