package viewer

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tandem-pd/tandem/cmd/gateway/console"
	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/internal/kvevents/eventstest"
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/internal/telemetry"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/engine"
)

// fleet is a gateway with simulated workers, of which single ones can be killed.
type fleet struct {
	t     testing.TB
	url   string
	kills map[string]func()
	sent  atomic.Int64
}

// secret stands in every prompt, and must stand on no page.
const secret = "xylophone-marmalade"

// operatorsKey opens the console of a fleet with keys.
const operatorsKey = "op-viewer-0123456789"

// newFleet starts three prefill and three decode workers at ten times the speed of what they imitate.
func newFleet(t testing.TB, keys bool) *fleet {
	t.Helper()
	f := &fleet{t: t, kills: map[string]func(){}}
	log, bus := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError})), eventstest.NewBus()
	cfg := setting.Default[stack.GatewayConfig]()
	cfg.Edge.Host, cfg.Edge.Port, cfg.Drain, cfg.Grace = "127.0.0.1", 0, time.Second, 0
	cfg.Router.Seed, cfg.Pools.BlockSize, cfg.Build = 1, 16, telemetry.Build{Version: "v0.0.0-test"}
	cfg.InForce = []console.Setting{{Group: "HTTP", Name: "http-port", Value: "8000", Source: "flag", Help: "TCP port."}, {Group: "Router", Name: "router-mode", Value: "kv", Source: "default", Help: "Policy."}}
	if keys {
		cfg.Edge.AdminKeyFile = filepath.Join(t.TempDir(), "keys")
		if err := os.WriteFile(cfg.Edge.AdminKeyFile, []byte(operatorsKey), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	g, err := stack.NewGateway(cfg, stack.Links{Bus: bus}, log, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	addr, err := g.Listen()
	if err != nil {
		t.Fatal(err)
	}
	f.url = "http://" + addr.String()
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	group.Go(func() {
		if err := g.Run(ctx); err != nil {
			t.Errorf("gateway: %v", err)
		}
	})
	for i := range 6 {
		role := []string{"prefill", "decode"}[i%2]
		id := fmt.Sprintf("%s-%d", role, i/2+1)
		w, err := devfleet.NewWorker(devfleet.WorkerConfig{
			Engine: engine.Config{Role: role, ID: id, Speedup: 10, TotalKVBlocks: 3000, ContextLength: 32768, MaxNumSeqs: 48}, Host: "127.0.0.1", ModelInput: "text", Drain: time.Second,
		}, stack.Links{Bus: bus}, log)
		if err != nil {
			t.Fatal(err)
		}
		life, end := context.WithCancel(ctx)
		f.kills[id] = func() { w.Cut(); end() }
		group.Go(func() { _ = w.Run(life) }) // a cut worker's listeners fail
		if err := g.Roster.Put(w.Record()); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		cancel()
		for _, kill := range f.kills {
			kill()
		}
		group.Wait()
		bus.Close()
		http.DefaultClient.CloseIdleConnections()
	})
	f.eventually("the fleet is healthy", func() bool { status, _ := f.get("/health"); return status == http.StatusOK })
	return f
}

// eventually waits for a condition.
func (f *fleet) eventually(what string, ok func() bool) {
	f.t.Helper()
	f.within(20*time.Second, what, ok)
}

// within is eventually with a limit of its own.
func (f *fleet) within(limit time.Duration, what string, ok func() bool) {
	f.t.Helper()
	for deadline := time.Now().Add(limit); !ok(); <-time.After(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			f.t.Fatalf("never came true: %s", what)
		}
	}
}

// get reads a page, with the operators' key.
func (f *fleet) get(path string) (status int, body string) {
	f.t.Helper()
	req, err := http.NewRequest(http.MethodGet, f.url+path, nil)
	if err != nil {
		f.t.Fatal(err)
	}
	req.Header.Set("Accept", "text/html")
	req.Header.Set("Authorization", "Bearer "+operatorsKey)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		f.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// ask sends one request, streamed, of one of five families of prompts, and reads the whole answer.
func (f *fleet) ask(ctx context.Context, id string) error { return f.send(ctx, id, true) }

func (f *fleet) send(ctx context.Context, id string, stream bool) error {
	n := f.sent.Add(1)
	family := []int64{0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 4}[n%11]
	system := strings.Repeat(fmt.Sprintf("You are assistant %d of the house of %s. ", family, secret), 40)
	body := fmt.Sprintf(`{"model":%q,"stream":%v,"max_tokens":%d,"messages":[{"role":"system","content":%q},{"role":"user","content":"Question %d of %s, please?"}]}`,
		stack.SimModel, stream, 40+n%60, system, n, secret)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url+"/v1/chat/completions", bytes.NewReader([]byte(body)))
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	if id != "" {
		req.Header.Set("X-Request-Id", id)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err == nil && (res.StatusCode != http.StatusOK || bytes.Contains(answer, []byte("[DONE]")) != stream) {
		err = fmt.Errorf("status %d: %.300s", res.StatusCode, answer)
	}
	return err
}

// load keeps n requests in flight until the test ends or stop is called, which returns the first failure.
func (f *fleet) load(n int) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	failures := make(chan error, n)
	for range n {
		group.Go(func() {
			for ctx.Err() == nil {
				if err := f.ask(context.WithoutCancel(ctx), ""); err != nil {
					failures <- err
					return
				}
			}
		})
	}
	once := sync.OnceValue(func() error {
		cancel()
		group.Wait()
		select {
		case err := <-failures:
			return err
		default:
			return nil
		}
	})
	f.t.Cleanup(func() { _ = once() })
	return once
}
