package e2e

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/internal/kvevents/eventstest"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/lab/porttest"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/discovery"
)

// newStatic is a gateway without etcd and NATS, whose workers are given by URL.
func newStatic(t *testing.T, cfg stack.GatewayConfig) *fleet {
	t.Helper()
	f := &fleet{t: t, workers: map[string]*worker{}, bus: eventstest.NewBus(), logs: &logBuffer{}, reg: prometheus.NewRegistry()}
	cfg.Workers.Probe.Every, cfg.Workers.Probe.Timeout = 50*time.Millisecond, 5*time.Second
	connect(t, &cfg)
	g, err := stack.NewGateway(cfg, stack.Links{}, slog.New(slog.NewTextHandler(f.logs, nil)), f.reg)
	if err != nil {
		t.Fatal(err)
	}
	f.gateway = g
	f.runGateway()
	return f
}

// serve runs a simulated worker that registers nowhere, at the port of another
// that has died or at a free one for 0, and returns its URL.
func (f *fleet) serve(role pools.Role, id string, port int) (address string) {
	f.t.Helper()
	var w *devfleet.Worker
	f.eventually("the port is free", func() bool {
		cfg := devfleet.WorkerConfig{
			Engine: engine.Config{Role: string(role), ID: id, Speedup: 20, BlockSize: 32, TotalKVBlocks: 10_000},
			Host:   "127.0.0.1", Port: port, ModelInput: "text", Drain: time.Second,
		}
		var err error
		w, err = newWorker(f.t, cfg)
		return err == nil
	})
	f.run(id, w)
	return w.Record().Address
}

func endpoint(t *testing.T, role pools.Role, text string) discovery.Endpoint {
	t.Helper()
	e, err := discovery.ParseEndpoint(role, text)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// Two workers given by URL, without etcd and NATS, serve disaggregated. One
// dies, is taken out, comes back at its address and serves again.
func TestWorkersByURL(t *testing.T) {
	cfg := gatewayConfig()
	p, d := porttest.Free(t), porttest.Free(t)
	cfg.Workers.Static = []discovery.Endpoint{
		endpoint(t, pools.Prefill, fmt.Sprintf("http://127.0.0.1:%d,id=p1", p)),
		endpoint(t, pools.Decode, fmt.Sprintf("http://127.0.0.1:%d,id=d1", d)),
	}
	cfg.Workers.MinInitial = 2
	f := newStatic(t, cfg)
	body := ask(long, 6)

	// Nobody is there: the gateway starts, and says what it waits for.
	a := f.post(completionPath, body)
	if c := f.parse(a.body); a.status != http.StatusServiceUnavailable || c.Error == nil || c.Error.Code == nil || *c.Error.Code != "starting" ||
		a.header.Get("Retry-After") == "" || !strings.Contains(c.Error.Message, "0 of 2 workers") {
		t.Errorf("status %d, %s", a.status, a.body)
	}
	var health struct {
		Detail struct{ Status, Awaits string }
	}
	f.get("/health", &health)
	if f.status("/health") != http.StatusServiceUnavailable || health.Detail.Status != "starting" || !strings.Contains(health.Detail.Awaits, "0 of 2") {
		t.Errorf("health %+v", health)
	}
	f.serve(pools.Prefill, "p1", p)
	f.serve(pools.Decode, "d1", d)
	f.eventually("the fleet is healthy", func() bool { return f.status("/health") == http.StatusOK })

	m, _ := f.gateway.Roster.Lookup("p1")
	if w := m.Worker; w.Model != stack.SimModel || w.Engine != "sim" || w.BlockSize != 32 || w.TotalKVBlocks != 10_000 || w.ContextLength != 262_144 {
		t.Errorf("the worker told of itself: %+v", w)
	}
	want := expected(textPrompt(long), 6)
	served := func() (string, string) {
		t.Helper()
		a := f.post(completionPath, strings.Replace(body, `"ignore_eos":true,`, "", 1))
		by, then := f.served(a)
		if f.text(a) != want {
			t.Errorf("the answer is %q", f.text(a))
		}
		return by, then
	}
	if by, then := served(); by != "p1" || then != "d1" {
		t.Errorf("served by %q and %q", by, then)
	}
	f.idle()

	// The prefill worker dies: decode stands in, and it goes from the roster.
	f.workers["p1"].kill()
	f.eventually("p1 is out", func() bool { _, in := f.gateway.Roster.Lookup("p1"); return !in })
	if by, then := served(); by != "" || then != "d1" {
		t.Errorf("served by %q and %q", by, then)
	}
	if f.status("/health") != http.StatusOK {
		t.Error("the minimum of workers is not latched")
	}
	f.serve(pools.Prefill, "p1", p)
	f.eventually("p1 is in", func() bool { _, in := f.gateway.Roster.Lookup("p1"); return in })
	if again, _ := f.gateway.Roster.Lookup("p1"); again.Worker.Incarnation == m.Worker.Incarnation {
		t.Error("it came back as the same process")
	}
	f.eventually("p1 serves again", func() bool { by, _ := served(); return by == "p1" })

	// A cordon holds through another death.
	if err := f.gateway.Roster.Drain("p1", true); err != nil {
		t.Fatal(err)
	}
	f.workers["p1"].kill()
	f.eventually("p1 is out", func() bool { _, in := f.gateway.Roster.Lookup("p1"); return !in })
	f.serve(pools.Prefill, "p1", p)
	f.eventually("p1 is in", func() bool { _, in := f.gateway.Roster.Lookup("p1"); return in })
	if by, _ := served(); by != "" {
		t.Errorf("a cordoned worker served after its restart: %q", by)
	}
	if err := f.gateway.Roster.Drain("p1", false); err != nil {
		t.Fatal(err)
	}
	f.eventually("p1 serves again", func() bool { by, _ := served(); return by == "p1" })
	f.idle()
}

// A workers file brings workers, changes them while requests run, and keeps
// them through a mistake in it.
func TestWorkersFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "workers.yaml")
	rewrite := func(data string) {
		t.Helper()
		temp := path + ".new"
		if err := os.WriteFile(temp, []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(temp, path); err != nil {
			t.Fatal(err)
		}
	}
	rewrite("[]\n")
	cfg := gatewayConfig()
	cfg.Workers.File = path
	f := newStatic(t, cfg)
	entry := func(role pools.Role, id string) string {
		u, err := url.Parse(f.serve(role, id, 0))
		if err != nil {
			t.Fatal(err)
		}
		port, _ := strconv.Atoi(u.Port())
		return fmt.Sprintf("- url: http://127.0.0.1:%d\n  role: %s\n  id: %s\n", port, role, id)
	}
	p1, p2, d1 := entry(pools.Prefill, "p1"), entry(pools.Prefill, "p2"), entry(pools.Decode, "d1")
	rewrite(p1 + d1)
	f.eventually("served by the file's workers", func() bool { return f.status("/health") == http.StatusOK })
	if by, then := f.served(f.post(completionPath, ask(long, 4))); by != "p1" || then != "d1" {
		t.Errorf("served by %q and %q", by, then)
	}
	rewrite(p2 + d1)
	if err := f.gateway.Reload(); err != nil { // as SIGHUP does; a change alone is seen as well
		t.Fatal(err)
	}
	f.eventually("served by the new one", func() bool {
		by, _ := f.served(f.post(completionPath, ask(long, 4)))
		return by == "p2"
	})
	rewrite(p1 + d1 + "- url: nowhere\n")
	if err := f.gateway.Reload(); err == nil || !strings.Contains(err.Error(), "workers.yaml:7 url") {
		t.Errorf("reloaded a broken file: %v", err)
	}
	f.eventually("the mistake is logged", func() bool { return strings.Contains(f.logs.String(), "workers.yaml:7 url") })
	if by, _ := f.served(f.post(completionPath, ask(long, 4))); by != "p2" {
		t.Errorf("a broken file changed the workers: served by %q", by)
	}
	f.idle()
}
