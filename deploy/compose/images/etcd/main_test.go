package main

import (
	"os"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// commandOf reads a service's command from compose.yaml.
func commandOf(t *testing.T, service string) []string {
	t.Helper()
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
	if len(f.Services[service].Command) == 0 {
		t.Fatalf("compose.yaml gives %s no command", service)
	}
	return f.Services[service].Command
}

// The stand-in takes what compose.yaml tells the public image.
func TestCommandOfCompose(t *testing.T) {
	cfg, err := configure(commandOf(t, "etcd"))
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Dir != "/etcd-data" || cfg.Name != "tandem" || cfg.ListenClientUrls[0].Host != "0.0.0.0:2379" ||
		cfg.AdvertiseClientUrls[0].Host != "etcd:2379" || !strings.HasPrefix(cfg.InitialCluster, "tandem=") {
		t.Errorf("%+v", cfg)
	}
}

func TestRefusals(t *testing.T) {
	for _, c := range []struct{ args, says string }{
		{"--discovery=http://x", "discovery"},
		{"extra", `"extra" is not a flag`},
		{"--listen-client-urls=http://0.0.0.0:2379", "both or neither"},
		{"--listen-client-urls=etcd:2379 --advertise-client-urls=http://etcd:2379", "is not an http URL"},
		{"--auto-compaction-mode=never --auto-compaction-retention=1", "auto-compaction-mode"},
	} {
		if _, err := configure(strings.Fields(c.args)); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v, want …%s…", c.args, err, c.says)
		}
	}
}
