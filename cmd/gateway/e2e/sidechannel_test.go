package e2e

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/linktest"
)

// behind is a listener that is reached through a link.
type behind struct {
	net.Listener
	at net.Addr
}

func (b behind) Addr() net.Addr { return b.at }

// linkSideChannel has the other engines reach a worker's KV through a link, which is there once the worker was made.
func linkSideChannel(t *testing.T, c *devfleet.WorkerConfig, link **linktest.Link) {
	t.Helper()
	opened := 0
	c.Listen = func(network, address string) (net.Listener, error) {
		ln, err := net.Listen(network, address)
		if opened++; err != nil || opened != 2 { // the first is for requests
			return ln, err
		}
		l, err := linktest.New(ln.Addr().String())
		if err != nil {
			return nil, err
		}
		t.Cleanup(l.Close)
		*link = l
		at, err := net.ResolveTCPAddr("tcp", l.Addr())
		return behind{ln, at}, err
	}
}

// The decode workers cannot pull KV from a prefill worker: no answer fails, the other prefill worker or decode itself
// prefills, no circuit but that worker's opens, and what it holds goes with its lease.
func TestKVCannotBePulled(t *testing.T) {
	for name, state := range map[string]linktest.State{
		"refused": {Refuse: true}, "silent": {Up: linktest.Way{Hole: true}, Down: linktest.Way{Hole: true}},
	} {
		for _, c := range []struct {
			prefills, decodes int
			by                string // prefills instead
		}{{2, 1, "prefill-2"}, {2, 2, "prefill-2"}, {1, 1, ""}} {
			t.Run(fmt.Sprintf("%s, %dP%dD", name, c.prefills, c.decodes), func(t *testing.T) {
				var link *linktest.Link
				f := newFleet(t, options{prefill: c.prefills, decode: c.decodes, worker: func(c *devfleet.WorkerConfig) {
					c.Engine.CallTimeout, c.Engine.Lease = 200*time.Millisecond, 2500*time.Millisecond
					if c.Engine.ID == "prefill-1" {
						linkSideChannel(t, c, &link)
					}
				}, gateway: func(c *stack.GatewayConfig) { c.Breakers.OpenFor = time.Hour }})
				round := func(n string) (by map[string]int) {
					t.Helper()
					by = map[string]int{}
					for i := range 20 {
						prompt := fmt.Sprint(n, i, long)
						a := f.post(completionPath, ask(prompt, 6))
						if got := f.text(a); a.status != http.StatusOK || got != generated(textPrompt(prompt), 6, false) {
							t.Fatalf("request %d: status %d, %s %q", i, a.status, a.body, a.events)
						}
						p, _ := f.served(a)
						by[p]++
					}
					return by
				}
				if by := round("first"); by["prefill-1"] == 0 {
					t.Fatalf("nothing went through the link: %v", by)
				}
				link.Set(state)
				if state.Refuse {
					link.Cut()
				}
				by := round("second")
				if by[c.by] < 15 {
					t.Errorf("prefilled by %v", by)
				}
				for id, s := range f.circuits() {
					if id != "prefill-1" {
						t.Errorf("%s's circuit is %s", id, s)
					}
				}
				if n := strings.Count(f.logs.String(), `msg="leg failed"`); n == 0 || n > 4 && c.prefills > 1 { // one by itself is called all the same
					t.Errorf("%d legs failed", n)
				}
				f.idle()
			})
		}
	}
}
