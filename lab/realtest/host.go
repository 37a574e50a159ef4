// Package realtest runs engines as their makers ship them, on a CPU, with a tiny random model: the first witness of what
// Tandem believes about them. docs/real-engines.md has what that needs and what it cannot show.
package realtest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tandem-pd/tandem/lab/porttest"
)

// Host is a process that has an engine's Python packages imported and forks servers from there: an import takes half a
// minute of CPU, a fork is ready in ten seconds.
type Host struct {
	// Kind is "vllm" or "sglang".
	Kind string
	// Models is the folder of the models: tiny, tiny-thinking, tiny-gemma3, lora, tools.jinja.
	Models string
	// Dir has the servers' logs.
	Dir string

	cmd  *exec.Cmd
	in   io.WriteCloser
	mu   sync.Mutex
	here map[string]*process // by the name of the order
	last int
	done chan struct{}
}

// process is one life of an engine.
type process struct {
	pid     int
	started chan struct{}
	ended   chan struct{}
	status  int
}

// Start builds what is missing, imports the engine and returns when servers can be started. tokenizer is a folder with
// tokenizer.json and tokenizer_config.json, or a tokenizer.json alone. Close ends the host and its servers; so does the
// end of this process.
func Start(ctx context.Context, kind, tokenizer, dir string, log io.Writer) (h *Host, err error) {
	if tokenizer, err = filepath.Abs(tokenizer); err != nil {
		return nil, err
	}
	scripts, folder, models, err := setup(ctx, kind, tokenizer, log)
	if err != nil {
		return nil, err
	}
	h = &Host{Kind: kind, Models: models, Dir: dir, here: map[string]*process{}, done: make(chan struct{})}
	h.cmd = exec.Command(filepath.Join(folder, "v/bin/python"), filepath.Join(scripts, "launch.py"), kind, folder)
	h.cmd.Env = append(os.Environ(), environment(kind, scripts, folder)...)
	h.cmd.Env = append(h.cmd.Env, "PATH="+filepath.Join(folder, "v/bin")+":"+os.Getenv("PATH"))
	stderr, err := os.Create(filepath.Join(dir, kind+"-host.log"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = stderr.Close() }()
	h.cmd.Stderr = stderr
	out, err := h.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if h.in, err = h.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	ready := h.order("")
	if err := h.cmd.Start(); err != nil {
		return nil, err
	}
	go h.read(out)
	select {
	case <-ready.started:
		return h, nil
	case <-h.done:
		text, _ := os.ReadFile(stderr.Name())
		return nil, fmt.Errorf("%s was not imported:\n%s", kind, tail(text))
	case <-ctx.Done():
		_ = h.Close()
		return nil, ctx.Err()
	}
}

// order makes the place of a process that is about to start.
func (h *Host) order(name string) *process {
	p := &process{started: make(chan struct{}), ended: make(chan struct{})}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.here[name] = p
	return p
}

// read takes the host's messages until it ends.
func (h *Host) read(out io.Reader) {
	defer close(h.done)
	for s := bufio.NewScanner(out); s.Scan(); {
		var m struct {
			Name string
			PID  int
			Exit *int
		}
		if json.Unmarshal(s.Bytes(), &m) != nil {
			continue
		}
		h.mu.Lock()
		p := h.here[m.Name]
		h.mu.Unlock()
		switch {
		case p == nil:
		case m.Exit != nil:
			p.status = *m.Exit
			close(p.ended)
		default:
			p.pid = m.PID
			close(p.started)
		}
	}
}

// Close ends the servers and the host.
func (h *Host) Close() error {
	_ = h.in.Close()
	select {
	case <-h.done:
	case <-time.After(10 * time.Second):
		_ = h.cmd.Process.Kill()
		<-h.done
	}
	return h.cmd.Wait()
}

// Spec is how an engine is started.
type Spec struct {
	// Name is the worker's; it is part of its log's name.
	Name string
	// Role is "prefill", "decode", or "" for a worker that serves requests alone.
	Role string
	// Connector of vLLM: "NixlConnector" by default for a role, or "NixlPushConnector". SGLang has Mooncake alone.
	Connector string
	// Model is a folder of Host.Models; "tiny" by default. All are served as "tiny".
	Model string
	// Args and Env are added to the engine's own.
	Args []string
	Env  map[string]string
}

// Engine is a server that was started. Its ports stay the same when it is started again.
type Engine struct {
	Spec
	// URL is http://127.0.0.1:PORT.
	URL string
	// Log is the file of its output, over all its lives.
	Log string

	host *Host
	port int
	side int // of the transfer: NIXL's side channel, SGLang's bootstrap
	now  *process
}

// Launch starts an engine without waiting for it.
func (h *Host) Launch(s Spec) (*Engine, error) {
	if s.Model == "" {
		s.Model = "tiny"
	}
	var ports [5]int
	for i := range ports {
		var err error
		if ports[i], err = porttest.Find(); err != nil {
			return nil, err
		}
	}
	e := &Engine{Spec: s, host: h, port: ports[0], side: ports[1], Log: filepath.Join(h.Dir, s.Name+".log")}
	e.URL = "http://127.0.0.1:" + strconv.Itoa(e.port)
	if h.Kind == "vllm" {
		e.vllm(ports[2], ports[3])
	} else {
		e.sglang(ports[2], ports[3], ports[4])
	}
	return e, e.Again()
}

// vllm completes the arguments of a vLLM server.
func (e *Engine) vllm(events, replay int) {
	args := []string{"serve", filepath.Join(e.host.Models, e.Model), "--port", strconv.Itoa(e.port), "--served-model-name", "tiny", "--host", "127.0.0.1",
		"--max-model-len", "16384", "--num-gpu-blocks-override", "512", "--enforce-eager", "--max-num-seqs", "16", "--enable-prompt-tokens-details",
		"--kv-events-config", object(map[string]any{"enable_kv_cache_events": true, "publisher": "zmq", "topic": "",
			"endpoint": fmt.Sprintf("tcp://*:%d", events), "replay_endpoint": fmt.Sprintf("tcp://*:%d", replay)})}
	if e.Role != "" {
		if e.Connector == "" {
			e.Connector = "NixlConnector"
		}
		role := map[string]string{"prefill": "kv_producer", "decode": "kv_consumer"}[e.Role]
		args = append(args, "--kv-transfer-config", object(map[string]any{"kv_connector": e.Connector, "kv_role": role,
			"kv_buffer_device": "cpu", "engine_id": e.Name}))
		e.Env = with(e.Env, "VLLM_NIXL_SIDE_CHANNEL_HOST", "127.0.0.1", "VLLM_NIXL_SIDE_CHANNEL_PORT", strconv.Itoa(e.side))
	}
	e.Args = append(args, e.Args...)
}

// sglang completes the arguments of an SGLang server.
func (e *Engine) sglang(events, replay, nccl int) {
	args := strings.Fields("--served-model-name tiny --device cpu --attention-backend torch_native --sampling-backend pytorch " +
		"--disable-cuda-graph --disable-overlap-schedule --skip-server-warmup --grammar-backend none --page-size 16 " +
		"--sleep-on-idle --max-total-tokens 16384 --max-running-requests 16 --context-length 8192 --enable-cache-report --enable-metrics " +
		"--watchdog-timeout 1200 --host 127.0.0.1")
	args = append(args, "--model-path", filepath.Join(e.host.Models, e.Model), "--port", strconv.Itoa(e.port), "--nccl-port", strconv.Itoa(nccl))
	if e.Role != "decode" {
		args = append(args, "--kv-events-config", object(map[string]any{"publisher": "zmq", "topic": "kv-events",
			"endpoint": fmt.Sprintf("tcp://*:%d", events), "replay_endpoint": fmt.Sprintf("tcp://*:%d", replay)}))
	}
	if e.Role != "" {
		args = append(args, "--disaggregation-mode", e.Role, "--disaggregation-transfer-backend", "mooncake")
	}
	switch e.Role {
	case "prefill":
		args = append(args, "--disaggregation-bootstrap-port", strconv.Itoa(e.side))
	case "decode": // its default keeps 10 GiB of host memory
		args = append(args, "--disaggregation-decode-retraction-backup", "cpu_tensor")
	}
	e.Args = append(args, e.Args...)
}

// Host returns the host that runs the engine.
func (e *Engine) Host() *Host { return e.host }

// Flag is the gateway's flag that adds the engine as a worker.
func (e *Engine) Flag() string {
	name, more := "worker", ",id="+e.Name
	if e.Role != "" {
		name = e.Role
	}
	if e.Connector == "NixlPushConnector" {
		more += ",connector=vllm-nixl-push"
		if e.Role == "prefill" {
			more += fmt.Sprintf(",transfer=127.0.0.1:%d,transfer-ids=%s", e.side, e.Name)
		}
	}
	return fmt.Sprintf("--%s-url=%s%s", name, e.URL, more)
}

// Again starts the engine, for the first time or after its end, on the same ports.
func (e *Engine) Again() (err error) {
	e.now, err = e.host.fork(e.Name, e.Log, e.Args, e.Env)
	return err
}

// Run runs the engine's command line to its end, and returns what it wrote.
func (h *Host) Run(ctx context.Context, name string, args ...string) ([]byte, error) {
	log := filepath.Join(h.Dir, name+".log")
	p, err := h.fork(name, log, args, nil)
	if err != nil {
		return nil, err
	}
	select {
	case <-p.ended:
	case <-ctx.Done():
		_ = syscall.Kill(-p.pid, syscall.SIGKILL)
		<-p.ended
		return nil, ctx.Err()
	}
	text, err := os.ReadFile(log)
	if p.status != 0 {
		err = fmt.Errorf("%s ended with status %d", name, p.status)
	}
	return text, err
}

// fork has the host fork a process.
func (h *Host) fork(name, log string, args []string, env map[string]string) (*process, error) {
	h.mu.Lock()
	h.last++
	name = fmt.Sprintf("%s-%d", name, h.last)
	h.mu.Unlock()
	p := h.order(name)
	line, err := json.Marshal(map[string]any{"name": name, "log": log, "args": args, "env": env})
	if err != nil {
		return nil, err
	}
	if _, err := h.in.Write(append(line, '\n')); err != nil {
		return nil, err
	}
	select {
	case <-p.started:
		return p, nil
	case <-h.done:
		return nil, fmt.Errorf("the host of %s has ended", h.Kind)
	}
}

// Ready waits until the engine answers GET /health. The error has the end of its log.
func (e *Engine) Ready(ctx context.Context) error {
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.URL+"/health", nil)
		if err != nil {
			return err
		}
		res, err := http.DefaultClient.Do(req)
		if err == nil {
			_ = res.Body.Close()
			if res.StatusCode == http.StatusOK {
				return nil
			}
		}
		select {
		case <-e.now.ended:
			err = fmt.Errorf("it ended with status %d", e.now.status)
		case <-ctx.Done():
			err = ctx.Err()
		case <-time.After(200 * time.Millisecond):
			continue
		}
		text, _ := os.ReadFile(e.Log)
		return fmt.Errorf("%s is not ready: %w\n%s", e.Name, err, tail(text))
	}
}

// Signal sends a signal to all of the engine's processes: SIGKILL is a crash, SIGSTOP freezes it.
func (e *Engine) Signal(s syscall.Signal) error { return syscall.Kill(-e.now.pid, s) }

// Kill ends the engine as a crash does, and waits until it is gone.
func (e *Engine) Kill() error {
	err := e.Signal(syscall.SIGKILL)
	if errors.Is(err, syscall.ESRCH) {
		err = nil
	}
	<-e.now.ended
	return err
}

// object is a value as JSON.
func object(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // maps of texts and numbers
	}
	return string(text)
}

// with returns a copy of an environment with more variables.
func with(env map[string]string, pairs ...string) map[string]string {
	env = maps.Clone(env)
	if env == nil {
		env = map[string]string{}
	}
	for i := 0; i < len(pairs); i += 2 {
		env[pairs[i]] = pairs[i+1]
	}
	return env
}

// tail is the end of a log.
func tail(text []byte) []byte {
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return bytes.Join(lines[max(0, len(lines)-25):], []byte("\n"))
}
