package main

import (
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// underLimit is a serve with a hard limit of descriptors.
func underLimit(t *testing.T, descriptors int, args ...string) *exec.Cmd {
	cmd := asProcess(t, append(serveArgs(), args...)...)
	cmd.Args = append([]string{"sh", "-c", fmt.Sprintf(`ulimit -n %d && exec "$0" "$@"`, descriptors)}, cmd.Args...)
	cmd.Path = "/bin/sh"
	return cmd
}

// etcd needs more than 150 descriptors, and otherwise ends the process.
func TestEmbeddedEtcdReportsFewDescriptors(t *testing.T) {
	t.Parallel()
	out, err := underLimit(t, 100).CombinedOutput()
	assert.True(t, err != nil && strings.Contains(string(out), "embedded etcd: file descriptor limit"),
		"it ended with %v and printed %q", err, out)
}

// fresh is a client that dials for each request.
var fresh = &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

// More idle connections than the process may have descriptors end neither it nor a stream that runs, and requests on
// new connections are served at once: idle ones give way.
func TestServeOutlivesALackOfDescriptors(t *testing.T) {
	t.Parallel()
	const descriptors = 100
	for name, args := range map[string][]string{"one address": nil, "two": {"--admin-address", "127.0.0.1:0"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			workers := []string{"--decode-url", loneWorker(t, "decode", "d", 2) + ",id=d", "--prefill-url", loneWorker(t, "prefill", "p", 2) +
				",id=p"}
			s := start(t, underLimit(t, descriptors, append(args, workers...)...), "listening")
			s.eventually("the fleet is whole", s.healthy)
			http.DefaultClient.CloseIdleConnections()
			s.streams([]string{"Hello"}, 150, 1, func() {
				for range descriptors + 8 { // connections that send nothing
					c, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
					require.NoError(t, err)
					defer c.Close()
				}
				live, err := fresh.Get(s.url + "/live")
				require.NoError(t, err, "a new request among idle connections")
				live.Body.Close()
				assert.Equal(t, http.StatusOK, live.StatusCode)
			})
			s.eventually("requests are served once the connections have gone", func() bool {
				_, _, err := s.complete("", "Hello", 4)
				http.DefaultClient.CloseIdleConnections()
				return err == nil
			})
			log := s.logs.String()
			assert.LessOrEqual(t, strings.Count(log, "new connections wait"), 2, "lines about a shortage")
			assert.Contains(t, log, "closing idle connections to make room")
			s.stop()
		})
	}
}
