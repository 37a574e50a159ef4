package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// process is a program that the bench has started and ends.
type process struct {
	name    string
	cmd     *exec.Cmd
	log     string // file of its standard error
	ended   chan struct{}
	address string // host:port of its clients' side
	pid     int    // of the process that does the work and is measured
}

// readiness is how long a process may take to serve.
const readiness = 30 * time.Second

// start starts a program, its standard error in a file of the folder. It gets no settings from our environment.
func start(cores cores, name, dir string, stdout io.Writer, binary string, args ...string) (*process, error) {
	p := &process{name: name, log: filepath.Join(dir, name+".log"), ended: make(chan struct{})}
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the child has its own
	p.cmd = exec.Command(binary, args...)
	p.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + dir, "TMPDIR=" + dir}
	p.cmd.Stdout, p.cmd.Stderr = stdout, log
	if err := cores.start(p.cmd); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	p.pid = p.cmd.Process.Pid
	go func() {
		_ = p.cmd.Wait() // an early end is reported where the process is missed
		close(p.ended)
	}()
	return p, nil
}

// stop ends it: well if it can, and by force after a time.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(os.Interrupt)
	select {
	case <-p.ended:
	case <-time.After(3 * time.Second):
		killGroup(p.cmd.Process.Pid)
		<-p.ended
	}
}

// last is the end of its standard error, for error messages.
func (p *process) last() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], "\n")
}

// startReady runs one of our programs and waits for its line "listening http://ADDRESS".
func startReady(ctx context.Context, cores cores, name, dir, binary string, args ...string) (*process, error) {
	out, in := io.Pipe()
	defer out.Close()
	p, err := start(cores, name, dir, in, binary, args...)
	if err != nil {
		return nil, err
	}
	ready := make(chan string, 1)
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if url, ok := strings.CutPrefix(lines.Text(), "listening http://"); ok {
				ready <- url
				break
			}
		}
		_, _ = io.Copy(io.Discard, out)
	}()
	select {
	case p.address = <-ready:
		return p, nil
	case <-p.ended:
		return nil, fmt.Errorf("%s ended at once: %s", name, p.last())
	case <-ctx.Done():
		err = ctx.Err()
	case <-time.After(readiness):
		err = fmt.Errorf("%s is not ready after %v: %s", name, readiness, p.last())
	}
	p.stop()
	return nil, err
}

// startGateway runs a gateway with more flags. It hands every prompt over: on a busy machine its own engines' transfers
// may look slower than computing.
func startGateway(ctx context.Context, cores cores, name, dir, binary string, flags ...string) (*process, error) {
	args := append([]string{"serve", "--http-port", "0", "--shutdown-grace", "0s", "--drain-timeout", "1s", "--no-decode-fallback"}, flags...)
	return startReady(ctx, cores, name, dir, binary, args...)
}

// build builds the gateway into the folder, as a release is but for paths.
func build(ctx context.Context, dir string) (string, error) {
	binary := filepath.Join(dir, "gateway")
	cmd := exec.CommandContext(ctx, "go", "build", "-ldflags", "-s -w", "-o", binary, "github.com/tandem-pd/tandem/cmd/gateway")
	cmd.Env = append([]string{"CGO_ENABLED=0"}, os.Environ()...) // which may override it
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build ./cmd/gateway: %w\n%s", err, text)
	}
	return binary, nil
}
