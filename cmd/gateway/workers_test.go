package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	clientKey = "sk-client-0123456789"
	otherKey  = "sk-client-9876543210"
	adminKey  = "op-admin-abcdefghij"
)

// outside runs a command in a process of its own.
func outside(t *testing.T, env []string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(append(os.Environ(), asGateway+"=1", logForm), env...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out.String(), errs.String()
}

// busyWorkers tells which workers hold requests.
func busyWorkers(t *testing.T, env []string) map[string]int {
	t.Helper()
	status, stdout, stderr := outside(t, env, "workers", "list", "--json")
	var report struct {
		Pools []struct {
			Workers []struct {
				ID       string
				Requests int
			}
		}
	}
	if err := json.Unmarshal([]byte(stdout), &report); status != exitOK || err != nil {
		t.Fatalf("status %d, error %v\n%s%s", status, err, stdout, stderr)
	}
	busy := map[string]int{}
	for _, p := range report.Pools {
		for _, w := range p.Workers {
			if w.Requests > 0 {
				busy[w.ID] = w.Requests
			}
		}
	}
	return busy
}

// The operator's hands, from processes of their own: look, cordon, drain while
// an answer runs, uncordon; and what is said when something is wrong.
func TestWorkersByHand(t *testing.T) {
	t.Parallel()
	admin, client := written(t, "admin", "# operators\n"+adminKey+"\n"), written(t, "client", clientKey+"\n")
	f := startFleet(t, "--prefill", "1", "--decode", "2", "--speedup", "20", "--admin-address", "127.0.0.1:0", "--admin-key-file", admin)
	if f.admin == "" {
		t.Fatal("the address for administration is not printed")
	}
	env := []string{"TANDEM_ADMIN_URL=" + f.admin, "TANDEM_ADMIN_KEY_FILE=" + admin}

	status, stdout, stderr := outside(t, env, "workers", "list")
	lines := strings.Split(strings.TrimSpace(stdout), "\n")
	if status != exitOK || len(lines) != 4 || !strings.HasPrefix(lines[0], "MODEL") {
		t.Fatalf("status %d\n%s%s", status, stdout, stderr)
	}
	for _, line := range lines[1:] { // every column begins where its heading does, or ends there
		if at := strings.Index(lines[0], "STATE"); !strings.HasPrefix(line[at:], "up ") {
			t.Errorf("the columns are not aligned:\n%s", stdout)
		}
	}

	for _, c := range []struct {
		name   string
		env    []string
		args   []string
		status int
		says   string
	}{
		{"no key", nil, []string{"list", "--admin-url", f.admin}, exitFailed, "--admin-key-file FILE"},
		{"a client's key", nil, []string{"list", "--admin-url", f.admin, "--admin-key-file", client}, exitFailed, "does not take the first key of " + client},
		{"the clients' address", env, []string{"list", "--admin-url", f.url}, exitFailed, "--admin-address"},
		{"nobody there", env, []string{"list", "--admin-url", "http://127.0.0.1:1"}, exitFailed, "cannot reach the gateway at http://127.0.0.1:1"},
		{"nearly a worker", env, []string{"cordon", "decode-11"}, exitFailed, "the nearest is decode-1"},
		{"no verb", env, nil, exitUsage, "say what to do"},
		{"nearly a verb", env, []string{"lits"}, exitUsage, "the nearest is list"},
		{"no worker", env, []string{"drain"}, exitUsage, "drain which worker?"},
		{"two workers", env, []string{"drain", "decode-1", "decode-2"}, exitUsage, `"decode-2" is too much`},
		{"no flag", env, []string{"list", "--jsn"}, exitUsage, "--json"},
		{"a key file that is not there", env, []string{"list", "--admin-key-file", "/nowhere/keys"}, exitUsage, "admin-key-file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			status, stdout, stderr := outside(t, c.env, append([]string{"workers"}, c.args...)...)
			if status != c.status || !strings.Contains(stderr, c.says) {
				t.Errorf("status %d, want %d; it does not say %q:\n%s%s", status, c.status, c.says, stdout, stderr)
			}
			if strings.Contains(stdout+stderr, adminKey) || strings.Contains(stdout+stderr, clientKey) {
				t.Errorf("it shows a key:\n%s%s", stdout, stderr)
			}
		})
	}

	long := make(chan error, 1)
	go func() {
		_, _, err := f.served(2000)
		long <- err
	}()
	busy := ""
	f.eventually("a decode worker is busy", 20*time.Second, func() bool {
		for id := range busyWorkers(t, env) {
			if strings.HasPrefix(id, "decode") {
				busy = id
			}
		}
		return busy != ""
	})
	status, stdout, stderr = outside(t, env, "workers", "drain", busy, "--timeout", "1ms")
	if status != exitFailed || !strings.Contains(stderr, "--timeout") {
		t.Errorf("a drain that takes too long: status %d\n%s%s", status, stdout, stderr)
	}
	status, stdout, stderr = outside(t, env, "workers", "drain", busy, "--no-wait")
	if status != exitOK || !strings.Contains(stdout, "requests on it: 1") {
		t.Errorf("a drain without waiting: status %d\n%s%s", status, stdout, stderr)
	}
	for range 4 {
		if _, d, err := f.served(2); err != nil || d == busy {
			t.Errorf("served by %s, which is cordoned; error %v", d, err)
		}
	}
	status, stdout, stderr = outside(t, env, "workers", "drain", busy)
	if status != exitOK || !strings.Contains(stdout, "nothing is booked") {
		t.Errorf("drain: status %d\n%s%s", status, stdout, stderr)
	}
	select {
	case err := <-long:
		if err != nil {
			t.Errorf("the answer that ran: %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("drain returned before the answer")
	}
	if status, stdout, _ = outside(t, env, "workers", "uncordon", busy); status != exitOK || !strings.Contains(stdout, "state: up") {
		t.Errorf("uncordon: status %d\n%s", status, stdout)
	}
	f.stop()
	if !strings.Contains(f.logs.String(), "action=drain") || strings.Contains(f.logs.String(), adminKey) {
		t.Errorf("the log has no audit line, or a key:\n%s", f.logs.String())
	}
}

func TestHealthCommand(t *testing.T) {
	f := startFleet(t, "--prefill", "1", "--decode", "1", "--speedup", "20")
	_, port, _ := strings.Cut(strings.TrimPrefix(f.url, "http://"), ":")
	for _, c := range []struct {
		env    []string
		args   []string
		status int
	}{
		{nil, []string{"--url", f.url}, exitOK},
		{[]string{"TANDEM_HTTP_PORT=" + port, "TANDEM_HTTP_HOST=0.0.0.0"}, nil, exitOK},
		{nil, []string{"--url", "http://127.0.0.1:1"}, exitFailed},
		{nil, []string{"--url", "127.0.0.1"}, exitUsage},
	} {
		status, stdout, stderr := outside(t, c.env, append([]string{"health"}, c.args...)...)
		if status != c.status || stdout != "" {
			t.Errorf("%v %v: status %d, want %d\n%s%s", c.env, c.args, status, c.status, stdout, stderr)
		}
		if c.status == exitFailed && strings.Count(stderr, "\n") != 1 {
			t.Errorf("not one line: %q", stderr)
		}
	}
	f.stop()
}

// logText is a process's log while it writes it.
type logText struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// startServe starts a `gateway serve` in a process of its own.
func startServe(t *testing.T, args ...string) (url string, logs *logText, cmd *exec.Cmd) {
	t.Helper()
	logs = &logText{}
	cmd = exec.Command(os.Args[0], append(serveArgs(), args...)...)
	cmd.Env = append(os.Environ(), asGateway+"=1", logForm, "TMPDIR="+t.TempDir())
	cmd.Stderr = logs
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		if url, ok := strings.CutPrefix(lines.Text(), "listening "); ok {
			go func() { _, _ = io.Copy(io.Discard, stdout) }()
			return url, logs, cmd
		}
	}
	_ = cmd.Wait()
	t.Fatalf("serve did not come up:\n%s", logs)
	return "", nil, nil
}

// SIGHUP takes new keys, and keeps the old ones where the file is broken.
func TestKeysAreReadAgain(t *testing.T) {
	path := written(t, "keys", clientKey+"\n")
	url, logs, cmd := startServe(t, "--api-key-file", path)
	status := func(key string) int {
		req, err := http.NewRequest(http.MethodGet, url+"/v1/models", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+key)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res.StatusCode
	}
	if a, b := status(clientKey), status(otherKey); a != 200 || b != 401 {
		t.Fatalf("before: %d, %d", a, b)
	}
	replace := func(content string) {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	await := func(what string, ok func() bool) {
		deadline := time.Now().Add(10 * time.Second)
		for !ok() {
			if time.Now().After(deadline) {
				t.Fatalf("never came true: %s\n%s", what, logs)
			}
			<-time.After(5 * time.Millisecond)
		}
	}
	replace(otherKey + "\nsh0rt\n")
	await("the broken file is reported", func() bool { return strings.Contains(logs.String(), path+":2") })
	if a, b := status(clientKey), status(otherKey); a != 200 || b != 401 {
		t.Errorf("after a broken file: %d, %d", a, b)
	}
	replace(otherKey + "\n")
	await("the new key is taken", func() bool { return status(otherKey) == 200 })
	if got := status(clientKey); got != 401 {
		t.Errorf("the old key: %d", got)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("serve ended with %v\n%s", err, logs)
	}
	for _, key := range []string{clientKey, otherKey, "sh0rt"} {
		if strings.Contains(logs.String(), key) {
			t.Errorf("the log has a key:\n%s", logs)
		}
	}
	if !strings.Contains(logs.String(), "client_keys=1") {
		t.Errorf("the log does not count keys:\n%s", logs)
	}
}

// A file of keys that is wrong is a mistake of the command line's: status 2,
// file and line, and nothing of what stands there.
func TestBrokenKeyFile(t *testing.T) {
	path := written(t, "keys", clientKey+"\nsh0rt\n")
	status, stdout, stderr := inside(t, nil, "dev", "--in-process", "--http-port", "0", "--admin-key-file", path)
	if status != exitUsage || !strings.Contains(stderr, fmt.Sprintf("admin-key-file: %s:2", path)) || strings.Contains(stderr, "sh0rt") {
		t.Errorf("status %d\n%s%s", status, stdout, stderr)
	}
}

// A drain says about how long it still takes, once it has a pace.
func TestDrainLeft(t *testing.T) {
	for _, tt := range []struct {
		first, left int
		taken       time.Duration
		want        string
	}{
		{10, 10, 5 * time.Second, ""}, {10, 8, 500 * time.Millisecond, ""}, {10, 5, 10 * time.Second, ", about 10s left"},
		{4, 1, 90 * time.Second, ", about 30s left"}, {10, 0, time.Minute, ""}, {5, 7, time.Minute, ""},
	} {
		if got := drainLeft(tt.first, tt.left, tt.taken); got != tt.want {
			t.Errorf("%d of %d left after %v: %q, want %q", tt.left, tt.first, tt.taken, got, tt.want)
		}
	}
}
