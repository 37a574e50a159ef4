package main

import (
	"flag"
	"os"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// optionsOf are those that the server reads from a service's command in one of the Compose files.
func optionsOf(t *testing.T, file, service string) *server.Options {
	t.Helper()
	data, err := os.ReadFile("../../" + file)
	require.NoError(t, err)
	var f struct {
		Services map[string]struct{ Command []string }
	}
	require.NoError(t, yaml.Unmarshal(data, &f))
	options, err := server.ConfigureOptions(flag.NewFlagSet("nats", flag.ContinueOnError), f.Services[service].Command, nil, nil, nil)
	require.NoError(t, err, "%s in %s", service, file)
	assert.True(t, options.Host == "0.0.0.0" && options.Port == 4222,
		"%s in %s listens on %s:%d", service, file, options.Host, options.Port)
	return options
}

// The server accepts compose.yaml's arguments.
func TestCommandOfCompose(t *testing.T) {
	optionsOf(t, "compose.yaml", "nats")
	assert.Error(t, serve([]string{"--no-such-flag"}), "an unknown flag is taken")
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
