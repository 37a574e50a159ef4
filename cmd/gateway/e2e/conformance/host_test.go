//go:build engines

package conformance

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
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

// Run runs the engine's command line to its end, and returns its output.
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

// tail is the end of a log.
func tail(text []byte) []byte {
	lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
	return bytes.Join(lines[max(0, len(lines)-25):], []byte("\n"))
}
