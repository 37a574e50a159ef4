package operations

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/lab/porttest"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/discovery"
)

// Two workers given by URL, without etcd and NATS, serve disaggregated. One
// dies, is taken out, comes back at its address and serves again.
func TestWorkersByURL(t *testing.T) {
	cfg := fleet.GatewayConfig()
	p, d := porttest.Free(t), porttest.Free(t)
	cfg.Workers.Static = []discovery.Endpoint{
		fleet.Endpoint(t, pools.Prefill, fmt.Sprintf("http://127.0.0.1:%d,id=p1", p)),
		fleet.Endpoint(t, pools.Decode, fmt.Sprintf("http://127.0.0.1:%d,id=d1", d)),
	}
	cfg.Workers.MinInitial = 2
	f := fleet.NewStatic(t, cfg)
	body := fleet.Ask(fleet.Long, 6)

	// Nobody is there: the gateway starts, and says what it waits for.
	a := f.Post(fleet.CompletionPath, body)
	if c := f.Parse(a.Body); a.Status != http.StatusServiceUnavailable || c.Error == nil || c.Error.Code == nil || *c.Error.Code != "starting" ||
		a.Header.Get("Retry-After") == "" || !strings.Contains(c.Error.Message, "0 of 2 workers") {
		t.Errorf("status %d, %s", a.Status, a.Body)
	}
	var health struct {
		Detail struct{ Status, Awaits string }
	}
	f.Get("/health", &health)
	if f.Status("/health") != http.StatusServiceUnavailable || health.Detail.Status != "starting" || !strings.Contains(health.Detail.Awaits, "0 of 2") {
		t.Errorf("health %+v", health)
	}
	f.Serve(pools.Prefill, "p1", p)
	f.Serve(pools.Decode, "d1", d)
	f.Healthy()

	m, _ := f.Gateway.Roster.Lookup("p1")
	if w := m.Worker; w.Model != stack.SimModel || w.Engine != "sim" || w.BlockSize != 32 || w.TotalKVBlocks != 10_000 || w.ContextLength != 262_144 {
		t.Errorf("the worker told of itself: %+v", w)
	}
	want := fleet.Expected(fleet.TextPrompt(fleet.Long), 6)
	served := func() (string, string) {
		t.Helper()
		a := f.Post(fleet.CompletionPath, strings.Replace(body, `"ignore_eos":true,`, "", 1))
		by, then := f.Served(a)
		if f.Text(a) != want {
			t.Errorf("the answer is %q", f.Text(a))
		}
		return by, then
	}
	if by, then := served(); by != "p1" || then != "d1" {
		t.Errorf("served by %q and %q", by, then)
	}
	f.Idle()

	// The prefill worker dies: decode stands in, and it goes from the roster.
	f.Workers["p1"].Kill()
	f.Eventually("p1 is out", func() bool { _, in := f.Gateway.Roster.Lookup("p1"); return !in })
	if by, then := served(); by != "" || then != "d1" {
		t.Errorf("served by %q and %q", by, then)
	}
	if f.Status("/health") != http.StatusOK {
		t.Error("the minimum of workers is not latched")
	}
	f.Serve(pools.Prefill, "p1", p)
	f.Eventually("p1 is in", func() bool { _, in := f.Gateway.Roster.Lookup("p1"); return in })
	if again, _ := f.Gateway.Roster.Lookup("p1"); again.Worker.Incarnation == m.Worker.Incarnation {
		t.Error("it came back as the same process")
	}
	f.Eventually("p1 serves again", func() bool { by, _ := served(); return by == "p1" })

	// A cordon holds through another death.
	if err := f.Gateway.Roster.Drain("p1", true); err != nil {
		t.Fatal(err)
	}
	f.Workers["p1"].Kill()
	f.Eventually("p1 is out", func() bool { _, in := f.Gateway.Roster.Lookup("p1"); return !in })
	f.Serve(pools.Prefill, "p1", p)
	f.Eventually("p1 is in", func() bool { _, in := f.Gateway.Roster.Lookup("p1"); return in })
	if by, _ := served(); by != "" {
		t.Errorf("a cordoned worker served after its restart: %q", by)
	}
	if err := f.Gateway.Roster.Drain("p1", false); err != nil {
		t.Fatal(err)
	}
	f.Eventually("p1 serves again", func() bool { by, _ := served(); return by == "p1" })
	f.Idle()
}
