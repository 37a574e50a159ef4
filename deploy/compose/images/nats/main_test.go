package main

import (
	"flag"
	"os"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"go.yaml.in/yaml/v3"
)

// optionsOf are those that the server reads from a service's command in one of the Compose files.
func optionsOf(t *testing.T, file, service string) *server.Options {
	t.Helper()
	data, err := os.ReadFile("../../" + file)
	if err != nil {
		t.Fatal(err)
	}
	var f struct {
		Services map[string]struct{ Command []string }
	}
	if err := yaml.Unmarshal(data, &f); err != nil {
		t.Fatal(err)
	}
	options, err := server.ConfigureOptions(flag.NewFlagSet("nats", flag.ContinueOnError), f.Services[service].Command, nil, nil, nil)
	if err != nil {
		t.Fatalf("%s in %s: %v", service, file, err)
	}
	if options.Host != "0.0.0.0" || options.Port != 4222 {
		t.Errorf("%s in %s listens on %s:%d", service, file, options.Host, options.Port)
	}
	return options
}

// The server takes what compose.yaml tells it.
func TestCommandOfCompose(t *testing.T) {
	optionsOf(t, "compose.yaml", "nats")
	if err := serve([]string{"--no-such-flag"}); err == nil {
		t.Error("an unknown flag is taken")
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
