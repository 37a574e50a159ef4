package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// nginxConfig is Debian's nginx as a plain proxy of one worker: one process, connections kept on both sides, its
// default log. Nothing is buffered: by default a body above 16 kB goes through a file, which doubles the cost of a
// long prompt. A connection's age has no limit, so that none is renewed within a round.
const nginxConfig = `daemon off;
%[1]sworker_processes 1;
worker_rlimit_nofile 16384;
pid %[2]s/nginx.pid;
error_log %[2]s/nginx-error.log;
events { worker_connections 15000; }
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
			proxy_request_buffering off;
			proxy_read_timeout 1h;
		}
	}
}
`

// haproxyConfig is HAProxy with one thread, as a plain proxy of one worker. Its connections are kept and shared on both
// sides, and it sends each chunk at once. It writes no log.
const haproxyConfig = `global
	nbthread 1
	maxconn 12000
	no strict-limits
defaults
	mode http
	option http-no-delay
	http-reuse always
	timeout connect 5s
	timeout client 1h
	timeout server 1h
	timeout http-keep-alive 1h
frontend clients
	bind %[1]s
	default_backend workers
backend workers
	server worker %[2]s pool-purge-delay 1h
`

// startNginx runs nginx in front of one worker. Its worker process is measured.
func startNginx(ctx context.Context, cores cores, dir, binary, worker string) (*process, error) {
	address, err := freeAddress()
	if err != nil {
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
	return p, p.accepts(ctx, func() error {
		workers, err := children(p.cmd.Process.Pid)
		if err == nil && len(workers) != 1 {
			err = fmt.Errorf("%d worker processes", len(workers))
		}
		if err == nil {
			p.pid = workers[0]
		}
		return err
	})
}

// startHAProxy runs HAProxy in front of one worker, in the foreground.
func startHAProxy(ctx context.Context, cores cores, dir, binary, worker string) (*process, error) {
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	config := filepath.Join(dir, "haproxy.cfg")
	if err := os.WriteFile(config, fmt.Appendf(nil, haproxyConfig, address, worker), 0o600); err != nil {
		return nil, err
	}
	p, err := start(cores, "haproxy", dir, nil, binary, "-db", "-f", config)
	if err != nil {
		return nil, err
	}
	p.address = address
	return p, p.accepts(ctx, func() error { return nil })
}

// freeAddress is an address on which nothing listens.
func freeAddress() (string, error) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return free.Addr().String(), free.Close()
}

// accepts waits until the process takes connections and the check passes, and ends the process where it does not.
func (p *process) accepts(ctx context.Context, check func() error) error {
	deadline := time.Now().Add(readiness)
	for {
		err := check()
		if err == nil {
			var c net.Conn
			if c, err = net.Dial("tcp", p.address); err == nil {
				return c.Close()
			}
		}
		select {
		case <-p.ended:
			return fmt.Errorf("%s ended at once: %s", p.name, p.last())
		case <-ctx.Done():
			p.stop()
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			p.stop()
			return errors.Join(fmt.Errorf("%s does not serve after %v: %s", p.name, readiness, p.last()), err)
		}
	}
}

// findProxy returns the path of a proxy, empty without one: Debian has them in root's path only.
func findProxy(name string) string {
	for _, n := range []string{name, filepath.Join("/usr/sbin", name)} {
		if path, err := exec.LookPath(n); err == nil {
			return path
		}
	}
	return ""
}
