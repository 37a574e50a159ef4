package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/lab/testkit"
)

// loneWorker runs a simulated worker that registers nowhere, at so many times a real engine's speed, and returns its URL.
func loneWorker(t testing.TB, role, id string, speedup float64) string {
	t.Helper()
	w, err := devfleet.NewWorker(devfleet.WorkerConfig{
		Engine: engine.Config{Role: role, ID: id, Speedup: speedup}, Host: "127.0.0.1", ModelInput: "text", Drain: time.Second,
	}, stack.Links{}, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = w.Run(ctx) })
	t.Cleanup(func() { w.Cut(); cancel(); running.Wait() })
	return w.Record().Address
}

// serve runs on workers by URL with neither etcd nor NATS, takes another from
// its file on SIGHUP, and ends well on SIGTERM.
func TestServeOnWorkersByURL(t *testing.T) {
	t.Parallel()
	path := written(t, "workers.yaml",
		"- url: http://127.0.0.1:1\n  role: prefill\n  id: p\n  model: tandem-sim\n  engine: sim\n  block-size: 16\n") // is taken for up at once
	s := startServe(t, "--decode-url", loneWorker(t, "decode", "d", 20)+",id=d", "--workers-file", path,
		"--router-min-initial-workers", "1")
	s.eventually("it prints what it waits for", func() bool {
		return strings.Contains(s.out.String(), "waiting for workers: 1 of 2 up; tandem-sim has no prefill worker\n")
	})
	assert.NotContains(t, s.out.String(), "run inside", "it has workers")
	assert.NotContains(t, s.out.String(), "ready", "without a prefill worker")
	require.NoError(t, os.WriteFile(path, fmt.Appendf(nil, "- url: %s\n  role: prefill\n  id: p\n", loneWorker(t, "prefill", "p", 20)), 0o600))
	s.send(syscall.SIGHUP)
	s.eventually("it prints that it is ready", func() bool { return strings.HasSuffix(s.out.String(), "ready "+s.url+"\n") })
	s.eventually("the fleet is whole", s.healthy)
	s.served("p", "d")
	s.stop()
	assert.Contains(t, s.logs.String(), "files reloaded")
}

// joins are the worker's command lines that serve printed, by role, each with
// the arguments only.
func (p *proc) joins() map[string][]string {
	lines := map[string][]string{}
	for line := range strings.Lines(p.out.String()) {
		if _, args, ok := strings.Cut(line, " worker --role "); ok {
			args := strings.Fields(args)
			lines[args[0]] = append([]string{"--role"}, args...)
		}
	}
	return lines
}

// With nothing given serve brings etcd and NATS, and its own words let workers of both roles join. One that is killed and started again
// finds the workers that it had: its etcd and NATS are where they were. With --embed-listen both run inside beside a worker by URL too.
func TestServeAloneComesBack(t *testing.T) {
	t.Parallel()
	ports := []string{"--http-port", fmt.Sprint(testkit.FreePort(t)), "--embed-ports",
		fmt.Sprintf("%d,%d,0", testkit.FreePort(t), testkit.FreePort(t))}
	s := startServe(t, ports...)
	joins := s.joins()
	require.Len(t, joins, 2, s.out.String())
	for _, args := range joins {
		startWorker(t, append(args, "--speedup", "20")...)
	}
	whole := func() bool {
		p, d, err := s.complete("", "Hello", 4)
		return err == nil && p == "prefill-1" && d == "decode-1"
	}
	s.eventually("both legs are served", whole)
	s.kill()
	s = startServe(t, ports...)
	assert.Equal(t, joins, s.joins(), "how workers are to join")
	s.eventually("both legs are served after the restart", whole)
	s.stop()
	s = startServe(t, append(ports, "--embed-listen", "127.0.0.1", "--decode-url", loneWorker(t, "decode", "d", 20)+",id=d")...)
	s.up("prefill-1", "decode-1", "d")
	s.stop()
}

// The ports of the servers inside are the same at every start, and none that
// the kernel hands out to connections: a client that dials such a port of its own
// machine without a listener can end up connected to itself.
func TestEmbeddedPortsStay(t *testing.T) {
	e := setting.Default[stack.EmbedConfig]()
	for _, text := range strings.Split(e.Ports, ",") {
		port, err := strconv.Atoi(text)
		assert.True(t, err == nil && port >= 1024 && port < 32768, "%s by default", text)
	}
}

// A port that is taken ends serve at once, with the flag's name and what to do.
func TestServeOnATakenPort(t *testing.T) {
	t.Parallel()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer ln.Close()
	taken := fmt.Sprint(ln.Addr().(*net.TCPAddr).Port)
	lines(t, []string{"DYN_ROUTER_MOD=kv"}, strings.Join(serveArgs(), " "), []line{
		{"--http-port " + taken, exitFailed, "DYN_ROUTER_MOD (the nearest is DYN_ROUTER_MODE)"},
		{"--embed-ports " + taken + ",0,0", exitFailed, "--etcd-endpoints"},
		{"--embed-ports 0," + taken + ",0", exitFailed, "--nats-url"},
		{"--http-port " + taken, exitFailed, "http-port: "},
	}, "listening")
}

// A temporary folder that cannot be made is an error of TMPDIR, and of no port.
func TestServeWithoutATemporaryFolder(t *testing.T) {
	absent := filepath.Join(t.TempDir(), "absent")
	t.Setenv("TMPDIR", absent)
	lines(t, nil, strings.Join(serveArgs(), " "), []line{{"", exitFailed, absent + ", which TMPDIR names"}}, "port")
}

func TestServeRefusesWhatDoesNotGoTogether(t *testing.T) {
	t.Parallel()
	keys := written(t, "keys", clientKey+"\nsh0rt\n")
	lines(t, nil, "serve --http-port 0", []line{
		{"--nats-url nats://h:1", exitUsage, "nats-url alone finds none"},
		{"--etcd-endpoints h:1", exitUsage, "nats-url: KV events pass through NATS"},
		{"--embed-listen 127.0.0.1 --etcd-endpoints h:1", exitUsage, "embed-listen (flag)"},
		{"--embed-ports 1,2", exitUsage, "embed-ports (flag)"},
		{"--embed-ports 1,2,65536", exitUsage, "embed-ports (flag)"},
		{"--prefill-url http://h:1,colour=red", exitUsage, `prefill-url (flag): colour: there is no such option`},
		{"--prefill-url http://h:1 --decode-url http://h:1,id=d", exitUsage, "decode-url (flag): url: http://h:1 is listed twice"},
		{"--workers-file /nowhere/workers.yaml", exitUsage, "workers-file: "},
		{"--workers-file " + written(t, "bad.yaml", "- url: http://h:1\n  engine: x\n"), exitUsage, "bad.yaml:2 engine: must be one of"},
		{
			"--worker-url http://h:1,id=a,kv-events=tcp://*:5557,ranks=2 --worker-url http://h:2,kv-events=tcp://0.0.0.0:5558", exitUsage,
			`worker-url (flag): kv-events: has the gateway listen on port 5558, as worker "a" has already`,
		},
		{"--worker-allow http://10.0.0.1", exitUsage, `worker-allow (flag): "http://10.0.0.1" is no host`},
		{"--worker-url http://h:1 --worker-api-key-file " + written(t, "key", "two\nlines\n"), exitUsage, "worker-api-key-file (flag)"},
		{"--worker-url http://h:1 --admin-key-file " + keys, exitUsage, "admin-key-file: " + keys + ":2"},
		{"--remote-index-url index:8090", exitUsage, "remote-index-url"},
		{"--remote-index-url http://index:8090 --remote-index-token-file missing", exitUsage, "remote-index-token-file"},
		{"--replica-peers h:1 --nats-url nats://h:1 --prefill-url http://h:1", exitUsage, "replica-peers"},
		{"--replica-peers h:1", exitUsage, "kubernetes-selector"},
		{"--replica-peers h --prefill-url http://h:1", exitUsage, "HOST:PORT"},
		{"--replica-peers h:1 --prefill-url http://h:1 --durable-kv-events", exitUsage, "durable-kv-events"},
		{"--replica-peers h:1 --prefill-url http://h:1 --embed-listen 0.0.0.0", exitUsage, "embed-password-file"},
	}, "lines", "sh0rt")
}
