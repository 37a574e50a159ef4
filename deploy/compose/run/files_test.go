package main

import (
	"bytes"
	"maps"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// composeFile is as much of Compose's format as the files here use, by the names of its keys. What it
// lacks they must not use before both Compose 1.29 and 2 are known to take it.
type composeFile struct {
	Version           string
	Shared            map[string]any `yaml:",inline"` // x-NAME: what services have in common
	Services          map[string]service
	Networks, Volumes map[string]struct{}
}

type service struct {
	Image, Hostname, Restart                             string
	Build                                                build
	Entrypoint, Command, Ports, Volumes, Tmpfs, Profiles []string
	Environment                                          map[string]string
	Networks                                             networks
	DependsOn                                            []string `yaml:"depends_on"`
	ReadOnly                                             bool     `yaml:"read_only"`
	CapDrop                                              []string `yaml:"cap_drop"`
	SecurityOpt                                          []string `yaml:"security_opt"`
	StopGrace                                            string   `yaml:"stop_grace_period"`
	StopSignal                                           string   `yaml:"stop_signal"`
}

type build struct{ Context, Dockerfile, Target string }

// networks are a service's, by name, with the names that it has there besides its own.
type networks map[string][]string

func (n *networks) UnmarshalYAML(node *yaml.Node) error {
	*n = networks{}
	if node.Kind == yaml.SequenceNode {
		var names []string
		err := node.Decode(&names)
		for _, name := range names {
			(*n)[name] = nil
		}
		return err
	}
	var full map[string]struct {
		Aliases []string `yaml:"aliases"`
	}
	err := node.Decode(&full)
	for name, network := range full {
		(*n)[name] = network.Aliases
	}
	return err
}

// only reports whether a service is on one network alone, under its own name.
func (n networks) only(name string) bool {
	aliases, ok := n[name]
	return ok && len(n) == 1 && len(aliases) == 0
}

// read parses one file strictly.
func read(t *testing.T, name string) composeFile {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", name))
	require.NoError(t, err)
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	decoder.KnownFields(true)
	var f composeFile
	require.NoError(t, decoder.Decode(&f), "%s", name)
	for key := range f.Shared {
		assert.Regexp(t, "^x-", key, name)
	}
	return f
}

func TestComposeFile(t *testing.T) {
	f := read(t, "compose.yaml")
	want := append([]string{"gateway", "nats", "etcd"}, workerIDs...)
	assert.True(t, len(f.Services) == len(want) && f.Version == "3.8",
		"version %q, %d services, want 3.8 and %q", f.Version, len(f.Services), want)
	for _, name := range want {
		s, ok := f.Services[name]
		assert.True(t, ok && s.Networks.only("fleet") && len(s.Command) != 0, "%s: networks %q, command %q", name, s.Networks, s.Command)
		for _, volume := range s.Volumes {
			of, _, _ := strings.Cut(volume, ":")
			assert.Contains(t, f.Volumes, of, "%s: a volume that is not declared", name)
		}
		for _, other := range s.DependsOn {
			assert.Contains(t, f.Services, other, "%s depends on no service", name)
		}
	}
	for _, id := range workerIDs {
		s := f.Services[id]
		role, _, _ := strings.Cut(id, "-")
		line := strings.Join(s.Command, " ")
		assert.Equal(t, "worker --role "+role+" --id "+id+" --advertise-host "+id, line, "%s: command", id)
		assert.True(t, s.ReadOnly && slices.Equal(s.CapDrop, []string{"ALL"}) && s.Environment["TANDEM_WORKER_PORT"] == "8000",
			"%s: read_only %v, cap_drop %q, environment %q", id, s.ReadOnly, s.CapDrop, s.Environment)
	}
}

// Whatever file a service is in, its image is named by a variable and has a version, and what has ports has them on the
// loopback address.
func TestServicesAreReachedFromThisMachineAlone(t *testing.T) {
	published := append([]string{"gateway", "balancer", "prometheus", "grafana", "jaeger"}, gatewayIDs...)
	for _, file := range []string{"compose.yaml", "compose.observe.yaml", "compose.replicas.yaml"} {
		for id, s := range read(t, file).Services {
			if s.Image != "" && (!strings.HasPrefix(s.Image, "${TANDEM_") || !strings.HasSuffix(s.Image, "}") ||
				strings.Contains(s.Image, "latest")) {
				t.Errorf("%s: %s has the image %q", file, id, s.Image)
			}
			for _, port := range s.Ports {
				assert.True(t, slices.Contains(published, id) && strings.HasPrefix(port, "127.0.0.1:"),
					"%s: %s has the port %q", file, id, port)
			}
		}
	}
}

// The public servers are the versions that the stand-ins are built from, so that both answer alike.
func TestPublicImagesAreTheModulesVersions(t *testing.T) {
	mod, err := os.ReadFile("../../../go.mod")
	require.NoError(t, err)
	f := read(t, "compose.yaml")
	for name, module := range map[string]string{"nats": "github.com/nats-io/nats-server/v2", "etcd": "go.etcd.io/etcd/server/v3"} {
		version := regexp.MustCompile(regexp.QuoteMeta(module) + ` v([0-9.]+)\n`).FindSubmatch(mod)
		require.NotNil(t, version, "go.mod has no %s", module)
		if image := f.Services[name].Image; !strings.HasSuffix(strings.TrimSuffix(image, "}"), string(version[1])) {
			t.Errorf("%s: image %s, go.mod has %s", name, image, version[1])
		}
	}
}

// The overlay that observes mounts files that are there, has every worker and the gateway traced, and is reached from
// this machine alone.
func TestObserve(t *testing.T) {
	base, f := read(t, "compose.yaml"), read(t, "compose.observe.yaml")
	assert.Equal(t, base.Version, f.Version, "version")
	for _, id := range append([]string{"gateway"}, workerIDs...) {
		if e := f.Services[id].Environment; len(e) != 2 || e["OTEL_EXPORTER_OTLP_ENDPOINT"] == "" || e["OTEL_TRACES_SAMPLER"] == "" {
			t.Errorf("%s: %v", id, e)
		}
	}
	for _, name := range []string{"prometheus", "grafana", "jaeger"} {
		s := f.Services[name]
		if viewer := name != "prometheus"; viewer != slices.Equal(s.Profiles, []string{"viewers"}) || len(s.Ports) != 1 ||
			!s.Networks.only("fleet") {
			t.Errorf("%s: profiles %q, ports %q, networks %q", name, s.Profiles, s.Ports, s.Networks)
		}
		for _, v := range s.Volumes {
			from, to, _ := strings.Cut(v, ":")
			if _, err := os.Stat(filepath.Join("..", from)); err != nil || !strings.HasSuffix(to, ":ro") {
				t.Errorf("%s mounts %s: %v", name, v, err)
			}
		}
	}
}

// Behind the balancer stand three gateways that are alike. Requests and the servers have networks of their own, and
// nothing but the balancer and the gateways' administration has a port, on the loopback address.
func TestReplicas(t *testing.T) {
	base, f := read(t, "compose.yaml"), read(t, "compose.replicas.yaml")
	assert.True(t, f.Version == base.Version && slices.Equal(f.Services["gateway"].Profiles, []string{"single"}),
		"version %q, compose.yaml's gateway has the profiles %q", f.Version, f.Services["gateway"].Profiles)
	for _, id := range gatewayIDs {
		s, like := f.Services[id], f.Services[gatewayIDs[0]]
		like.Hostname = id
		if !reflect.DeepEqual(s, like) {
			t.Errorf("%s differs from %s by more than its name", id, gatewayIDs[0])
		}
		if _, ok := s.Networks["data"]; !ok || len(s.Networks) != 2 || !slices.Equal(s.Ports, []string{"127.0.0.1::9000"}) ||
			s.Image != base.Services["gateway"].Image || s.Restart != "unless-stopped" ||
			!s.ReadOnly || !slices.Equal(s.CapDrop, []string{"ALL"}) || s.StopGrace != base.Services["gateway"].StopGrace {
			t.Errorf("%s: %+v", id, s)
		}
	}
	if s := f.Services["balancer"]; !slices.Equal(s.Ports, append(slices.Clone(base.Services["gateway"].Ports), "127.0.0.1::8404")) ||
		!s.Networks.only("data") {
		t.Errorf("balancer: ports %q, networks %v", s.Ports, s.Networks)
	}
	for _, id := range workerIDs {
		if s, address := f.Services[id], id+".data"; !slices.Equal(s.Networks["data"], []string{address}) ||
			s.Command[len(s.Command)-1] != address {
			t.Errorf("%s: networks %v, command %q", id, s.Networks, s.Command)
		}
	}
	for _, server := range append(slices.Clone(natsServers), etcdMembers...) {
		first, _, _ := strings.Cut(server, "-")
		s := f.Services[server]
		if server != first && (s.Image != base.Services[first].Image || !s.Networks.only("fleet") ||
			!slices.Equal(s.Entrypoint, base.Services[first].Entrypoint)) {
			t.Errorf("%s: image %q, networks %v, entrypoint %q", server, s.Image, s.Networks, s.Entrypoint)
		}
		for _, id := range append(slices.Clone(gatewayIDs), workerIDs...) {
			servers := f.Services[id].Environment["TANDEM_ETCD_ENDPOINTS"] + f.Services[id].Environment["TANDEM_NATS_URL"]
			assert.Contains(t, servers, "://"+server+":", "%s does not know %s", id, server)
		}
	}
}

// The overlay with TLS uses every file of security. Each process has its own secrets alone, NATS knows every worker,
// and etcd's users are made by the names that processes give.
func TestSecure(t *testing.T) {
	f := read(t, "compose.secure.yaml")
	entries, err := os.ReadDir("../security")
	require.NoError(t, err)
	for _, e := range entries {
		used := path.Base(usersScript) == e.Name()
		for _, s := range f.Services {
			used = used || slices.Contains(s.Volumes, "./security/"+e.Name()+":/etc/"+e.Name()+":ro")
		}
		if !used {
			t.Errorf("nothing uses security/%s", e.Name())
		}
	}
	conf, err := os.ReadFile("../security/nats.conf")
	require.NoError(t, err)
	of := map[string]string{"nats-2": "nats", "nats-3": "nats", "etcd-2": "etcd", "etcd-3": "etcd"}
	for id, s := range f.Services {
		process := id
		if of[id] != "" {
			process = of[id]
		}
		if own := "${TANDEM_SECRETS:-./secrets}/" + process + ":/secrets:ro"; !slices.Contains(s.Volumes, own) || known()[process] == nil {
			t.Errorf("%s mounts %q, want %s", id, s.Volumes, own)
		}
		switch process {
		case "nats":
		case "etcd":
			assert.True(t, slices.Contains(known()["etcd"], id) && slices.Contains(s.Command, "--peer-client-cert-auth"),
				"%s: %q", id, s.Command)
		default:
			assert.True(t, strings.HasPrefix(s.Environment["TANDEM_ETCD_ENDPOINTS"], "https://"+process+"@etcd:2379,") &&
				s.Environment["TANDEM_CLIENT_CERT_FILE"] != "",
				"%s: %v", id, s.Environment)
			if name := known()[process][0]; !strings.Contains(string(conf), `user: "`+name+`"`) {
				t.Errorf("nats.conf has no entry for %s", name)
			}
		}
	}
	if base := read(t, "compose.replicas.yaml"); len(f.Services) != len(base.Services)-2 { // the balancer, and compose.yaml's gateway
		t.Errorf("%d services, compose.replicas.yaml has %d", len(f.Services), len(base.Services))
	}
}

// Secrets are made once: what is there stays.
func TestSecretsAreMadeOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "secrets")
	var first []byte
	for range 2 {
		require.NoError(t, makeSecrets(dir))
		key, err := os.ReadFile(filepath.Join(dir, "gateway-1", "tls.key"))
		assert.True(t, err == nil && (first == nil || bytes.Equal(key, first)), "another key than before, or none: %v", err)
		first = key
	}
	if config, err := trust(dir); err != nil || config.RootCAs == nil {
		t.Error(err)
	}
}

// Each overlay is used by a scenario, and changes only environments; but for
// the one of all and the one that finds etcd's leader, which publish ports.
func TestOverlays(t *testing.T) {
	base := read(t, "compose.yaml")
	services := maps.Clone(base.Services)
	maps.Copy(services, read(t, "compose.replicas.yaml").Services)
	entries, err := os.ReadDir("../scenarios")
	require.NoError(t, err)
	overlaid := map[string]bool{}
	for _, e := range entries {
		name := strings.TrimSuffix(e.Name(), ".yaml")
		overlaid[name] = true
		f := read(t, "scenarios/"+e.Name())
		assert.Equal(t, composeFile{Version: base.Version, Services: f.Services}, f, e.Name())
		for id, changed := range f.Services {
			assert.Contains(t, services, id, e.Name())
			if name == "books" || slices.Contains(etcdMembers, id) {
				changed.Ports = nil
			} else {
				changed.Environment = nil
			}
			assert.Equal(t, service{}, changed, "%s: %s changes more than it is for", name, id)
		}
	}
	used := map[string]bool{"books": true}
	for _, s := range scenarios() {
		if s.overlay != "" {
			used[s.overlay] = true
		}
	}
	assert.Equal(t, overlaid, used, "what the scenarios use")
}

// By itself `docker-compose up` builds every image that it does not find, under
// the names that `run --build` makes without a registry.
func TestOverride(t *testing.T) {
	base, f := read(t, "compose.yaml"), read(t, "compose.override.yaml")
	assert.True(t, f.Version == base.Version && len(f.Services) == len(base.Services),
		"version %q, %d services, compose.yaml has %q and %d", f.Version, len(f.Services), base.Version, len(base.Services))
	source := dockerfile(t, "../image/source.Dockerfile")
	for id, s := range f.Services {
		want := service{Build: build{Context: "../..", Dockerfile: "deploy/image/source.Dockerfile"}}
		if id == "nats" || id == "etcd" {
			want.Image, want.Build.Target = "tandem-"+id+":local", id
			assert.True(t, slices.ContainsFunc(source, func(line string) bool { return line == "FROM scratch AS "+id }),
				"source.Dockerfile has no target %s", id)
		}
		assert.Equal(t, want, s, "%s", id)
	}
}

// dockerfile is the instructions of one, without comments and blank lines.
func dockerfile(t *testing.T, name string) []string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("..", name))
	require.NoError(t, err)
	var lines []string
	for line := range strings.SplitSeq(string(data), "\n") {
		if line != "" && line[0] != '#' {
			lines = append(lines, line)
		}
	}
	return lines
}

// The image that is compiled in a container is the one around a binary from outside, file by file and word by word.
func TestSourceDockerfile(t *testing.T) {
	last := func(lines []string) (stage []string, files []string) {
		for _, line := range lines {
			switch words := strings.Fields(line); words[0] {
			case "FROM":
				stage, files = nil, nil
			case "COPY":
				to := words[len(words)-1]
				for _, from := range words[1 : len(words)-1] {
					switch {
					case from == "--chown=65532:65532":
						to += " of the user"
					case strings.HasPrefix(from, "--"):
					case strings.HasSuffix(to, "/"):
						files = append(files, to+path.Base(from))
					default:
						files = append(files, to)
					}
				}
			default:
				stage = append(stage, line)
			}
		}
		slices.Sort(files)
		return stage, files
	}
	stage, files := last(dockerfile(t, "../image/source.Dockerfile"))
	wantStage, wantFiles := last(dockerfile(t, "../../Dockerfile"))
	assert.Equal(t, wantStage, stage)
	assert.Equal(t, wantFiles, files)
	assert.Contains(t, stage, "USER 65532:65532", "the gateway's user is root, or no number")
}
