package operations

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/cmd/gateway/e2e/fleet"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/discovery"
)

// TestGatewaysAreNotTakenForWorkers: by URL and by attach they are refused; one that is registered by something else gets its
// requests back once and no more.
func TestGatewaysAreNotTakenForWorkers(t *testing.T) {
	f, links := fleet.NewRegistry(t)

	// Another gateway that lists this one.
	cfg := fleet.GatewayConfig()
	e, err := discovery.ParseEndpoint(pools.Both, f.URL+",id=front")
	if err != nil {
		t.Fatal(err)
	}
	cfg.Workers.Static = []discovery.Endpoint{e}
	cfg.Workers.Probe.Every = 20 * time.Millisecond
	other, err := stack.NewGateway(cfg, stack.Links{}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Listen(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- other.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	f.Eventually("the gateway is refused as a worker", func() bool {
		r := other.Roster.Refused()
		return len(r) == 1 && strings.Contains(r[0].Err.Error(), "is a gateway")
	})

	a, err := stack.NewAttach(stack.AttachConfig{
		Engine: e, Probe: discovery.ProberConfig{Every: 20 * time.Millisecond}, LeaseTTL: 2 * time.Second,
	}, links, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	attached := make(chan error, 1)
	go func() { attached <- a.Run(ctx) }()
	t.Cleanup(func() {
		if err := <-attached; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(cancel)
	f.Eventually("attach says why it waits", func() bool {
		ok, awaits := a.Registered()
		return !ok && strings.Contains(awaits, "is a gateway")
	})

	// A record that nobody looked at.
	f.Put(pools.Worker{
		ID: "itself", Incarnation: "1", Model: "m", Role: pools.Both, Engine: "sim", Address: f.URL, BlockSize: 16, ModelInput: "text",
	})
	res, err := f.HTTP().Post(f.URL+"/v1/completions", "application/json", strings.NewReader(`{"model":"m","prompt":"x","max_tokens":1}`))
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode < 500 {
		t.Errorf("status %d", res.StatusCode)
	}
	if n := f.Value("tandem_frontend_http_responses_total", "508"); n < 1 || n > 10 {
		t.Errorf("%v requests came back", n)
	}
}
