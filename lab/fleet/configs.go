package fleet

import (
	"flag"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/lab/testkit"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/discovery"
	"github.com/tandem-pd/tandem/queue"
)

// NewRegistry returns a gateway whose workers register in an etcd and publish their KV events through a NATS, both
// embedded, and links to the two.
func NewRegistry(t *testing.T, change ...func(*stack.GatewayConfig)) (*Fleet, stack.Links) {
	t.Helper()
	inside, err := stack.Embed(stack.EmbedConfig{})
	require.NoError(t, err)
	t.Cleanup(inside.Close)
	link := func() stack.Links {
		return Links(t, &stack.Discovery{EtcdEndpoints: []string{inside.EtcdURL()}, NATSURL: inside.NATSURL()}, "test")
	}
	cfg := GatewayConfig()
	cfg.LeaseTTL = 2 * time.Second
	cfg.Events.RetryMin, cfg.Events.RetryMax = 5*time.Millisecond, 100*time.Millisecond
	for _, f := range change {
		f(&cfg)
	}
	f := Bare(t, cfg, link(), slog.LevelInfo)
	f.RunGateway()
	return f, link()
}

// Links connects a process to an etcd and a NATS until the test ends.
func Links(t testing.TB, d *stack.Discovery, name string) stack.Links {
	t.Helper()
	links, unlink, err := stack.Connect(d, nil, slog.New(slog.DiscardHandler), nats.Name(name))
	require.NoError(t, err)
	t.Cleanup(unlink)
	return links
}

// TwoClasses are a class of each of two families, regular the default, with equal shares.
func TwoClasses(t *testing.T) *queue.Classes {
	t.Helper()
	c, err := queue.ParseClasses("classes.yaml", []byte(`
default_policy_family: regular
uncached_isl_buckets: [{min_tokens: 0, bucket: all}]
policy_classes:
  - {name: regular_all, policy_family: regular, cache_bucket: all, quantum: 64}
  - {name: premium_all, policy_family: premium, cache_bucket: all, quantum: 64}
`))
	require.NoError(t, err)
	return c
}

// Keyed makes a gateway require keys: a client's and an operator's.
func Keyed(t *testing.T) func(c *stack.GatewayConfig) {
	t.Helper()
	write := func(name, key string) string {
		path := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(path, []byte(key), 0o600))
		return path
	}
	client, admin := write("clients", "sk-client-0123456789"), write("operators", "sk-operator-0123456789")
	return func(c *stack.GatewayConfig) { c.Edge.APIKeyFile, c.Edge.AdminKeyFile = client, admin }
}

// AsOperator is the header of a request with the operator's key.
var AsOperator = []string{"Authorization", "Bearer sk-operator-0123456789"}

// look is a GET, with the operator's key if there is one.
func (f *Fleet) look(path string) (*http.Response, error) {
	req, err := http.NewRequest(http.MethodGet, f.URL+path, nil)
	if err != nil {
		return nil, err
	}
	if f.adminKey != "" {
		req.Header.Set("Authorization", "Bearer "+f.adminKey)
	}
	return f.HTTP().Do(req)
}

// NewStatic returns a gateway without etcd and NATS, whose workers are given by URL.
func NewStatic(t *testing.T, cfg stack.GatewayConfig) *Fleet {
	t.Helper()
	cfg.Workers.Probe.Every, cfg.Workers.Probe.Timeout = 50*time.Millisecond, 5*time.Second
	f := Bare(t, cfg, stack.Links{}, slog.LevelInfo)
	f.Bus = testkit.NewBus()
	f.RunGateway()
	return f
}

// Serve runs a simulated worker that registers nowhere, and returns its URL. port is that of another that has died,
// or 0 for a free one.
func (f *Fleet) Serve(role pools.Role, id string, port int) (address string) {
	f.T.Helper()
	var w *devfleet.Worker
	f.Eventually("the port is free", func() bool {
		cfg := devfleet.WorkerConfig{
			Engine: engine.Config{Role: string(role), ID: id, Speedup: 20, BlockSize: 32, TotalKVBlocks: 10_000},
			Host:   "127.0.0.1", Port: port, ModelInput: "text", Drain: time.Second,
		}
		var err error
		w, err = NewWorker(f.T, cfg)
		return err == nil
	})
	f.Run(id, w)
	return w.Record().Address
}

func Endpoint(t testing.TB, role pools.Role, text string) discovery.Endpoint {
	t.Helper()
	e, err := discovery.ParseEndpoint(role, text)
	require.NoError(t, err)
	return e
}

var Update = flag.Bool("update", false, "write the matrix of docs/engines.md again")
