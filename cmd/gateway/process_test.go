package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/lab/fleet"
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
	_ = flag.Set("test.parallel", "6") // most of them wait for processes and leases
	os.Exit(m.Run())
}

// inside runs a command in this process.
func inside(t testing.TB, environ []string, args ...string) (status int, stdout, stderr string) {
	return runIn(t.Context(), environ, args...)
}

func runIn(ctx context.Context, environ []string, args ...string) (status int, stdout, stderr string) {
	var out, errs bytes.Buffer
	status = run(ctx, args, process{program: "gateway", stdin: strings.NewReader(""), stdout: &out, stderr: &errs, environ: environ,
		readFile: os.ReadFile})
	return status, out.String(), errs.String()
}

// line is a command line and what has to come of it.
type line struct {
	args     string // separated by blanks
	status   int
	contains string
}

// lines runs each of them in this process, behind the words before. None shows one of the secrets.
func lines(t *testing.T, environ []string, before string, all []line, secrets ...string) {
	t.Helper()
	for _, l := range all {
		status, stdout, stderr := inside(t, environ, strings.Fields(before+" "+l.args)...)
		if status != l.status || !strings.Contains(stdout+stderr, l.contains) {
			t.Errorf("%s %s: status %d, want %d; it does not say %q:\n%.600s%s", before, l.args, status, l.status, l.contains, stdout, stderr)
		}
		for _, secret := range secrets {
			assert.NotContains(t, stdout+stderr, secret, l.args)
		}
	}
}

// written is a file of the test's own.
func written(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// proc is a gateway, a worker or a whole fleet in processes of their own.
type proc struct {
	t         testing.TB
	cmd       *exec.Cmd
	ended     chan struct{}
	out, logs fleet.LogBuffer
	url       string         // where it answers
	admin     string         // the address for administration, where it has one of its own
	pids      map[string]int // of a fleet's workers
}

// asProcess is a command line of the gateway as a process of its own.
func asProcess(t testing.TB, args ...string) *exec.Cmd {
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), asGateway+"=1", logForm, "TMPDIR="+t.TempDir()) // one that is killed leaves its etcd there
	cmd.WaitDelay = 10 * time.Second                                               // its children have its output too
	return cmd
}

// start starts one, which ends with the test, and waits until it has printed that word and its address. An empty word waits for nothing.
func start(t testing.TB, cmd *exec.Cmd, word string) *proc {
	t.Helper()
	p := &proc{t: t, cmd: cmd, ended: make(chan struct{}), pids: map[string]int{}}
	cmd.Stdout, cmd.Stderr = &p.out, &p.logs
	require.NoError(t, cmd.Start())
	go func() {
		_ = cmd.Wait()
		close(p.ended)
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("%.80v:\n%s", cmd.Args[1:], p.logs.String())
		}
	})
	if word != "" {
		p.eventually("it prints where it is", func() bool { p.read(word); return p.url != "" || p.isOver() })
		require.NotEmpty(t, p.url, "%.80v did not come up: %s", cmd.Args[1:], p.out.String())
	}
	return p
}

// serveArgs is a command line of serve that shares the machine with other gateways, and stops at once.
func serveArgs() []string {
	return []string{"serve", "--http-port", "0", "--embed-ports", "0,0,0", "--shutdown-grace", "0s"}
}

func startServe(t testing.TB, args ...string) *proc {
	t.Helper()
	return start(t, asProcess(t, append(serveArgs(), args...)...), "listening")
}

func startFleet(t testing.TB, args ...string) *proc {
	t.Helper()
	return start(t, asProcess(t, append([]string{"dev", "--http-port", "0"}, args...)...), "ready")
}

func startWorker(t testing.TB, args ...string) *proc {
	t.Helper()
	return start(t, asProcess(t, append([]string{"worker"}, args...)...), "")
}

// read parses its output: its address behind a word, and the table of its workers, whose last row counts.
func (p *proc) read(word string) {
	for line := range strings.Lines(p.out.String()) {
		fields := strings.Fields(line)
		switch {
		case !strings.HasSuffix(line, "\n"): // not whole yet
		case len(fields) == 3:
			if pid, err := strconv.Atoi(fields[2]); err == nil {
				p.pids[fields[0]] = pid
			}
		case len(fields) == 2 && fields[0] == word:
			p.url = fields[1]
		case len(fields) == 2 && fields[0] == "admin":
			p.admin = fields[1]
		}
	}
}

func (p *proc) isOver() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// eventually waits for a condition, for as long as a machine with other work may take.
func (p *proc) eventually(what string, ok func() bool) {
	p.t.Helper()
	eventually(p.t, what, ok)
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); <-time.After(5 * time.Millisecond) {
		require.False(t, time.Now().After(deadline), "never came true: %s", what)
	}
}

// logged waits for words in its log.
func (p *proc) logged(words string) {
	p.t.Helper()
	p.eventually("its log has "+words, func() bool { return strings.Contains(p.logs.String(), words) })
}

// kill is kill -9.
func (p *proc) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// send sends a signal to it, signal to one of its workers.
func (p *proc) send(s syscall.Signal) {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Process.Signal(s))
}

func (p *proc) signal(id string, s syscall.Signal) {
	p.t.Helper()
	require.NoError(p.t, syscall.Kill(p.pids[id], s))
}

// stop ends it as an orchestrator does, and a fleet as Ctrl-C does: status 0, and no worker is left.
func (p *proc) stop() {
	p.t.Helper()
	s := syscall.SIGTERM
	if len(p.pids) > 0 {
		s = syscall.SIGINT
	}
	p.send(s)
	p.eventually("it ends", p.isOver)
	assert.Zero(p.t, p.cmd.ProcessState.ExitCode(), "its exit status after %v", s)
	for id, pid := range p.pids {
		p.eventually(id+" has ended", func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) })
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

// get reads an answer; 0 where there is none.
func get(url string) (int, string) { return getBy(http.DefaultClient, url) }

func getBy(client *http.Client, url string) (int, string) {
	res, err := client.Get(url)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	body, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(body)
}

func (p *proc) healthy() bool { status, _ := get(p.url + "/health"); return status == http.StatusOK }

// workers is what GET /workers shows.
func (p *proc) workers() (report workersReport) {
	p.t.Helper()
	status, body := get(p.url + "/workers")
	if err := json.Unmarshal([]byte(body), &report); status != http.StatusOK || err != nil {
		p.t.Fatalf("GET /workers: %d %s", status, body)
	}
	return report
}

// rows are the workers, by id.
func (p *proc) rows() map[string]workerRow {
	p.t.Helper()
	rows := map[string]workerRow{}
	for _, pool := range p.workers().Pools {
		for _, w := range pool.Workers {
			rows[w.ID] = w
		}
	}
	return rows
}

// state is a worker's, empty where it is not there.
func (p *proc) state(id string) string { p.t.Helper(); return p.rows()[id].State }

// requests are how many are booked on each worker that has some.
func (p *proc) requests() map[string]int {
	p.t.Helper()
	booked := map[string]int{}
	for id, w := range p.rows() {
		if w.Requests > 0 {
			booked[id] = w.Requests
		}
	}
	return booked
}

func (p *proc) up(ids ...string) {
	p.t.Helper()
	for _, id := range ids {
		p.eventually(id+" is up", func() bool { return p.state(id) == "up" })
	}
}

// order runs `gateway workers` for it.
func (p *proc) order(words ...string) {
	p.t.Helper()
	status, stdout, stderr := inside(p.t, nil, append(append([]string{"workers"}, words...), "--admin-url", p.url)...)
	require.Equal(p.t, exitOK, status, "workers %v: %s%s", words, stdout, stderr)
}

// complete asks for a whole answer of some tokens, as a turn of a session where there is a name, and returns who served it.
func (p *proc) complete(session, prompt string, tokens int) (prefill, decode string, err error) {
	var headers []string
	if session != "" {
		headers = []string{"X-Dynamo-Session-ID", session}
	}
	c := p.client()
	body := fmt.Sprintf(`{"model":"tandem-sim","max_tokens":%d,"ignore_eos":true,"prompt":%q,"nvext":{"extra_fields":["worker_id"]}}`,
		tokens, prompt)
	a, err := c.Try(context.Background(), fleet.CompletionPath, body, nil, headers...)
	switch {
	case err != nil:
		return "", "", err
	case a.Status != http.StatusOK || c.Read(a).Completion != tokens:
		return "", "", fmt.Errorf("status %d: %s", a.Status, a.Body)
	}
	prefill, decode = c.Served(a)
	return prefill, decode, nil
}

// served asks for four tokens, and wants them of these workers.
func (p *proc) served(prefill, decode string) {
	p.t.Helper()
	gotPrefill, gotDecode, err := p.complete("", "Hello", 4)
	require.NoError(p.t, err)
	assert.Equal(p.t, []string{prefill, decode}, []string{gotPrefill, gotDecode}, "who served")
}

// totalOf adds up a metric's series in a scrape that have the label.
func totalOf(scrape, metric, label string) (sum float64) {
	for _, series := range regexp.MustCompile(`(?m)^`+metric+`(\{.*\})? (\S+)$`).FindAllStringSubmatch(scrape, -1) {
		if strings.Contains(series[1], label) {
			v, _ := strconv.ParseFloat(series[2], 64)
			sum += v
		}
	}
	return sum
}
