package main

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// TestMain is etcd where a test starts this binary under that name.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "etcd" {
		main()
		return
	}
	os.Exit(m.Run())
}

// commandOf reads a service's command from one of the Compose files.
func commandOf(t *testing.T, file, service string) []string {
	t.Helper()
	data, err := os.ReadFile("../" + file)
	require.NoError(t, err)
	var f struct {
		Services map[string]struct{ Command []string }
	}
	require.NoError(t, yaml.Unmarshal(data, &f))
	require.NotEmpty(t, f.Services[service].Command, "%s gives %s no command", file, service)
	return f.Services[service].Command
}

// optionsOf are those that the server reads from a service's command in one of the Compose files.
func optionsOf(t *testing.T, file, service string) *server.Options {
	t.Helper()
	options, err := server.ConfigureOptions(flag.NewFlagSet("nats", flag.ContinueOnError), commandOf(t, file, service), nil, nil, nil)
	require.NoError(t, err, "%s in %s", service, file)
	assert.True(t, options.Host == "0.0.0.0" && options.Port == 4222,
		"%s in %s listens on %s:%d", service, file, options.Host, options.Port)
	return options
}

// The server accepts compose.yaml's arguments.
func TestCommandOfCompose(t *testing.T) {
	optionsOf(t, "compose.yaml", "nats")
	assert.Error(t, serveNATS([]string{"--no-such-flag"}), "an unknown flag is taken")
}

// etcd has the flags that the Compose files pass.
func TestCommandsOfEtcd(t *testing.T) {
	itself, err := os.Executable()
	require.NoError(t, err)
	help, err := (&exec.Cmd{Path: itself, Args: []string{"etcd", "--help"}}).CombinedOutput()
	require.NoError(t, err, "%s", help)
	for service, file := range map[string]string{"etcd": "compose.yaml", "etcd-2": "compose.replicas.yaml", "etcd-3": "compose.secure.yaml"} {
		for _, arg := range commandOf(t, file, service) {
			if name, _, _ := strings.Cut(arg, "="); strings.HasPrefix(name, "--") {
				assert.Contains(t, string(help), "\n  "+name+" ", "%s in %s", service, file)
			}
		}
	}
}

// Each server of the cluster listens for the others and has a route to all three.
func TestCommandsOfReplicas(t *testing.T) {
	for _, name := range []string{"nats", "nats-2", "nats-3"} {
		o := optionsOf(t, "compose.replicas.yaml", name)
		if o.Cluster.Name != "tandem" || o.Cluster.Port != 6222 || len(o.Routes) != 3 || o.Routes[2].Host != "nats-3:6222" {
			t.Errorf("%s: cluster %+v, routes %v", name, o.Cluster, o.Routes)
		}
	}
}
