package fleet

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/kv/wire"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/pools"
	"github.com/tandem-pd/tandem/pools/discovery"
)

// Stock is an unmodified engine: it registers nowhere, reports what that engine reports, and publishes its KV events
// over ZMQ.
type Stock struct {
	devfleet.WorkerConfig
	Events, ReplayPort int // where it publishes
}

// NewStock is an engine at ports of its own.
func NewStock(t testing.TB, e engine.Config, d wire.Dialect, topic string) *Stock {
	s := &Stock{Events: FreePort(t), ReplayPort: FreePort(t)}
	s.WorkerConfig = devfleet.WorkerConfig{
		Engine: e, Host: "127.0.0.1", Port: FreePort(t), ModelInput: "text", Drain: time.Second,
		KVEvents: devfleet.WorkerEvents{ZMQ: &engine.PublisherConfig{
			Endpoint: fmt.Sprintf("tcp://*:%d", s.Events), ReplayEndpoint: fmt.Sprintf("tcp://127.0.0.1:%d", s.ReplayPort),
			Topic: topic, Dialect: d,
		}},
	}
	return s
}

// Endpoint is how a gateway is given the engine by its URL, with options as in ",block-size=16".
func (s *Stock) Endpoint(t testing.TB, options string) discovery.Endpoint {
	t.Helper()
	role := pools.Role(s.Engine.Role)
	if role == pools.Both {
		role = ""
	}
	return Endpoint(t, role, fmt.Sprintf("http://127.0.0.1:%d,id=%s%s", s.Port, s.Engine.ID, options))
}

// Published returns the options that name its events' endpoints.
func (s *Stock) Published() string {
	at := fmt.Sprintf(",kv-events=tcp://127.0.0.1:%d,kv-replay=tcp://127.0.0.1:%d", s.Events, s.ReplayPort)
	if topic := s.KVEvents.ZMQ.Topic; topic != "" {
		at += ",kv-topic=" + topic
	}
	return at
}

// Launch runs it, at the ports of a process that has died too.
func (f *Fleet) Launch(s *Stock) {
	f.T.Helper()
	f.Eventually("the ports are free", func() bool {
		w, err := NewWorker(f.T, s.WorkerConfig)
		if err == nil {
			f.Run(s.Engine.ID, w)
		}
		return err == nil
	})
}

// Followed waits until the gateway is healthy and follows the caches of these workers.
func (f *Fleet) Followed(ids ...string) {
	f.T.Helper()
	f.Eventually("they are followed", func() bool {
		sources := f.Sources()
		return f.Status("/health") == http.StatusOK &&
			!slices.ContainsFunc(ids, func(id string) bool { return sources[id].State != "live" })
	})
}

// Healthy waits until the gateway is.
func (f *Fleet) Healthy() {
	f.T.Helper()
	f.Eventually("the fleet is healthy", func() bool { return f.Status("/health") == http.StatusOK })
}

// NewByURL is a gateway with two prefill and two decode workers by URL, at the ports that it returns. at changes where
// the gateway finds one.
func NewByURL(t *testing.T, cfg stack.GatewayConfig, at func(id string, port int) (url string)) (*Fleet, map[string]int) {
	t.Helper()
	ports := map[string]int{}
	for _, role := range []pools.Role{pools.Prefill, pools.Decode} {
		for i := range 2 {
			id := fmt.Sprintf("%s-%d", role, i+1)
			ports[id] = FreePort(t)
			url := fmt.Sprintf("http://127.0.0.1:%d", ports[id])
			if at != nil {
				url = at(id, ports[id])
			}
			cfg.Workers.Static = append(cfg.Workers.Static, Endpoint(t, role, url+",id="+id))
		}
	}
	cfg.Workers.MinInitial = len(ports)
	f := NewStatic(t, cfg)
	for id, port := range ports {
		f.Serve(pools.Role(id[:len(id)-2]), id, port)
	}
	f.Healthy()
	return f, ports
}

// ModelFolder is a folder of the simulated model with a chat template, and more files by name.
func ModelFolder(t *testing.T, template string) string {
	t.Helper()
	dir := t.TempDir()
	data, err := os.ReadFile("../../../../internal/tokens/sim_tokenizer.json")
	require.NoError(t, err)
	for name, content := range map[string]string{
		"tokenizer.json": string(data), "tokenizer_config.json": `{"eos_token":"<|im_end|>"}`, "chat_template.jinja": template,
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600))
	}
	return dir
}
