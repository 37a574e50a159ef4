package main

import (
	"encoding/json"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const (
	clientKey = "sk-client-0123456789"
	otherKey  = "sk-client-9876543210"
	adminKey  = "op-admin-abcdefghij"
)

// The operator's hands: look, cordon, drain while an answer runs, uncordon; and the errors.
func TestWorkersByHand(t *testing.T) {
	t.Parallel()
	admin, client := written(t, "admin", "# operators\n"+adminKey+"\n"), written(t, "client", clientKey+"\n")
	f := startFleet(t, "--prefill", "1", "--decode", "2", "--speedup", "20", "--admin-address", "127.0.0.1:0", "--admin-key-file", admin)
	require.NotEmpty(t, f.admin, "the address for administration")
	env := []string{"TANDEM_ADMIN_URL=" + f.admin, "TANDEM_ADMIN_KEY_FILE=" + admin}
	hand := func(args string, want int, contains string) (stdout string) {
		t.Helper()
		status, stdout, stderr := inside(t, env, append([]string{"workers"}, strings.Fields(args)...)...)
		require.True(t, status == want && strings.Contains(stdout+stderr, contains),
			"%s: status %d, without %q\n%s%s", args, status, contains, stdout, stderr)
		return stdout
	}

	rows := strings.Split(strings.TrimSpace(hand("list", exitOK, "MODEL")), "\n")
	require.Len(t, rows, 4)
	for _, row := range rows[1:] { // every column begins where its heading does, or ends there
		assert.Regexp(t, "^up ", row[strings.Index(rows[0], "STATE"):], "the columns are not aligned")
	}
	lines(t, nil, "workers", []line{
		{"list --admin-url " + f.admin, exitFailed, "--admin-key-file FILE"},
		{"list --admin-url " + f.admin + " --admin-key-file " + client, exitFailed, "does not take the first key of " + client},
	}, adminKey, clientKey)
	lines(t, env, "workers", []line{
		{"list --admin-url " + f.url, exitFailed, "--admin-address"},
		{"list --admin-url http://127.0.0.1:1", exitFailed, "cannot reach the gateway at http://127.0.0.1:1"},
		{"cordon decode-11", exitFailed, "the nearest is decode-1"},
		{"", exitUsage, "want a verb"},
		{"lits", exitUsage, "the nearest is list"},
		{"drain", exitUsage, "drain which worker?"},
		{"drain decode-1 decode-2", exitUsage, `"decode-2" is too much`},
		{"list --jsn", exitUsage, "--json"},
		{"list --admin-key-file /nowhere/keys", exitUsage, "admin-key-file"},
	}, adminKey, clientKey)

	long := make(chan error, 1)
	go func() {
		_, _, err := f.complete("", "Hello", 1000)
		long <- err
	}()
	busy := ""
	f.eventually("a decode worker is busy", func() bool {
		var report workersReport
		require.NoError(t, json.Unmarshal([]byte(hand("list --json", exitOK, "")), &report))
		for _, p := range report.Pools {
			for _, w := range p.Workers {
				if w.Requests > 0 && p.Role == "decode" {
					busy = w.ID
				}
			}
		}
		return busy != ""
	})
	hand("drain "+busy+" --timeout 1ms", exitFailed, "--timeout")
	hand("drain "+busy+" --no-wait", exitOK, "requests on it: 1")
	for range 4 {
		_, d, err := f.complete("", "Hello", 2)
		require.NoError(t, err)
		assert.NotEqual(t, busy, d, "it is cordoned")
	}
	hand("drain "+busy, exitOK, "nothing is booked")
	assert.NoError(t, <-long, "the answer that ran")
	hand("uncordon "+busy, exitOK, "state: up")
	f.stop()
	assert.Contains(t, f.logs.String(), "action=drain")
	assert.NotContains(t, f.logs.String(), adminKey)
}

// SIGHUP takes new keys, and keeps the old ones where the file is broken.
func TestKeysAreReadAgain(t *testing.T) {
	t.Parallel()
	path := written(t, "keys", clientKey+"\n")
	s := startServe(t, "--api-key-file", path)
	accepted := func(key string) bool {
		code, _ := s.ask("GET", "/v1/models", key, "")
		return code == http.StatusOK
	}
	replace := func(content string) {
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		s.send(syscall.SIGHUP)
	}
	require.True(t, accepted(clientKey) && !accepted(otherKey), "the keys at the start")
	replace(otherKey + "\nsh0rt\n")
	s.logged(path + ":2")
	assert.True(t, accepted(clientKey) && !accepted(otherKey), "the keys after a broken file")
	replace(otherKey + "\n")
	s.eventually("the new key is taken", func() bool { return accepted(otherKey) })
	assert.False(t, accepted(clientKey), "the old key")
	s.stop()
	for _, key := range []string{clientKey, otherKey, "sh0rt"} {
		assert.NotContains(t, s.logs.String(), key)
	}
	assert.Contains(t, s.logs.String(), "client_keys=1")
}

// A drain estimates its rest, once it has a pace.
func TestDrainLeft(t *testing.T) {
	for _, tt := range []struct {
		first, left int
		taken       time.Duration
		want        string
	}{
		{10, 10, 5 * time.Second, ""}, {10, 8, 500 * time.Millisecond, ""}, {10, 5, 10 * time.Second, ", about 10s left"},
		{4, 1, 90 * time.Second, ", about 30s left"}, {10, 0, time.Minute, ""}, {5, 7, time.Minute, ""},
	} {
		assert.Equal(t, tt.want, drainLeft(tt.first, tt.left, tt.taken), "%d of %d left after %v", tt.left, tt.first, tt.taken)
	}
}
