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
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/engine"
)

// asGateway makes the test binary behave as the gateway, so that tests can
// start and kill real processes without building anything.
const asGateway = "GATEWAY_TEST_AS_MAIN"

// logForm makes such a gateway log the pairs that tests look for.
const logForm = "TANDEM_LOG_FORMAT=logfmt"

func TestMain(m *testing.M) {
	if os.Getenv(asGateway) != "" {
		main()
	}
	os.Exit(m.Run())
}

// inside runs a command in this process.
func inside(t testing.TB, environ []string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	status = run(t.Context(), args, process{
		program: "gateway", stdin: strings.NewReader(""), stdout: &out, stderr: &errs, environ: environ,
		readFile: func(string) ([]byte, error) { return nil, errors.New("no file") },
	})
	return status, out.String(), errs.String()
}

func TestCommandLine(t *testing.T) {
	for _, c := range []struct {
		args   []string
		env    []string
		status int
		says   string
	}{
		{nil, nil, exitUsage, "Usage: gateway"},
		{[]string{"--help"}, nil, exitOK, "gateway dev"},
		{[]string{"--version"}, nil, exitOK, "(revision "},
		{[]string{"version"}, nil, exitOK, "(revision "},
		{[]string{"dve"}, nil, exitUsage, `no command "dve"; the nearest is dev`},
		{[]string{"nonsense"}, nil, exitUsage, "no command \"nonsense\"\n"},
		{[]string{"help"}, nil, exitOK, "gateway help COMMAND"},
		{[]string{"help", "dev"}, nil, exitOK, "--speedup"},
		{[]string{"help", "version"}, nil, exitOK, "(revision "},
		{[]string{"help", "help"}, nil, exitOK, "Usage: gateway"},
		{[]string{"help", "--help"}, nil, exitOK, "Usage: gateway"},
		{[]string{"help", ""}, nil, exitUsage, `no command ""`},
		{[]string{"help", "dve"}, nil, exitUsage, `no command "dve"`},
		{[]string{"dev", "--help"}, nil, exitOK, "--speedup"},
		{[]string{"dev", "--speedpu", "2"}, nil, exitUsage, "--speedup"},
		{[]string{"dev", "now"}, nil, exitUsage, `"now"`},
		{[]string{"dev", "--etcd-endpoints", "127.0.0.1:2379"}, nil, exitUsage, "etcd-endpoints"},
		{[]string{"dev", "--decode", "0"}, nil, exitUsage, "--decode"},
		{[]string{"config", "--router-mode", "fastest"}, nil, exitUsage, "router-mode"},
		{[]string{"config"}, []string{"TANDEM_ROUTER_MOD=kv"}, exitUsage, "TANDEM_ROUTER_MODE"},
		{[]string{"config"}, []string{"DYN_SOMETHING_ELSE=1", "DYN_ROUTER_MODE=round_robin"}, exitOK, "router-mode: round-robin  # env DYN_ROUTER_MODE"},
		{[]string{"config"}, []string{"DYN_SOMETHING_ELSE=1"}, exitOK, "DYN_SOMETHING_ELSE is no setting here"},
		{[]string{"config"}, []string{"DYN_TCP_TLS_CA_PATH=ca.pem"}, exitUsage, "DYN_TCP_TLS_CA_PATH: there is no such setting here"},
		{[]string{"dev", "--smoke", "--in-process", "--speedup", "50"}, []string{"DYN_ROUTER_MOD=kv"}, exitOK, "DYN_ROUTER_MOD (the nearest is DYN_ROUTER_MODE)"},
		{[]string{"config", "--no-kv-events"}, nil, exitOK, "router-kv-events: false  # flag"},
		{[]string{"config"}, []string{"TANDEM_SPEEDUP=2"}, exitOK, "http-port: 8000  # default"},
		{[]string{"dev", "--fault-scenario", "f.yaml"}, nil, exitUsage, "--allow-faults"},
		{[]string{"dev", "--fault-scenario", "f.yaml", "--allow-faults"}, nil, exitUsage, "no file"},
		{[]string{"serve", "--router-policy-config", "classes.yaml"}, nil, exitUsage, "router-policy-config"},
		{[]string{"dev", "--router-policy-config", "classes.yaml"}, nil, exitUsage, "no file"},
		{[]string{"worker", "--role", "both", "--block-size", "0"}, nil, exitUsage, "block-size"},
	} {
		t.Run(strings.Join(append(c.env, c.args...), " "), func(t *testing.T) {
			status, stdout, stderr := inside(t, c.env, c.args...)
			if status != c.status || !strings.Contains(stdout+stderr, c.says) {
				t.Errorf("status %d, want %d; it does not say %q:\n%s%s", status, c.status, c.says, stdout, stderr)
			}
		})
	}
}

// TestSmokeOfEachEngine: dev starts a fleet of each engine that a worker can be, and prefill hands over to decode in it.
func TestSmokeOfEachEngine(t *testing.T) {
	choices := func(of any) []string {
		field, _ := reflect.TypeOf(of).FieldByName("Engine")
		var names []string
		for choice := range strings.SplitSeq(field.Tag.Get("oneof"), "|") {
			name, _, _ := strings.Cut(choice, "=")
			names = append(names, name)
		}
		return names
	}
	engines := choices(devfleet.Settings{})
	if all := choices(engine.Config{}); !slices.Equal(engines, all) {
		t.Fatalf("dev has the engines %q and a worker %q", engines, all)
	}
	for _, name := range engines[1:] { // the first is the default
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			status, stdout, stderr := inside(t, nil, "dev", "--smoke", "--in-process", "--speedup", "50", "--prefill", "1", "--decode", "1", "--engine", name)
			if status != exitOK || !strings.Contains(stdout, "all well") {
				t.Errorf("status %d\n%s%s", status, stdout, stderr)
			}
		})
	}
}

// fleet is a `gateway dev` in processes of its own.
type fleet struct {
	t   testing.TB
	cmd *exec.Cmd
	url string
	// admin is the address for administration, where it has one of its own.
	admin string
	pids  map[string]int
	logs  logText
	// first is what it printed until it was ready, later what came after.
	first string
	later logText
}

func startFleet(t testing.TB, args ...string) *fleet {
	t.Helper()
	f := &fleet{t: t, pids: map[string]int{}}
	f.cmd = exec.Command(os.Args[0], append([]string{"dev", "--http-port", "0"}, args...)...)
	// A fleet that is killed leaves its temporary etcd behind: in the test's folder.
	f.cmd.Env = append(os.Environ(), asGateway+"=1", logForm, "TMPDIR="+t.TempDir())
	f.cmd.Stderr = &f.logs
	stdout, err := f.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := f.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.cmd.Process.Kill() })
	lines := bufio.NewScanner(stdout)
	for lines.Scan() {
		f.first += lines.Text() + "\n"
		fields := strings.Fields(lines.Text())
		if len(fields) == 3 {
			if pid, err := strconv.Atoi(fields[2]); err == nil {
				f.pids[fields[0]] = pid
			}
		}
		if len(fields) == 2 && fields[0] == "admin" {
			f.admin = fields[1]
		}
		if len(fields) == 2 && fields[0] == "ready" {
			f.url = fields[1]
			break
		}
	}
	if f.url == "" {
		_ = f.cmd.Wait()
		t.Fatalf("dev did not come up:\n%s", f.logs.String())
	}
	go func() {
		for lines.Scan() {
			_, _ = f.later.Write(append(lines.Bytes(), '\n'))
		}
	}()
	return f
}

// readyLimit is how long a process may take until it is ready.
const readyLimit = 30 * time.Second

// served asks once and tells who served.
func (f *fleet) served(tokens int) (prefill, decode string, err error) {
	body := fmt.Sprintf(`{"model":"tandem-sim","max_tokens":%d,"ignore_eos":true,"prompt":"Hello","nvext":{"extra_fields":["worker_id"]}}`, tokens)
	res, err := http.Post(f.url+"/v1/completions", "application/json", strings.NewReader(body))
	if err != nil {
		return "", "", err
	}
	defer res.Body.Close()
	var a struct {
		Nvext struct {
			WorkerID struct {
				Prefill string `json:"prefill_worker_id"`
				Decode  string `json:"decode_worker_id"`
			} `json:"worker_id"`
		}
		Usage struct {
			Completion int `json:"completion_tokens"`
		}
	}
	raw, err := io.ReadAll(res.Body)
	if err == nil {
		err = json.Unmarshal(raw, &a)
	}
	if err == nil && (res.StatusCode != http.StatusOK || a.Usage.Completion != tokens) {
		err = fmt.Errorf("status %d: %s", res.StatusCode, raw)
	}
	return a.Nvext.WorkerID.Prefill, a.Nvext.WorkerID.Decode, err
}

// listed reports whether GET /workers still shows a worker.
func (f *fleet) listed(id string) bool { return f.state(id) != "" }

// state is a worker's in GET /workers, empty where it is not there.
func (f *fleet) state(id string) string {
	f.t.Helper()
	res, err := http.Get(f.url + "/workers")
	if err != nil {
		f.t.Fatal(err)
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	var report struct {
		Pools []struct{ Workers []struct{ ID, State string } }
	}
	if err := json.Unmarshal(raw, &report); err != nil {
		f.t.Fatal(err)
	}
	for _, p := range report.Pools {
		for _, w := range p.Workers {
			if w.ID == id {
				return w.State
			}
		}
	}
	return ""
}

func (f *fleet) eventually(what string, limit time.Duration, ok func() bool) {
	f.t.Helper()
	deadline := time.Now().Add(limit)
	for !ok() {
		if time.Now().After(deadline) {
			f.t.Fatalf("never came true: %s\n%s", what, f.logs.String())
		}
		<-time.After(5 * time.Millisecond)
	}
}

// The night it must not wake anybody: kill -9 on one worker of each role, a
// graceful stop of another, all answers whole; then Ctrl-C ends everything.
func TestRealDeaths(t *testing.T) {
	t.Parallel()
	f := startFleet(t, "--prefill", "3", "--speedup", "20", "--lease-ttl", "3s", "--no-restart")
	for _, id := range []string{"prefill-1", "decode-1"} {
		f.signal(id, syscall.SIGKILL)
		// No request has found it dead, and it stays down until its lease ends.
		f.eventually(id+" is down", time.Minute, func() bool { return slices.Contains([]string{"down", "lost"}, f.state(id)) })
	}
	for i := range 8 {
		p, d, err := f.served(4)
		if err != nil || p == "prefill-1" || d != "decode-2" {
			t.Fatalf("request %d after the deaths: served by %q and %q, error %v\n%s", i, p, d, err, f.logs.String())
		}
	}
	for _, id := range []string{"prefill-1", "decode-1"} {
		f.eventually(id+" is lost with its lease", time.Minute, func() bool {
			state := f.state(id)
			if state == "up" {
				t.Fatalf("%s is up again, and dead", id)
			}
			return state == "lost"
		})
	}

	// A worker that stops well finishes what it has, and nobody gets an error.
	f.streams(prompts("Long", 4), 1000, 1, func() {
		f.signal("prefill-2", syscall.SIGTERM)
		f.eventually("the stopped worker has deregistered", time.Minute, func() bool { return !f.listed("prefill-2") })
	})
	if p, _, err := f.served(4); err != nil || p != "prefill-3" {
		t.Errorf("served by %q, error %v", p, err)
	}
	f.stop()
}

// A killed worker is down at once, and back a moment later as another process,
// which the table says. One that was asked to stop stays away, and another joins by the
// line that dev printed.
func TestKilledWorkersComeBack(t *testing.T) {
	t.Parallel()
	f := startFleet(t, "--prefill", "1", "--decode", "1", "--speedup", "20", "--http-host", "0.0.0.0", "--discovery-prefix", "/elsewhere")
	if !strings.HasPrefix(f.url, "http://127.0.0.1:") || strings.Contains(f.first, "[::]") || strings.Contains(f.first, "0.0.0.0") {
		t.Errorf("it listens everywhere, and its URL is no client's:\n%s", f.first)
	}
	ids := []string{"prefill-1", "decode-1"}
	for _, id := range ids {
		f.signal(id, syscall.SIGKILL)
	}
	for _, id := range ids {
		f.restarted(id)
	}
	if p, d, err := f.served(4); err != nil || p != "prefill-1" || d != "decode-1" {
		t.Errorf("served by %q and %q, %v", p, d, err)
	}

	_, line, _ := strings.Cut(f.first, "Add a worker:\n")
	line, _, _ = strings.Cut(line, "\n")
	_, args, _ := strings.Cut(line, " worker ")
	startChild(t, "", append([]string{"worker"}, strings.Fields(args)...)...)
	f.eventually("the added worker has joined", time.Minute, func() bool { return f.state("decode-2") == "up" })

	if err := syscall.Kill(f.pids["decode-1"], syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	f.eventually("the stopped worker has left", time.Minute, func() bool { return f.state("decode-1") == "" })
	f.eventually("its process has ended, and is not restarted", time.Minute, func() bool {
		return gone(f.pids["decode-1"]) && strings.Contains(f.logs.String(), "not restarted")
	})
	if _, d, err := f.served(4); err != nil || d != "decode-2" {
		t.Errorf("decoded by %q, %v", d, err)
	}
	f.stop()
	if log := f.logs.String(); strings.Count(log, "restarting") != 2 ||
		!strings.Contains(log, `"worker ended" worker=prefill-1`) || !strings.Contains(log, `"worker ended" worker=decode-1`) {
		t.Errorf("the log does not say which workers were down and started again:\n%s", log)
	}
}

// stop is Ctrl-C: status 0, and no child left.
func (f *fleet) stop() {
	f.t.Helper()
	if err := f.cmd.Process.Signal(os.Interrupt); err != nil {
		f.t.Fatal(err)
	}
	if err := f.cmd.Wait(); err != nil {
		f.t.Errorf("dev ended with %v\n%s", err, f.logs.String())
	}
	for id, pid := range f.pids {
		f.eventually(id+" has ended", time.Minute, func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) })
	}
}

// A parent that is killed takes its children with it: their pipe to it closes.
func TestChildrenDieWithTheirParent(t *testing.T) {
	f := startFleet(t, "--prefill", "1", "--decode", "1", "--speedup", "20")
	if err := f.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = f.cmd.Wait()
	for _, id := range []string{"prefill-1", "decode-1"} {
		f.eventually(id+" has ended", time.Minute, func() bool { return gone(f.pids[id]) })
	}
}

// gone reports whether a process has ended. An orphan is reaped by whoever
// adopts it, so a zombie counts as ended.
func gone(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
	}
	_, state, _ := bytes.Cut(stat, []byte(") "))
	return len(state) > 0 && state[0] == 'Z'
}
