package main

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/internal/setting"
	"github.com/tandem-pd/tandem/pools/discovery"
)

// nextState returns the next state sent to the supervisor.
func nextState(t *testing.T, conn *net.UnixConn) string {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	buf := make([]byte, 256)
	n, err := conn.Read(buf)
	require.NoError(t, err)
	return string(buf[:n])
}

// A supervisor is notified once the gateway listens, and when it stops.
func TestServeNotifiesItsSupervisor(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "n") // a socket's path is short
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "s")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	require.NoError(t, err)
	defer conn.Close()
	cmd := asProcess(t, serveArgs()...)
	cmd.Env = append(cmd.Env, "NOTIFY_SOCKET="+path)
	s := start(t, cmd, "")
	assert.Equal(t, "READY=1", nextState(t, conn))
	s.stop()
	assert.Equal(t, "STOPPING=1", nextState(t, conn))

	assert.NoError(t, notify([]string{"A=b"}, "READY=1"), "without a socket")
	assert.Error(t, notify([]string{"NOTIFY_SOCKET=/nowhere/s"}, "READY=1"), "a socket that is not there is no mistake")
}

// The unit runs what the gateway has: its flags, its signals, its limits; and the settings next to it resolve.
func TestSystemdUnit(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile("../../deploy/systemd/tandem-gateway.service")
	require.NoError(t, err)
	set := map[string]string{}
	for line := range strings.Lines(string(raw)) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok && !strings.HasPrefix(line, "#") {
			set[key] = value
		}
	}
	command := strings.Fields(set["ExecStart"])
	if len(command) < 2 || command[1] != "serve" || set["Type"] != "notify" || !strings.Contains(set["ExecReload"], "-HUP") {
		t.Fatalf("%q", set)
	}
	yaml, err := os.ReadFile("../../deploy/systemd/gateway.yaml")
	require.NoError(t, err)
	var s serveSettings
	if _, _, err := setting.NewSet(&s, everySettings()...).Resolve(command[2:], nil, func(string) ([]byte, error) {
		return yaml,
			nil
	}); err != nil {
		t.Error(err)
	}
	assert.True(t, s.Edge.APIKeyFile != "" || s.Edge.Host == "127.0.0.1", "without keys it listens on %s", s.Edge.Host)
	steps, err := os.ReadFile("../../docs/deploy.md")
	require.NoError(t, err)
	for _, text := range []string{string(raw), string(steps)} { // each file that it reads is installed by the printed steps
		assert.Contains(t, text, "systemd/"+filepath.Base(s.Workers.File)+" "+s.Workers.File,
			"%s is not installed", s.Workers.File)
	}
	workers, err := os.ReadFile("../../deploy/systemd/workers.yaml")
	require.NoError(t, err)
	for _, text := range []string{string(workers), strings.ReplaceAll(strings.Replace(string(workers), "\n[]\n", "\n", 1), "#- ", "- ")} {
		if _, err := discovery.ParseFile("workers.yaml", []byte(text)); err != nil {
			t.Error(err)
		}
	}
	if stop, err := time.ParseDuration(set["TimeoutStopSec"] + "s"); err != nil || stop < s.Grace+s.GatewayConfig.Drain+5*time.Second {
		t.Errorf("TimeoutStopSec is %s: %v and %v are cut short", set["TimeoutStopSec"], s.Grace, s.GatewayConfig.Drain)
	}
	// systemd reads it too, where it is; that there is no /usr/local/bin/gateway here is no fault of the unit.
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		return
	}
	unit := filepath.Join(t.TempDir(), "tandem-gateway.service")
	require.NoError(t, os.WriteFile(unit, []byte(strings.Replace(string(raw), command[0], os.Args[0], 1)), 0o600))
	out, _ := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", unit).CombinedOutput()
	for line := range strings.Lines(string(out)) {
		assert.True(t, !strings.Contains(line, "tandem-gateway.service") || strings.Contains(line, "not executable"), line)
	}
}
