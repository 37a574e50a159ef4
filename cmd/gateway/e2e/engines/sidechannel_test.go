package engines

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

// The decode workers cannot pull KV from a prefill worker: no answer fails, the other prefill worker or decode itself
// prefills, no circuit but that worker's opens, and what it holds goes with its lease.
func TestKVCannotBePulled(t *testing.T) {
	for name, silent := range map[string]bool{"refused": false, "silent": true} {
		for _, c := range []struct {
			prefills, decodes int
			by                string // prefills instead
		}{{2, 1, "prefill-2"}, {2, 2, "prefill-2"}, {1, 1, ""}} {
			fleet.VirtualRun(t, fmt.Sprintf("%s, %dP%dD", name, c.prefills, c.decodes), func(t *testing.T) {
				f := fleet.New(t, fleet.Options{Prefill: c.prefills, Decode: c.decodes, Worker: func(c *devfleet.WorkerConfig) {
					c.Engine.CallTimeout, c.Engine.Lease = 200*time.Millisecond, 2500*time.Millisecond
				}, Gateway: func(c *stack.GatewayConfig) { c.Breakers.OpenFor = time.Hour }})
				round := func(n string) (by map[string]int) {
					t.Helper()
					by = map[string]int{}
					for i := range 20 {
						prompt := fmt.Sprint(n, i, fleet.Long)
						a := f.Post(fleet.CompletionPath, fleet.Ask(prompt, 6))
						if got := f.Text(a); a.Status != http.StatusOK || got != fleet.Answered(prompt, 6) {
							t.Fatalf("request %d: status %d, %s %q", i, a.Status, a.Body, a.Events)
						}
						p, _ := f.Served(a)
						by[p]++
					}
					return by
				}
				if by := round("first"); by["prefill-1"] == 0 {
					t.Fatalf("nothing was prefilled by prefill-1: %v", by)
				}
				fleet.NetworkOf(t).CutOff(f.Workers["prefill-1"].Record().Transfer, silent)
				by := round("second")
				if by[c.by] < 15 {
					t.Errorf("prefilled by %v", by)
				}
				for id, s := range f.Circuits() {
					if id != "prefill-1" {
						t.Errorf("%s's circuit is %s", id, s)
					}
				}
				if n := strings.Count(f.Logs.String(), `msg="leg failed"`); n == 0 || n > 4 && c.prefills > 1 { // one by itself is called all the same
					t.Errorf("%d legs failed", n)
				}
				f.Idle()
			})
		}
	}
}
