package main

import (
	"flag"
	"os"
	"testing"

	"github.com/nats-io/nats-server/v2/server"
	"go.yaml.in/yaml/v3"
)

// The server takes what compose.yaml tells it.
func TestCommandOfCompose(t *testing.T) {
	data, err := os.ReadFile("../../compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var f struct {
		Services map[string]struct{ Command []string }
	}
	if err := yaml.Unmarshal(data, &f); err != nil {
		t.Fatal(err)
	}
	options, err := server.ConfigureOptions(flag.NewFlagSet("nats", flag.ContinueOnError), f.Services["nats"].Command, nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if options.Host != "0.0.0.0" || options.Port != 4222 {
		t.Errorf("it listens on %s:%d", options.Host, options.Port)
	}
	if err := serve([]string{"--no-such-flag"}); err == nil {
		t.Error("an unknown flag is taken")
	}
}
