package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/lab/testkit"
)

// Real processes: a worker that registers nowhere and publishes as vLLM does, `gateway attach` beside it, and a gateway that
// has only etcd and NATS. Cached prompts are found; a dead worker is withdrawn, a restarted one registered,
// and SIGTERM detaches and leaves the engine alone.
func TestAttachBesideARealWorker(t *testing.T) {
	t.Parallel()
	inside, err := stack.Embed(stack.EmbedConfig{})
	require.NoError(t, err)
	defer inside.Close()
	port, events, replay := testkit.FreePort(t), testkit.FreePort(t), testkit.FreePort(t)
	work := func() *proc {
		return startWorker(t, "--id", "engine", "--worker-port", fmt.Sprint(port), "--speedup", "50", "--kv-events", "zmq-vllm",
			"--kv-events-endpoint", fmt.Sprintf("tcp://*:%d", events), "--kv-events-replay-endpoint", fmt.Sprintf("tcp://*:%d", replay))
	}
	engine := fmt.Sprintf("http://127.0.0.1:%d", port)
	beside := start(t, asProcess(t, "attach", "--url", engine, "--id", "w1", "--etcd-endpoints", inside.EtcdURL(), "--nats-url",
		inside.NATSURL(),
		"--attach-drain", "100ms", "--attach-address", "127.0.0.1:0", "--taints", "a", "--topology", "rack=r1"), "attach")
	if code, body := get(beside.url + "/ready"); code != http.StatusServiceUnavailable || !strings.Contains(body, engine) {
		t.Errorf("before there is an engine: %d %s", code, body)
	}
	ready := func() bool { code, _ := get(beside.url + "/ready"); return code == http.StatusOK }
	gateway := startServe(t, "--etcd-endpoints", inside.EtcdURL(), "--nats-url", inside.NATSURL())
	worker := work()
	type source struct {
		Worker, Transport, State string
		Blocks                   int
	}
	known := func() (s source) {
		var report struct {
			Events map[string][]source `json:"kv_events"`
		}
		if _, body := get(gateway.url + "/workers"); json.Unmarshal([]byte(body), &report) != nil {
			return s
		}
		for _, pool := range report.Events {
			for _, s = range pool {
			}
		}
		return s
	}
	eventually(t, "the worker is followed over NATS", func() bool {
		s := known()
		return s.Worker == "w1" && s.Transport == "nats" && s.State == "live"
	})
	eventually(t, "it is registered", ready)
	ask := func() {
		t.Helper()
		_, _, err := gateway.complete("", strings.Repeat("the quick brown fox ", 40), 2)
		require.NoError(t, err)
	}
	ask()
	eventually(t, "what it computed is known", func() bool { return known().Blocks > 0 })
	if _, body := get(beside.url + "/metrics"); !strings.Contains(body, "tandem_attach_registered 1") ||
		!strings.Contains(body, `tandem_kv_bridge_blocks{pool="tandem-sim/both",rank="0",worker="w1"}`) {
		t.Errorf("metrics:\n%s", body)
	}
	checkAttachDocument(t, beside.url)

	worker.kill()
	eventually(t, "the dead worker is withdrawn", func() bool { return !ready() })
	eventually(t, "and gone from the gateway", func() bool { return known().Worker == "" })
	work()
	eventually(t, "it is back, and empty", func() bool { s := known(); return s.State == "live" && s.Blocks == 0 })
	ask()
	eventually(t, "and known again", func() bool { return known().Blocks > 0 })

	beside.stop()
	assert.Contains(t, beside.logs.String(), "detached; the engine keeps running")
	eventually(t, "the gateway sees it leave", func() bool { return known().Worker == "" })
	code, _ := get(engine + "/health")
	assert.Equal(t, http.StatusOK, code, "the engine's health")
}

// checkAttachDocument compares the metrics that docs/kv-events.md names with those of attach.
func checkAttachDocument(t *testing.T, at string) {
	t.Helper()
	raw, err := os.ReadFile("../../docs/kv-events.md")
	require.NoError(t, err)
	_, text := get(at + "/metrics")
	find := func(pattern, in string) (names []string) {
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(in, -1) {
			names = append(names, m[1])
		}
		slices.Sort(names)
		return slices.Compact(names)
	}
	named := find("`(tandem_(?:attach|kv_bridge)_[a-z_]+)`", string(raw))
	assert.Greater(t, len(named), 9)
	assert.Equal(t, find(`(?m)^(tandem_(?:attach|kv_bridge)_\w+)`, text), named,
		"the metrics that are exposed, and those that docs/kv-events.md names")
}

func TestAttachCommandLine(t *testing.T) {
	t.Parallel()
	lines(t, nil, "attach", []line{
		{"", exitUsage, "url: the engine's address is missing"},
		{"--url http://127.0.0.1:1", exitUsage, "etcd-endpoints: the worker registers in etcd"},
	})
	lines(t, nil, "attach --url http://127.0.0.1:1 --etcd-endpoints 127.0.0.1:1", []line{
		{"--url http://u:secret@h:1", exitUsage, "url"},
		{"--url http://h:1/v1", exitUsage, "url (flag): must be a scheme, a host and a port"},
		{"--advertise-url http://h:1/v1", exitUsage, "advertise-url (flag): must be a scheme"},
		{"--id a/b", exitUsage, "id (flag)"},
		{"--engine-kv-events 5557", exitUsage, "engine-kv-events (flag): must be tcp://HOST:PORT"},
		{"--engine-kv-events tcp://*:5557", exitUsage, "engine-kv-events (flag): attach listens for this engine"},
		{"--engine-kv-replay tcp://h:1", exitUsage, "engine-kv-replay (flag): goes with engine-kv-events"},
		{"--engine-kv-topic t --engine-kv-events none", exitUsage, "engine-kv-topic (flag): goes with engine-kv-events"},
		{"--transfer-endpoint h", exitUsage, "transfer-endpoint (flag)"},
		{"--topology rack", exitUsage, `topology (flag): "rack" is no KEY=VALUE`},
		{"--taints a,a", exitUsage, "taints (flag)"},
		{"--worker-api-key-file key", exitUsage, "worker-api-key-file (flag)"},
	}, "secret")
}
