package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// underLimit is a serve with a hard limit of descriptors.
func underLimit(t *testing.T, descriptors int, args ...string) *exec.Cmd {
	cmd := asProcess(t, append(serveArgs(), args...)...)
	cmd.Args = append([]string{"sh", "-c", fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, descriptors)}, cmd.Args...)
	cmd.Path = "/bin/sh"
	return cmd
}

// etcd wants more than 150 descriptors, and says so by ending the process.
func TestEmbeddedEtcdSaysThatDescriptorsAreFew(t *testing.T) {
	out, err := underLimit(t, 100, "--embed").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "embedded etcd: file descriptor limit") {
		t.Errorf("it ended with %v and said %q", err, out)
	}
}

// crowd opens connections that send nothing, up to n of them, and returns those that were accepted or wait to be.
func (p *proc) crowd(n int) []net.Conn {
	p.t.Helper()
	var conns []net.Conn
	for range n {
		c, err := net.Dial("tcp", strings.TrimPrefix(p.url, "http://"))
		require.NoError(p.t, err)
		p.t.Cleanup(func() { _ = c.Close() })
		conns = append(conns, c)
	}
	return conns
}

// fresh is a client that dials for each request.
var fresh = &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// More idle connections than the process may have descriptors end neither it nor a stream that runs, and requests on
// new connections are served at once: idle ones give way.
func TestServeOutlivesALackOfDescriptors(t *testing.T) {
	t.Parallel()
	const descriptors = 100
	for name, args := range map[string][]string{
		"default bound":        nil,
		"no bound to speak of": {"--max-connections", "10000", "--admin-address", "127.0.0.1:0"},
		"the stream's own":     {"--max-connections", "2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			workers := []string{"--decode-url", loneWorker(t, "decode", "d", 2) + ",id=d", "--prefill-url", loneWorker(t, "prefill", "p", 2) + ",id=p"}
			s := start(t, underLimit(t, descriptors, append(args, workers...)...), "listening")
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
				_, _, err := s.complete("", "Hello", 4)
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
