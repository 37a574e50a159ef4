package main

import (
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/tandem-pd/tandem/lab/devfleet"
	"github.com/tandem-pd/tandem/lab/engine"
)

func TestCommandLine(t *testing.T) {
	t.Parallel()
	lines(t, nil, "", []line{
		{"", exitUsage, "Usage: gateway"},
		{"--version", exitOK, "(revision "},
		{"version", exitOK, "(revision "},
		{"dve", exitUsage, `no command "dve"; the nearest is dev`},
		{"nonsense", exitUsage, "no command \"nonsense\"\n"},
		{"help", exitOK, "gateway help COMMAND"},
		{"help dev", exitOK, "--speedup"},
		{"help version", exitOK, "(revision "},
		{"help dve", exitUsage, `no command "dve"`},
		{"dev --speedpu 2", exitUsage, "--speedup"},
		{"dev now", exitUsage, `"now"`},
		{"dev --etcd-endpoints 127.0.0.1:2379", exitUsage, "etcd-endpoints"},
		{"dev --decode 0", exitUsage, "--decode"},
		{"dev --remote-index-url http://index:8090", exitUsage, "remote-index-url"},
		{"dev --fault-scenario f.yaml", exitUsage, "no such file"},
		{"dev --router-policy-config classes.yaml", exitUsage, "no such file"},
		{"serve --router-policy-config classes.yaml", exitUsage, "router-policy-config"},
		{"select --token-file missing", exitUsage, "token-file"},
		{"worker --role both --block-size 0", exitUsage, "block-size"},
	})
	for environ, of := range map[string]line{
		"DYN_SOMETHING_ELSE=1 DYN_ROUTER_MODE=round_robin": {"config", exitOK, "router-mode: round-robin  # env DYN_ROUTER_MODE"},
		"DYN_SOMETHING_ELSE=1":                             {"config", exitOK, "DYN_SOMETHING_ELSE is no setting here"},
		"DYN_ROUTER_MOD=kv":                                {"config", exitOK, "DYN_ROUTER_MOD (the nearest is DYN_ROUTER_MODE)"},
		"DYN_TCP_TLS_CA_PATH=ca.pem":                       {"config", exitUsage, "DYN_TCP_TLS_CA_PATH: there is no such setting here"},
	} {
		lines(t, strings.Fields(environ), "", []line{of})
	}
}

// TestSmokeOfEachEngine: dev starts a fleet of each engine that a worker can be, and prefill hands over to decode in it.
func TestSmokeOfEachEngine(t *testing.T) {
	t.Parallel()
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
	require.Equal(t, choices(engine.Config{}), engines, "the engines of dev, and of a worker")
	for _, name := range engines {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lines(t, nil, "dev --smoke --in-process --durable-kv-events --speedup 50 --prefill 1 --decode 1",
				[]line{{"--engine " + name, exitOK, "all well"}})
		})
	}
}

// The night it must not wake anybody: kill -9 on one worker of each role, a
// graceful stop of another, all answers whole; then kill -9 on the fleet itself,
// which takes its children with it.
func TestRealDeaths(t *testing.T) {
	t.Parallel()
	f := startFleet(t, "--prefill", "3", "--speedup", "20", "--lease-ttl", "2s", "--no-restart")
	for _, id := range []string{"prefill-1", "decode-1"} {
		f.signal(id, syscall.SIGKILL)
		// No request has found it dead, and it stays down until its lease ends.
		f.eventually(id+" is down", func() bool { return slices.Contains([]string{"down", "lost"}, f.state(id)) })
	}
	for range 8 {
		p, d, err := f.complete("", "Hello", 4)
		require.NoError(t, err)
		assert.NotEqual(t, "prefill-1", p)
		assert.Equal(t, "decode-2", d)
	}
	for _, id := range []string{"prefill-1", "decode-1"} {
		f.eventually(id+" is lost with its lease", func() bool {
			state := f.state(id)
			require.NotEqual(t, "up", state, "%s is dead", id)
			return state == "lost"
		})
	}

	// A worker that stops well finishes what it has, and no client gets an error.
	f.streams(prompts("Long", 4), 1000, 1, func() {
		f.signal("prefill-2", syscall.SIGTERM)
		f.eventually("the stopped worker has deregistered", func() bool { return f.state("prefill-2") == "" })
	})
	f.served("prefill-3", "decode-2")
	f.kill()
	for _, id := range []string{"prefill-3", "decode-2"} {
		f.eventually(id+" has ended", func() bool { return gone(f.pids[id]) })
	}
}

// Streams in mid-answer continue on the other decode worker, token for token, where theirs is frozen and where it is killed. A frozen one
// keeps its connections and sends nothing; when it wakes, it finds them closed and forgets its requests. A killed one is down at once,
// and back a moment later as another process, which the table says. One that was asked to stop stays away, and another joins by
// the line that dev printed.
func TestKilledWorkersComeBack(t *testing.T) {
	t.Parallel()
	f := startFleet(t, "--prefill", "1", "--decode", "2", "--speedup", "10", "--http-host", "0.0.0.0", "--discovery-prefix", "/elsewhere",
		"--stream-idle-timeout", "1s", "--lease-ttl", "60s")
	first := f.out.String()
	if !strings.HasPrefix(f.url, "http://127.0.0.1:") || strings.Contains(first, "[::]") || strings.Contains(first, "0.0.0.0") {
		t.Errorf("it listens everywhere, and its URL is no client's:\n%s", first)
	}
	f.breakDecode("Frozen", 300, syscall.SIGSTOP)
	f.signal("decode-1", syscall.SIGCONT)
	f.nothingHeld(false)
	f.up("decode-1")
	f.breakDecode("Killed", 300, syscall.SIGKILL)
	f.signal("prefill-1", syscall.SIGKILL)
	f.restarted("decode-1")
	f.restarted("prefill-1")
	f.nothingHeld(false)

	_, line, _ := strings.Cut(first, "Add a worker:\n")
	line, _, _ = strings.Cut(line, "\n")
	_, args, _ := strings.Cut(line, " worker ")
	startWorker(t, strings.Fields(args)...)
	f.up("decode-3")
	f.signal("decode-1", syscall.SIGTERM)
	f.signal("decode-2", syscall.SIGTERM)
	for _, id := range []string{"decode-1", "decode-2"} {
		f.eventually(id+" has left, and its process has ended", func() bool { return f.state(id) == "" && gone(f.pids[id]) })
	}
	f.logged("not restarted")
	f.served("prefill-1", "decode-3")
	f.stop()
	log := f.logs.String()
	assert.Equal(t, 2, strings.Count(log, "restarting"), "restarts")
	assert.Contains(t, log, `"worker ended" worker=prefill-1`)
	assert.Contains(t, log, `"worker ended" worker=decode-1`)
}
