package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// standing is a standalone service in a process of its own.
type standing struct {
	cmd  *exec.Cmd
	url  string
	logs stderr
}

// stderr is what a process says while it runs.
type stderr struct {
	mu  sync.Mutex // guards buf
	buf bytes.Buffer
}

func (s *stderr) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.Write(p)
}

func (s *stderr) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.buf.String()
}

// startService starts one and waits until it is ready.
func startService(t *testing.T, name, token string, args ...string) *standing {
	t.Helper()
	s := &standing{cmd: exec.Command(os.Args[0], append([]string{name, "--" + name + "-port", "0"}, args...)...)}
	s.cmd.Env = append(os.Environ(), asGateway+"=1", logForm)
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
	if !lines.Scan() || !strings.HasPrefix(lines.Text(), name+" http://") {
		_ = s.cmd.Wait()
		t.Fatalf("it did not come up: %s\n%s", lines.Text(), s.logs.String())
	}
	s.url = strings.TrimPrefix(lines.Text(), name+" ")
	deadline := time.After(readyLimit)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		if code, _ := s.ask(t, "GET", "/ready", token, ""); code == http.StatusOK {
			return s
		}
		select {
		case <-deadline:
			t.Fatal("it does not become ready")
		case <-tick.C:
		}
	}
}

func (s *standing) ask(t *testing.T, method, path, token, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequest(method, s.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(answer)
}

// stop sends SIGTERM and expects a clean end.
func (s *standing) stop(t *testing.T) {
	t.Helper()
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Wait(); err != nil {
		t.Errorf("after SIGTERM: %v\n%s", err, s.logs.String())
	}
}

// Two real processes of each service: the second takes over what the first
// knows, by the token both share, and goes on when the first is killed.
func TestServicesTakeOver(t *testing.T) {
	const token = "a-shared-token"
	file := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(file, []byte("# of both\n"+token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	type call struct {
		method, path, body string
		status             int
	}
	for _, c := range []struct {
		name  string
		fill  []call
		check call
		says  string
	}{
		{"index", []call{
			{"POST", "/register", `{"id": "w1", "model": "m", "block_size": 2}`, 201},
			{"POST", "/events", `{"worker": "w1", "events": [{"type": "stored", "block_hashes": [1], "token_ids": [7, 8], "block_size": 2}]}`, 200},
		}, call{"POST", "/query", `{"model": "m", "token_ids": [7, 8, 9]}`, 200}, `"device":1`},
		{"select", []call{
			{"POST", "/workers", `{"id": "w1", "model": "m", "role": "both", "engine": "vllm", "address": "http://10.0.0.1:8000", "block_size": 2}`, 201},
			{"POST", "/select_and_reserve", `{"id": "r1", "model": "m", "token_ids": [7, 8, 9]}`, 201},
		}, call{"POST", "/reservations/r1/prefill_complete", ``, 204}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			first := startService(t, c.name, token, "--token-file", file)
			for _, f := range c.fill {
				if code, body := first.ask(t, f.method, f.path, token, f.body); code != f.status {
					t.Fatalf("%s: %d %s", f.path, code, body)
				}
			}
			if code, _ := first.ask(t, "GET", "/dump", "another-token", ""); code != http.StatusUnauthorized {
				t.Errorf("without the token, /dump is answered %d", code)
			}
			second := startService(t, c.name, token, "--token-file", file, "--restore-from", "http://127.0.0.1:1,"+first.url)
			if err := first.cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
			_ = first.cmd.Wait()
			if code, body := second.ask(t, c.check.method, c.check.path, token, c.check.body); code != c.check.status || !strings.Contains(body, c.says) {
				t.Errorf("restored: %d %s\n%s", code, body, second.logs.String())
			}
			second.stop(t)
			if log := second.logs.String(); !strings.Contains(log, "sibling skipped") || strings.Contains(log, token) {
				t.Errorf("the log must say that a sibling was skipped, and no token:\n%s", log)
			}
		})
	}
}

// A token file that has changed is read again on SIGHUP, and one with a mistake
// leaves the tokens as they were.
func TestServiceTokensAreReloaded(t *testing.T) {
	file := filepath.Join(t.TempDir(), "tokens")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"index", "select"} {
		write("the-first-token\n")
		s := startService(t, name, "the-first-token", "--token-file", file)
		for _, step := range []struct{ file, says string }{
			{"the-second-token\n", "files reloaded"},
			{"short\n", "tokens:1: the key has 5 bytes; it must have at least 8"},
			{"", "tokens: there is no key in it"},
		} {
			write(step.file)
			if err := s.cmd.Process.Signal(syscall.SIGHUP); err != nil {
				t.Fatal(err)
			}
			deadline, tick := time.After(readyLimit), time.NewTicker(2*time.Millisecond)
			for !strings.Contains(s.logs.String(), step.says) {
				select {
				case <-deadline:
					t.Fatalf("%s: the log does not say %q:\n%s", name, step.says, s.logs.String())
				case <-tick.C:
				}
			}
			tick.Stop()
			for token, want := range map[string]int{"the-first-token": http.StatusUnauthorized, "the-second-token": http.StatusOK} {
				if code, _ := s.ask(t, "GET", "/workers", token, ""); code != want {
					t.Errorf("%s: %s is answered %d, not %d", name, token, code, want)
				}
			}
		}
		s.stop(t)
		if log := s.logs.String(); strings.Contains(log, "short") || strings.Contains(log, "the-second") {
			t.Errorf("%s: the log has a token in it:\n%s", name, log)
		}
	}
}

func TestServiceCommandLines(t *testing.T) {
	for _, c := range []struct {
		args   []string
		status int
		says   string
	}{
		{[]string{"index", "--help"}, exitOK, "/query_by_hash"},
		{[]string{"index", "--help"}, exitOK, "--kv-index-max-blocks"},
		{[]string{"index", "--kv-index-max-blocks", "1"}, exitUsage, "kv-index-max-blocks"},
		{[]string{"select", "--help-all"}, exitOK, "--kv-index-max-blocks"},
		{[]string{"select", "--router-approximate-cache-policy", "fifo"}, exitUsage, "router-approximate-cache-policy"},
		{[]string{"select", "--help"}, exitOK, "--reservation-ttl"},
		{[]string{"index", "--restore-from", "nowhere"}, exitUsage, "restore-from"},
		{[]string{"serve", "--help-all"}, exitOK, "--remote-index-url"},
		{[]string{"serve", "--remote-index-url", "index:8090"}, exitUsage, "remote-index-url"},
		{[]string{"serve", "--remote-index-url", "http://me:pw@index:8090"}, exitUsage, "remote-index-token-file has the token"},
		{[]string{"serve", "--remote-index-url", "http://index:8090", "--remote-index-token-file", "missing"}, exitUsage, "remote-index-token-file"},
		{[]string{"serve", "--remote-index-url", "http://index:8090", "--remote-index-timeout", "1m"}, exitUsage, "remote-index-timeout"},
		{[]string{"dev", "--remote-index-url", "http://index:8090"}, exitUsage, "remote-index-url"},
		{[]string{"select", "--token-file", "missing"}, exitUsage, "token-file"},
		{[]string{"select", "--router-mode", "fastest"}, exitUsage, "router-mode"},
		{[]string{"select", "--reservation-ttl", "0s"}, exitUsage, "reservation-ttl"},
	} {
		status, stdout, stderr := inside(t, nil, c.args...)
		if status != c.status || !strings.Contains(stdout+stderr, c.says) {
			t.Errorf("%s: status %d, want %d; it does not say %q:\n%s%s", fmt.Sprint(c.args), status, c.status, c.says, stdout, stderr)
		}
	}
}
