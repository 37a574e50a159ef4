package main

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// commandOf reads a service's command from one of the Compose files.
func commandOf(t *testing.T, file, service string) []string {
	t.Helper()
	data, err := os.ReadFile("../../" + file)
	require.NoError(t, err)
	var f struct {
		Services map[string]struct{ Command []string }
	}
	require.NoError(t, yaml.Unmarshal(data, &f))
	require.NotEmpty(t, f.Services[service].Command, "%s gives %s no command", file, service)
	return f.Services[service].Command
}

// The stand-in accepts compose.yaml's arguments for the public image.
func TestCommandOfCompose(t *testing.T) {
	cfg, err := configure(commandOf(t, "compose.yaml", "etcd"))
	require.NoError(t, err)
	if cfg.Dir != "/etcd-data" || cfg.Name != "tandem" || cfg.ListenClientUrls[0].Host != "0.0.0.0:2379" ||
		cfg.AdvertiseClientUrls[0].Host != "etcd:2379" || !strings.HasPrefix(cfg.InitialCluster, "tandem=") {
		t.Errorf("%+v", cfg)
	}
}

// Each member of the cluster takes its command line, is reached by its service's name and knows the other two.
func TestCommandsOfReplicas(t *testing.T) {
	for _, name := range []string{"etcd", "etcd-2", "etcd-3"} {
		cfg, err := configure(commandOf(t, "compose.replicas.yaml", name))
		require.NoError(t, err, "%s", name)
		peers := []string{"etcd=http://etcd:2380", "etcd-2=http://etcd-2:2380", "etcd-3=http://etcd-3:2380"}
		if cfg.Name != name || cfg.AdvertiseClientUrls[0].Host != name+":2379" || cfg.AdvertisePeerUrls[0].Host != name+":2380" ||
			cfg.ListenPeerUrls[0].Host != "0.0.0.0:2380" || cfg.InitialCluster != strings.Join(peers, ",") {
			t.Errorf("%s: %+v", name, cfg)
		}
	}
}

func TestRefusals(t *testing.T) {
	for _, c := range []struct{ args, contains string }{
		{"--discovery=http://x", "discovery"},
		{"extra", `"extra" is not a flag`},
		{"--listen-client-urls=http://0.0.0.0:2379", "both or neither"},
		{"--initial-cluster=etcd=http://etcd:2380", "all or none"},
		{"--listen-client-urls=etcd:2379 --advertise-client-urls=http://etcd:2379", "is not an http or https URL"},
		{"--auto-compaction-mode=never --auto-compaction-retention=1", "auto-compaction-mode"},
	} {
		if _, err := configure(strings.Fields(c.args)); err == nil || !strings.Contains(err.Error(), c.contains) {
			t.Errorf("%s: %v, want …%s…", c.args, err, c.contains)
		}
	}
}
