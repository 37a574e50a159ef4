package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/lab/porttest"
)

// child is the gateway's binary in a process of its own.
type child struct {
	t    testing.TB
	cmd  *exec.Cmd
	line string // the first it printed
	done chan struct{}

	mu   sync.Mutex // guards logs
	logs bytes.Buffer
}

func (c *child) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.logs.Write(p)
}

func (c *child) log() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.logs.String()
}

// startChild starts one and, where prints is not empty, waits until it has printed a line that begins so.
func startChild(t testing.TB, prints string, args ...string) *child {
	t.Helper()
	c := &child{t: t, cmd: exec.Command(os.Args[0], args...), done: make(chan struct{})}
	c.cmd.Env = append(os.Environ(), asGateway+"=1", logForm)
	c.cmd.Stderr = c
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		<-c.done
		if t.Failed() {
			t.Logf("%s:\n%s", strings.Join(args[:1], " "), c.log())
		}
	})
	printed := make(chan string, 1)
	go func() {
		defer close(c.done)
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			if prints != "" && strings.HasPrefix(lines.Text(), prints) {
				printed <- strings.TrimPrefix(lines.Text(), prints)
				break
			}
		}
		_, _ = io.Copy(io.Discard, stdout)
		_ = c.cmd.Wait()
	}()
	if prints == "" {
		return c
	}
	select {
	case c.line = <-printed:
	case <-c.done:
		t.Fatalf("%v ended:\n%s", args, c.log())
	case <-time.After(readyLimit):
		t.Fatalf("%v did not print %q:\n%s", args, prints, c.log())
	}
	return c
}

// soon waits for a condition.
func soon(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(readyLimit)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-deadline:
			t.Fatalf("not within %v: %s", readyLimit, what)
		case <-tick.C:
		}
	}
}

// get reads an answer; 0 where there is none.
func get(url string) (int, string) {
	res, err := http.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(body)
}

// Real processes: a worker that registers nowhere and publishes as vLLM does, `gateway attach` beside it, and a gateway that
// knows of etcd and NATS alone. Prompts are known where they are cached; a death is withdrawn, a come-back is taken in,
// and SIGTERM detaches and leaves the engine alone.
func TestAttachBesideARealWorker(t *testing.T) {
	inside, err := stack.Embed(stack.EmbedConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	port, events, replay := porttest.Free(t), porttest.Free(t), porttest.Free(t)
	work := func() *child {
		return startChild(t, "", "worker", "--id", "engine", "--worker-port", fmt.Sprint(port), "--speedup", "50", "--kv-events", "zmq-vllm",
			"--kv-events-endpoint", fmt.Sprintf("tcp://*:%d", events), "--kv-events-replay-endpoint", fmt.Sprintf("tcp://*:%d", replay))
	}
	engine := fmt.Sprintf("http://127.0.0.1:%d", port)
	beside := startChild(t, "attach ", "attach", "--url", engine, "--id", "w1", "--etcd-endpoints", inside.EtcdURL(), "--nats-url", inside.NATSURL(),
		"--worker-health-interval", "200ms", "--attach-drain", "100ms", "--attach-address", "127.0.0.1:0", "--taints", "a", "--topology", "rack=r1")
	if code, body := get(beside.line + "/ready"); code != http.StatusServiceUnavailable || !strings.Contains(body, engine) {
		t.Errorf("before there is an engine: %d %s", code, body)
	}
	gateway := startChild(t, "listening ", "serve", "--http-port", "0", "--etcd-endpoints", inside.EtcdURL(), "--nats-url", inside.NATSURL(), "--lease-ttl", "2s")
	worker := work()
	type source struct {
		Worker, Transport, State string
		Blocks                   int
	}
	known := func() (s source) {
		var report struct {
			Events map[string][]source `json:"kv_events"`
		}
		if _, body := get(gateway.line + "/workers"); json.Unmarshal([]byte(body), &report) != nil {
			return s
		}
		for _, pool := range report.Events {
			for _, s = range pool {
			}
		}
		return s
	}
	soon(t, "the worker is followed over NATS", func() bool {
		s := known()
		return s.Worker == "w1" && s.Transport == "nats" && s.State == "live"
	})
	if code, body := get(beside.line + "/ready"); code != http.StatusOK {
		t.Errorf("registered: %d %s", code, body)
	}
	ask := func() {
		t.Helper()
		body := `{"model":"tandem-sim","max_tokens":2,"prompt":"` + strings.Repeat("the quick brown fox ", 40) + `"}`
		res, err := http.Post(gateway.line+"/v1/completions", "application/json", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if answer, _ := io.ReadAll(res.Body); res.StatusCode != http.StatusOK {
			t.Fatalf("status %d, %s", res.StatusCode, answer)
		}
	}
	ask()
	soon(t, "what it computed is known", func() bool { return known().Blocks > 0 })
	if _, body := get(beside.line + "/metrics"); !strings.Contains(body, "tandem_attach_registered 1") || !strings.Contains(body, `tandem_kv_bridge_blocks{pool="tandem-sim/both",rank="0",worker="w1"}`) {
		t.Errorf("metrics:\n%s", body)
	}
	checkAttachDocument(t, beside.line)

	if err := worker.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-worker.done
	soon(t, "the dead worker is withdrawn", func() bool { code, _ := get(beside.line + "/ready"); return code == http.StatusServiceUnavailable })
	soon(t, "and gone from the gateway", func() bool { return known().Worker == "" })
	work()
	soon(t, "it is back, and empty", func() bool { s := known(); return s.State == "live" && s.Blocks == 0 })
	ask()
	soon(t, "and known again", func() bool { return known().Blocks > 0 })

	if err := beside.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case <-beside.done:
	case <-time.After(readyLimit):
		t.Fatal("SIGTERM does not end it")
	}
	if code := beside.cmd.ProcessState.ExitCode(); code != 0 || !strings.Contains(beside.log(), "detached; the engine keeps running") {
		t.Errorf("exit status %d:\n%s", code, beside.log())
	}
	soon(t, "the gateway sees it leave", func() bool { return known().Worker == "" })
	if code, _ := get(engine + "/health"); code != http.StatusOK {
		t.Errorf("the engine's health: %d", code)
	}
}

// checkAttachDocument holds docs/kv-events.md to the flags and metrics of attach.
func checkAttachDocument(t *testing.T, at string) {
	t.Helper()
	raw, err := os.ReadFile("../../docs/kv-events.md")
	if err != nil {
		t.Fatal(err)
	}
	document := string(raw)
	for _, s := range setting.Of(attachSettings{}) {
		if !strings.Contains(document, "`--"+s.Name+"`") && s.Group != "Logging" {
			t.Errorf("docs/kv-events.md does not name --%s", s.Name)
		}
	}
	_, text := get(at + "/metrics")
	exposed := map[string]bool{}
	for line := range strings.Lines(text) {
		name := strings.FieldsFunc(line, func(r rune) bool { return r == '{' || r == ' ' })[0]
		if strings.HasPrefix(name, "tandem_attach_") || strings.HasPrefix(name, "tandem_kv_bridge_") {
			exposed[name] = true
		}
	}
	named := regexp.MustCompile("`(tandem_(?:attach|kv_bridge)_[a-z_]+)`").FindAllStringSubmatch(document, -1)
	if len(exposed) != len(named) || len(named) < 10 {
		t.Errorf("%d metrics are exposed, %d named", len(exposed), len(named))
	}
	for _, m := range named {
		if !exposed[m[1]] {
			t.Errorf("docs/kv-events.md names %s, which is not exposed", m[1])
		}
	}
}

func TestAttachCommandLine(t *testing.T) {
	whole := []string{"--url", "http://127.0.0.1:1", "--etcd-endpoints", "127.0.0.1:1"}
	for _, c := range []struct {
		args   []string
		status int
		says   string
	}{
		{[]string{"--help"}, exitOK, "gateway attach --url http://gpu-1:8000 --role prefill"},
		{nil, exitUsage, "url: the engine's address is missing"},
		{whole[:2], exitUsage, "etcd-endpoints: the worker registers in etcd"},
		{append(whole, "--engine", "llama"), exitUsage, "flag --engine"},
		{append(whole, "--url", "ftp://h"), exitUsage, "--url"},
		{append(whole, "--url", "http://u:secret@h:1"), exitUsage, "url"},
		{append(whole, "--url", "http://h:1/v1"), exitUsage, "url (flag): must be a scheme, a host and a port"},
		{append(whole, "--advertise-url", "http://h:1/v1"), exitUsage, "advertise-url (flag): must be a scheme"},
		{append(whole, "--id", "a/b"), exitUsage, "id (flag)"},
		{append(whole, "--role", "drafts"), exitUsage, "flag --role"},
		{append(whole, "--block-size", "5000"), exitUsage, "block-size"},
		{append(whole, "--engine-kv-events", "5557"), exitUsage, "engine-kv-events (flag): must be tcp://HOST:PORT"},
		{append(whole, "--engine-kv-events", "tcp://*:5557"), exitUsage, "engine-kv-events (flag): attach listens for this engine"},
		{append(whole, "--engine-kv-replay", "tcp://h:1"), exitUsage, "engine-kv-replay (flag): goes with engine-kv-events"},
		{append(whole, "--engine-kv-topic", "t", "--engine-kv-events", "none"), exitUsage, "engine-kv-topic (flag): goes with engine-kv-events"},
		{append(whole, "--transfer-endpoint", "h"), exitUsage, "transfer-endpoint (flag)"},
		{append(whole, "--topology", "rack"), exitUsage, `topology (flag): "rack" is no KEY=VALUE`},
		{append(whole, "--taints", "a,a"), exitUsage, "taints (flag)"},
		{append(whole, "--worker-api-key-file", "key"), exitUsage, "worker-api-key-file (flag)"},
		{append(whole, "--health-failures", "0"), exitUsage, "health-failures"},
		{append(whole, "--attach-address", "9090"), exitUsage, "attach-address"},
	} {
		status, stdout, stderr := inside(t, nil, append([]string{"attach"}, c.args...)...)
		if status != c.status || !strings.Contains(stdout+stderr, c.says) || strings.Contains(stderr, "secret") {
			t.Errorf("%v: status %d, want %d; it does not say %q:\n%.600s%s", c.args, status, c.status, c.says, stdout, stderr)
		}
	}
}
