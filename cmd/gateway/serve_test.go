package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/engine"
	"github.com/tandem-pd/tandem/lab/porttest"
)

// loneWorker runs a simulated worker that registers nowhere, and returns its
// URL.
func loneWorker(t testing.TB, role, id string) string {
	t.Helper()
	w, err := devfleet.NewWorker(devfleet.WorkerConfig{
		Engine: engine.Config{Role: role, ID: id, Speedup: 20}, Host: "127.0.0.1", ModelInput: "text", Drain: time.Second,
	}, stack.Links{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = w.Run(ctx) })
	t.Cleanup(func() { w.Cut(); cancel(); running.Wait() })
	return w.Record().Address
}

// served is a `gateway serve` in a process of its own.
type served struct {
	*fleet
	stdout string // until it listened
}

// serveArgs is a command line of serve that shares the machine with other
// gateways, and stops at once.
func serveArgs() []string {
	return []string{"serve", "--http-port", "0", "--embed-etcd-port", "0", "--embed-nats-port", "0", "--shutdown-grace", "0s"}
}

func serveProcess(t testing.TB, args ...string) *served {
	t.Helper()
	return runServe(t, exec.Command(os.Args[0], append(serveArgs(), args...)...))
}

// runServe starts cmd, which runs serve, and waits until it listens.
func runServe(t testing.TB, cmd *exec.Cmd) *served {
	t.Helper()
	s := &served{fleet: &fleet{t: t, cmd: cmd}}
	s.cmd.Env = append(os.Environ(), asGateway+"=1", logForm, "TMPDIR="+t.TempDir())
	s.cmd.Stderr = &s.logs
	stdout, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.cmd.Process.Kill() })
	lines := bufio.NewScanner(stdout)
	for s.url == "" && lines.Scan() {
		s.stdout += lines.Text() + "\n"
		if url, ok := strings.CutPrefix(lines.Text(), "listening "); ok {
			s.url = url
		}
	}
	if s.url == "" {
		_ = s.cmd.Wait()
		t.Fatalf("serve did not come up:\n%s", s.logs.String())
	}
	go func() {
		for lines.Scan() {
			_, _ = s.later.Write(append(lines.Bytes(), '\n'))
		}
	}()
	return s
}

// stop ends it as an orchestrator does, and wants exit status 0.
func (s *served) stop() {
	s.t.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		s.t.Fatal(err)
	}
	if err := s.cmd.Wait(); err != nil {
		s.t.Errorf("after SIGTERM: %v\n%s", err, s.logs.String())
	}
}

func (s *served) eventually(what string, ok func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); <-time.After(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("never came true: %s", what)
		}
	}
}

func (s *served) healthy() bool {
	res, err := http.Get(s.url + "/health")
	if err != nil {
		return false
	}
	defer res.Body.Close()
	return res.StatusCode == http.StatusOK
}

// serve runs on workers by URL with neither etcd nor NATS, takes another from
// its file on SIGHUP, and ends well on SIGTERM.
func TestServeOnWorkersByURL(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "workers.yaml")
	write := func(data string) {
		if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("- url: http://127.0.0.1:1\n  role: prefill\n  id: p\n  model: tandem-sim\n  engine: sim\n  block-size: 16\n") // is taken for up at once
	s := serveProcess(t, "--decode-url", loneWorker(t, "decode", "d")+",id=d", "--workers-file", path,
		"--worker-health-interval", "100ms", "--router-min-initial-workers", "1")
	if strings.Contains(s.stdout, "run inside") {
		t.Errorf("it started etcd and NATS although it has workers:\n%s", s.stdout)
	}
	s.eventually("it prints what it waits for", func() bool {
		return strings.Contains(s.later.String(), "waiting for workers: 1 of 2 up; tandem-sim has no prefill worker\n")
	})
	if strings.Contains(s.later.String(), "ready") {
		t.Errorf("without a prefill worker it printed %q", s.later.String())
	}
	write(fmt.Sprintf("- url: %s\n  role: prefill\n  id: p\n", loneWorker(t, "prefill", "p")))
	if err := s.cmd.Process.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	s.eventually("the fleet is whole", func() bool { return s.healthy() && s.listed("p") && s.listed("d") })
	s.eventually("it prints that it is ready", func() bool { return strings.HasSuffix(s.later.String(), "ready "+s.url+"\n") })
	if p, d, err := s.served(4); err != nil || p != "p" || d != "d" {
		t.Errorf("served by %q and %q, %v", p, d, err)
	}
	s.stop()
	if !strings.Contains(s.logs.String(), "files reloaded") {
		t.Errorf("the log does not tell of SIGHUP:\n%s", s.logs.String())
	}
}

// joins are the worker's command lines that serve printed, by role, each with
// the arguments only.
func (s *served) joins() map[string][]string {
	s.t.Helper()
	lines := map[string][]string{}
	for line := range strings.Lines(s.stdout) {
		if _, args, ok := strings.Cut(line, " worker --role "); ok {
			args := strings.Fields(args)
			lines[args[0]] = append([]string{"worker", "--role"}, args...)
		}
	}
	return lines
}

// With nothing given serve brings etcd and NATS, and its own words let workers
// of both roles join. --embed says the same outright, beside a worker by URL too.
func TestServeEmbeds(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{nil, {"--embed", "--decode-url", loneWorker(t, "decode", "d") + ",id=d"}} {
		s := serveProcess(t, args...)
		joins := s.joins()
		for _, role := range []string{"prefill", "decode"} {
			if joins[role] == nil {
				t.Fatalf("it does not say how a %s worker can join:\n%s", role, s.stdout)
			}
			startChild(t, "", joins[role]...)
		}
		s.eventually("the workers have joined", func() bool { return s.listed("prefill-1") && s.listed("decode-1") })
		if len(args) > 0 {
			s.eventually("the worker by URL is beside them", func() bool { return s.listed("d") && s.healthy() })
		}
		s.stop()
	}
}

// A gateway alone that is killed and started again finds the workers that it
// had: its etcd and NATS are where they were.
func TestServeAloneComesBack(t *testing.T) {
	t.Parallel()
	ports := []string{"--http-port", fmt.Sprint(porttest.Free(t)), "--embed-etcd-port", fmt.Sprint(porttest.Free(t)), "--embed-nats-port", fmt.Sprint(porttest.Free(t))}
	s := serveProcess(t, ports...)
	joins := s.joins()
	for _, role := range []string{"prefill", "decode"} {
		startChild(t, "", append(joins[role], "--speedup", "20")...)
	}
	whole := func() bool {
		p, d, err := s.fleet.served(4)
		return err == nil && p == "prefill-1" && d == "decode-1"
	}
	s.eventually("both legs are served", whole)
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = s.cmd.Wait()
	s = serveProcess(t, ports...)
	if again := s.joins(); !reflect.DeepEqual(again, joins) {
		t.Errorf("workers are to join by %v now, it was %v", again, joins)
	}
	s.eventually("both legs are served after the restart", whole)
	s.stop()
}

// The ports of the servers inside are the same at every start, and none that
// the kernel hands out to connections: a client that dials such a port of its own
// machine while nobody listens can end up connected to itself.
func TestEmbeddedPortsStay(t *testing.T) {
	e := setting.Default[stack.EmbedConfig]()
	for name, port := range map[string]int{"embed-etcd-port": e.EtcdPort, "embed-nats-port": e.NATSPort} {
		if port < 1024 || port >= 32768 {
			t.Errorf("%s is %d by default", name, port)
		}
	}
}

// A port that is taken ends serve at once, with the flag's name and what to do.
func TestServeOnATakenPort(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	taken := fmt.Sprint(ln.Addr().(*net.TCPAddr).Port)
	for _, test := range []struct{ flag, want string }{
		{"embed-etcd-port", "--etcd-endpoints"},
		{"embed-nats-port", "--nats-url"},
		{"http-port", "http-port"},
	} {
		status, stdout, stderr := inside(t, nil, append(serveArgs(), "--"+test.flag, taken)...)
		if status != exitFailed || !strings.Contains(stderr, test.flag+":") || !strings.Contains(stderr, taken) || !strings.Contains(stderr, test.want) {
			t.Errorf("--%s %s: status %d: %s", test.flag, taken, status, stderr)
		}
		if strings.Contains(stdout, "listening") {
			t.Errorf("--%s %s: it printed %q", test.flag, taken, stdout)
		}
	}
}

// A temporary folder that cannot be made is an error of TMPDIR, and of no port.
func TestServeWithoutATemporaryFolder(t *testing.T) {
	absent := filepath.Join(t.TempDir(), "absent")
	t.Setenv("TMPDIR", absent)
	status, _, stderr := inside(t, nil, serveArgs()...)
	if status != exitFailed || !strings.Contains(stderr, absent+", which TMPDIR names") || strings.Contains(stderr, "port") {
		t.Errorf("status %d: %s", status, stderr)
	}
}

func TestServeRefusesWhatDoesNotGoTogether(t *testing.T) {
	dir := t.TempDir()
	file := func(name, data string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for _, test := range []struct {
		args []string
		want string
	}{
		{[]string{"--nats-url=nats://h:1"}, "nats-url alone finds none"},
		{[]string{"--etcd-endpoints=h:1"}, "nats-url: KV events pass through NATS"},
		{[]string{"--embed", "--etcd-endpoints=h:1"}, "embed (flag)"},
		{[]string{"--kv-events-predict-after=3s"}, "kv-events-predict-after (flag): 3s is below kv-events-silent-after, 5s"},
		{[]string{"--prefill-url=http://h:1,colour=red"}, `prefill-url (flag): colour: there is no such option`},
		{[]string{"--worker-url=http://h:1,role=leader"}, "worker-url (flag): role: must be one of"},
		{[]string{"--prefill-url=http://h:1", "--decode-url=http://h:1,id=d"}, "decode-url (flag): url: http://h:1 is listed twice"},
		{[]string{"--workers-file=" + filepath.Join(dir, "none.yaml")}, "workers-file: "},
		{[]string{"--workers-file=" + file("bad.yaml", "- url: http://h:1\n  engine: x\n")}, "bad.yaml:2 engine: must be one of"},
		{
			[]string{"--worker-url=http://h:1,id=a,kv-events=tcp://*:5557,ranks=2", "--worker-url=http://h:2,kv-events=tcp://0.0.0.0:5558"},
			`worker-url (flag): kv-events: has the gateway listen on port 5558, as worker "a" has already`,
		},
		{[]string{"--worker-allow=http://10.0.0.1"}, `worker-allow (flag): "http://10.0.0.1" is no host`},
		{[]string{"--worker-url=http://h:1", "--worker-api-key-file=" + file("key", "two\nlines\n")}, "worker-api-key-file (flag)"},
	} {
		status, _, stderr := inside(t, nil, append([]string{"serve", "--http-port=0"}, test.args...)...)
		if status != exitUsage || !strings.Contains(stderr, test.want) {
			t.Errorf("%q: status %d, %s; want %q", test.args, status, stderr, test.want)
		}
		if bytes.Contains([]byte(stderr), []byte("lines")) {
			t.Errorf("%q: the error tells the key: %s", test.args, stderr)
		}
	}
}
