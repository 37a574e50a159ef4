package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
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

// start starts a program, its standard error in a file of the folder. It gets
// no settings from our environment.
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

// startGateway runs a gateway before the workers that its flags name.
func startGateway(ctx context.Context, cores cores, name, dir, binary string, workers ...string) (*process, error) {
	out, in := io.Pipe()
	defer out.Close()
	args := append([]string{"serve", "--http-port", "0", "--shutdown-grace", "0s", "--drain-timeout", "1s"}, workers...)
	p, err := start(cores, name, dir, in, binary, args...)
	if err != nil {
		return nil, err
	}
	ready := make(chan string, 1)
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if url, ok := strings.CutPrefix(lines.Text(), "ready http://"); ok {
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

// nginxConfig is Debian's nginx as a plain proxy of one worker: one process,
// connections kept on both sides, nothing buffered, its default log. Limits on
// how long a connection may be kept are lifted, so that none is renewed within
// a round.
const nginxConfig = `daemon off;
%[1]sworker_processes 1;
worker_rlimit_nofile 8192;
pid %[2]s/nginx.pid;
error_log %[2]s/nginx-error.log;
events { worker_connections 8000; }
http {
	access_log %[2]s/nginx-access.log;
	client_body_temp_path %[2]s/nginx-body;
	proxy_temp_path %[2]s/nginx-proxy;
	fastcgi_temp_path %[2]s/nginx-fastcgi;
	uwsgi_temp_path %[2]s/nginx-uwsgi;
	scgi_temp_path %[2]s/nginx-scgi;
	keepalive_timeout 1h;
	keepalive_requests 1000000000;
	upstream worker {
		server %[3]s;
		keepalive 2048;
		keepalive_timeout 1h;
		keepalive_requests 1000000000;
	}
	server {
		listen %[4]s;
		location / {
			proxy_pass http://worker;
			proxy_http_version 1.1;
			proxy_set_header Connection "";
			proxy_buffering off;
			proxy_read_timeout 1h;
		}
	}
}
`

// startNginx runs nginx in front of one worker.
func startNginx(ctx context.Context, cores cores, dir, binary, worker string) (*process, error) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	address := free.Addr().String()
	if err := free.Close(); err != nil {
		return nil, err
	}
	user := "" // only root may change it, and root's worker could not enter our folder as another
	if os.Geteuid() == 0 {
		user = "user root;\n"
	}
	config := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(config, fmt.Appendf(nil, nginxConfig, user, dir, worker, address), 0o600); err != nil {
		return nil, err
	}
	p, err := start(cores, "nginx", dir, nil, binary, "-p", dir, "-c", config, "-e", filepath.Join(dir, "nginx-error.log"))
	if err != nil {
		return nil, err
	}
	p.address = address
	deadline := time.Now().Add(readiness)
	for {
		workers, err := children(p.cmd.Process.Pid)
		if err == nil && len(workers) == 1 {
			var c net.Conn
			if c, err = net.Dial("tcp", address); err == nil {
				p.pid = workers[0]
				return p, c.Close()
			}
		}
		select {
		case <-p.ended:
			return nil, fmt.Errorf("nginx ended at once: %s", p.last())
		case <-ctx.Done():
			p.stop()
			return nil, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			p.stop()
			return nil, errors.Join(fmt.Errorf("nginx does not serve after %v: %s", readiness, p.last()), err)
		}
	}
}

// build builds the gateway into the folder, as a release is but for the symbols,
// which a profile needs.
func build(ctx context.Context, dir string) (string, error) {
	binary := filepath.Join(dir, "gateway")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", binary, "github.com/tandem-pd/tandem/cmd/gateway")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build ./cmd/gateway: %w\n%s", err, text)
	}
	return binary, nil
}
