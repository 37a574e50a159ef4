package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tandem-pd/tandem/cmd/gateway/stack"
	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/engine"
)

// serveUnderLimit is serveProcess with few file descriptors.
func serveUnderLimit(t *testing.T, descriptors int, args ...string) *served {
	t.Helper()
	return runServe(t, underLimit(descriptors, args...))
}

// underLimit is the command of serve with a hard limit of descriptors.
func underLimit(descriptors int, args ...string) *exec.Cmd {
	script := fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, descriptors)
	return exec.Command("sh", append([]string{"-c", script, os.Args[0], "serve", "--http-port", "0", "--shutdown-grace", "0s"}, args...)...)
}

// etcd wants more than 150 descriptors, and says so by ending the process.
func TestEmbeddedEtcdSaysThatDescriptorsAreFew(t *testing.T) {
	cmd := underLimit(100, "--embed")
	cmd.Env = append(os.Environ(), asGateway+"=1", logForm, "TMPDIR="+t.TempDir())
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "embedded etcd: file descriptor limit") {
		t.Errorf("it ended with %v and said %q", err, out)
	}
}

// crowd opens connections that send nothing, up to n of them, and returns those that were accepted or wait to be.
func (s *served) crowd(n int) []net.Conn {
	s.t.Helper()
	var conns []net.Conn
	for range n {
		c, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
		if err != nil {
			s.t.Fatal(err)
		}
		s.t.Cleanup(func() { _ = c.Close() })
		conns = append(conns, c)
	}
	return conns
}

// fresh is a client that dials for each request.
var fresh = &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// More idle connections than the process may have descriptors end neither it nor a stream that runs, and requests on
// new connections are served at once: idle ones give way.
func TestServeOutlivesALackOfDescriptors(t *testing.T) {
	const descriptors = 100
	for name, args := range map[string][]string{
		"default bound":         nil,
		"no bound to speak of":  {"--max-connections", "10000"},
		"administration apart":  {"--max-connections", "10000", "--admin-address", "127.0.0.1:0"},
		"bound of a few":        {"--max-connections", "3"},
		"bound of the stream's": {"--max-connections", "2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serveUnderLimit(t, descriptors, append(args, "--decode-url", slowWorker(t, "decode", "d")+",id=d", "--prefill-url", slowWorker(t, "prefill", "p")+",id=p")...)
			s.eventually("the fleet is whole", s.healthy)
			http.DefaultClient.CloseIdleConnections()

			const tokens = 150
			body := fmt.Sprintf(`{"model":"tandem-sim","max_tokens":%d,"ignore_eos":true,"prompt":"Hello","stream":true}`, tokens)
			res, err := fresh.Post(s.url+"/v1/completions", "application/json", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			stream := bufio.NewReader(res.Body)
			first, err := stream.ReadString('\n')
			if err != nil || !strings.HasPrefix(first, "data: ") {
				t.Fatalf("the stream began with %q, %v\n%s", first, err, s.logs.String())
			}

			crowd := s.crowd(descriptors + 8)
			live, err := fresh.Get(s.url + "/live")
			if err != nil || live.StatusCode != http.StatusOK {
				t.Fatalf("a new request among idle connections: %v\n%s", err, s.logs.String())
			}
			live.Body.Close()
			rest, err := io.ReadAll(stream)
			if err != nil || !strings.HasSuffix(string(rest), "data: [DONE]\n\n") {
				t.Errorf("the stream ended in %.200q, %v", rest[max(0, len(rest)-200):], err)
			}
			for _, c := range crowd {
				c.Close()
			}
			s.eventually("requests are served once the connections have gone", func() bool {
				_, _, err := s.served(4)
				http.DefaultClient.CloseIdleConnections()
				return err == nil
			})
			if lines := strings.Count(s.logs.String(), "new connections wait"); lines > 2 {
				t.Errorf("%d lines about a shortage:\n%s", lines, s.logs.String())
			}
			if said := strings.Contains(s.logs.String(), "max-connections leaves too few descriptors"); said != (len(args) > 1 && args[1] == "10000") {
				t.Errorf("the log speaks of a bound that cannot be kept: %v", said)
			}
			if name == "default bound" && !strings.Contains(s.logs.String(), "closing idle connections to make room") {
				t.Errorf("the log says nothing of the shortage:\n%s", s.logs.String())
			}
			s.stop()
		})
	}
}

// slowWorker is loneWorker at the speed of a real engine.
func slowWorker(t *testing.T, role, id string) string {
	t.Helper()
	w, err := devfleet.NewWorker(devfleet.WorkerConfig{
		Engine: engine.Config{Role: role, ID: id, Speedup: 2}, Host: "127.0.0.1", ModelInput: "text", Drain: time.Second,
	}, stack.Links{}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = w.Run(ctx) })
	t.Cleanup(func() { w.Cut(); cancel(); running.Wait() })
	return w.Record().Address
}
