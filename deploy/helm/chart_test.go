package helm

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"
)

const chartFolder = "tandem"

// TestLinks: the alerts and the dashboard in the chart are links, which Helm follows where it installs or packs a
// folder.
func TestLinks(t *testing.T) {
	found := map[string]string{}
	for _, f := range load(t).Files {
		found[f.Name] = string(f.Data)
	}
	for own, of := range map[string]string{"alerts.yaml": "alerts.yaml", "dashboard.json": "tandem.json"} {
		want, err := os.ReadFile(filepath.Join("..", "grafana", of))
		require.NoError(t, err)
		assert.Equal(t, string(want), found["files/"+own], "files/%s is not deploy/grafana/%s", own, of)
	}
}

func load(t *testing.T) *chart.Chart {
	t.Helper()
	c, err := loader.LoadDir(chartFolder)
	require.NoError(t, err)
	return c
}

// render is `helm template demo tandem --namespace serving` with values.
func render(t *testing.T, values map[string]any) (string, error) {
	t.Helper()
	files, err := rendered(t, values)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if text := strings.TrimSpace(files[name]); strings.HasSuffix(name, ".yaml") && text != "" {
			fmt.Fprintf(&b, "---\n# Source: %s\n%s\n", name, strings.TrimSpace(strings.TrimPrefix(text, "---")))
		}
	}
	return b.String(), nil
}

// manifest is render with values that are right.
func manifest(t *testing.T, values map[string]any) string {
	t.Helper()
	text, err := render(t, values)
	require.NoError(t, err)
	return text
}

// rendered is every file of the chart with values, NOTES.txt among them.
func rendered(t *testing.T, values map[string]any) (map[string]string, error) {
	t.Helper()
	c := load(t)
	top, err := chartutil.ToRenderValues(c, values,
		chartutil.ReleaseOptions{Name: "demo", Namespace: "serving", Revision: 1, IsInstall: true}, chartutil.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	return engine.Render(c, top)
}

// examples are the values files that ship with the chart, by name, and the chart's own values as "default".
func examples(t *testing.T) map[string]map[string]any {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(chartFolder, "examples", "*.yaml"))
	if err != nil || len(files) < 5 {
		t.Fatalf("%d examples, %v", len(files), err)
	}
	all := map[string]map[string]any{"default": {}}
	for _, file := range files {
		values, err := chartutil.ReadValuesFile(file)
		require.NoError(t, err)
		all[strings.TrimSuffix(filepath.Base(file), ".yaml")] = values
	}
	return all
}

func TestLint(t *testing.T) {
	for name, values := range examples(t) {
		for _, m := range lint.All(chartFolder, values, "serving", true).Messages {
			if m.Severity > support.InfoSev {
				t.Errorf("%s: %v", name, m)
			}
		}
	}
}

// How engines are started, as their documents have it.
const (
	vllm       = "vllm serve Qwen/Qwen3-32B --port=8000 --enable-prompt-tokens-details "
	vllmP      = `--kv-transfer-config={"kv_connector":"NixlConnector","kv_role":"kv_producer","kv_load_failure_policy":"fail"} `
	vllmD      = `--kv-transfer-config={"kv_connector":"NixlConnector","kv_role":"kv_consumer","kv_load_failure_policy":"fail"} `
	vllmEvents = `--kv-events-config={"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5558"}`
	sglang     = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-32B --host=0.0.0.0 --port=30000 --page-size=64 --enable-cache-report --disaggregation-mode="
	sglangP    = "prefill --disaggregation-transfer-backend=nixl --disaggregation-bootstrap-port=8998 --kv-events-config=" +
		`{"publisher":"zmq","endpoint":"tcp://*:5557","replay_endpoint":"tcp://*:5558","topic":"kv-events"}`
	trtllm = "trtllm-serve Qwen/Qwen3-32B --host=0.0.0.0 --port=8000 --extra_llm_api_options=/etc/tandem/engine/options.yaml"
)

// Each example has the objects that its description promises and starts its engines as their makers do; a cluster would
// take it, and the gateway its settings.
func TestExamples(t *testing.T) {
	const (
		gateway = "ConfigMap -gateway, Deployment -gateway, PodDisruptionBudget -gateway, Service , ServiceAccount "
		pods    = ", Role -gateway, RoleBinding -gateway"
		pools   = ", Deployment -decode, Deployment -prefill, PodDisruptionBudget -decode, PodDisruptionBudget -prefill"
	)
	expected := map[string]struct {
		objects string
		starts  []string // of engines
		has     []string
	}{
		"default":           {gateway + pods, nil, []string{"replicas: 1", "kubernetes-selector: tandem.dev/fleet=demo-tandem"}},
		"engines-elsewhere": {gateway + pods, nil, []string{"kubernetes-selector: models:llm-d.ai/inference-serving=true"}},
		"vllm": {gateway + pods + pools, []string{vllm + vllmP + vllmEvents + " --tensor-parallel-size=2",
			vllm + vllmD + vllmEvents + " --tensor-parallel-size=2"}, []string{"tandem.dev/role: decode", "name: VLLM_NIXL_SIDE_CHANNEL_HOST",
			"{name: shm, mountPath: /dev/shm}", `preStop: {exec: {command: [sleep, "30"]}}`, "failureThreshold: 360",
			"terminationGracePeriodSeconds: 90"}},
		"sglang": {gateway + pods + pools, []string{sglang + sglangP, sglang + "decode --disaggregation-transfer-backend=nixl"}, nil},
		"trtllm": {gateway + pods + pools + ", ConfigMap -decode, ConfigMap -prefill", []string{trtllm},
			[]string{"disable_overlap_scheduler: true", "max_tokens_in_buffer: 32768",
				`tandem.dev/options: "block-size=32,context-length=40960,kv-events=none"`}},
		"registry": {gateway + ", Deployment -etcd, Service -etcd, Deployment -nats, Service -nats, Deployment -sglang-both, Deployment -vllm-prefill, " +
			"PodDisruptionBudget -sglang-both, PodDisruptionBudget -vllm-prefill, NetworkPolicy -etcd, NetworkPolicy -gateway, NetworkPolicy -nats, NetworkPolicy -pools", nil, nil},
		"replicas": {gateway + pods + pools + ", Service -peers, Service -metrics, ServiceMonitor -gateway, NetworkPolicy -gateway, NetworkPolicy -pools", []string{vllm + vllmP + vllmEvents, vllm + vllmD + vllmEvents},
			[]string{"replicas: 3", "publishNotReadyAddresses: true"}},
		"certificates": {gateway + ", Service -metrics, ServiceMonitor -gateway, Deployment -vllm, PodDisruptionBudget -vllm", nil, []string{
			"tcpSocket: {port: http}", "--url=https://$(POD_IP):8000",
			"--etcd-endpoints=https://worker@etcd-0.etcd:2379,https://worker@etcd-1.etcd:2379", "--client-key-file=/etc/tandem/nats-tls/tls.key"}},
		"production": {gateway + pods + pools +
			", Service -peers, Service -metrics, HorizontalPodAutoscaler -decode, HorizontalPodAutoscaler -gateway, HTTPRoute , NetworkPolicy -gateway, " +
			"NetworkPolicy -pools, PrometheusRule , ScaledObject -prefill, ServiceMonitor -gateway",
			[]string{vllm + vllmP + vllmEvents + " --tensor-parallel-size=2", vllm + vllmD + vllmEvents + " --tensor-parallel-size=2"},
			[]string{"@sha256:0000", "client-hints: priority<=100", "timeouts: {request: 0s}", "terminationGracePeriodSeconds: 325",
				`query: sum(tandem_desired_workers{namespace="serving",model="Qwen/Qwen3-32B",role="prefill"})`}},
	}
	for name, values := range examples(t) {
		t.Run(name, func(t *testing.T) {
			text := manifest(t, values)
			found, printed := settingsWrongs(t, text)
			assert.Empty(t, append(wrongs(text), found...))
			assert.Equal(t, "0.0.0.0", valueOf(printed, "http-host"), "the gateway printed\n%s", printed)
			wants(t, text, "demo-tandem", expected[name].objects, expected[name].starts, expected[name].has)
		})
	}
}

// wants checks that a manifest has exactly these objects, whose names begin alike, that each engine is started by one of some commands, where
// there are any, and that it has some lines.
func wants(t *testing.T, text, prefix, named string, starts, has []string) {
	t.Helper()
	var got []string
	for _, o := range objects(t, text).all {
		got = append(got, o.(schema.ObjectKind).GroupVersionKind().Kind+" "+strings.TrimPrefix(o.GetName(), prefix))
		d, ok := o.(*appsv1.Deployment)
		if !ok || len(starts) == 0 {
			continue
		}
		for _, c := range d.Spec.Template.Spec.Containers {
			if command := strings.Join(append(c.Command, c.Args...), " "); c.Name == "engine" && !slices.Contains(starts, command) {
				t.Errorf("%s starts %s", d.Name, command)
			}
		}
	}
	assert.ElementsMatch(t, strings.Split(named, ", "), got, "objects")
	for _, line := range has {
		assert.Contains(t, text, line)
	}
}

// set is values with one more, at a path with dots.
func set(values map[string]any, path string, value any) map[string]any {
	copied := map[string]any{}
	raw, err := yaml.Marshal(values)
	if err := errors.Join(err, yaml.Unmarshal(raw, &copied)); err != nil {
		panic(err) // it was YAML
	}
	at := copied
	keys := strings.Split(path, ".")
	for _, key := range keys[:len(keys)-1] {
		next, ok := at[key].(map[string]any)
		if !ok {
			next = map[string]any{}
			at[key] = next
		}
		at = next
	}
	at[keys[len(keys)-1]] = value
	return copied
}

// Values that the chart does not know, or that cannot be, are refused with a word on where; so is what cannot go with
// several gateways, with TLS, or with a network whose limits cut engines off.
func TestWrongValuesAreRefused(t *testing.T) {
	all := examples(t)
	all["limited"] = set(all["vllm"], "networkPolicy.enabled", true)
	all["limits that cut off"] = set(all["limited"], "discovery.selector", "app=llm")
	for _, tt := range []struct {
		example, path string
		value         any
		want          string
	}{
		{"vllm", "gatway", map[string]any{}, "gatway"},
		{"vllm", "gateway.replica", 2, "replica"},
		{"vllm", "gateway.replicas", "two", "replicas"},
		{"vllm", "gateway.admin.port", 70000, "port"},
		{"vllm", "image.digest", "latest", "digest"},
		{"vllm", "discovery.mode", "consul", "mode"},
		{"vllm", "pools.prefill.rolle", "prefill", "rolle"},
		{"vllm", "pools.prefill.role", "router", "role"},
		{"vllm", "pools.prefill.engine", "ollama", "engine"},
		{"vllm", "pools.Prefill", map[string]any{"role": "both", "engine": "custom", "image": "x:1"}, "Prefill"},
		{"vllm", "pools.lone", map[string]any{"role": "both", "engine": "vllm"}, "image"},
		{"vllm", "pools.prefill.autoscaling", map[string]any{"kind": "keda"}, "KEDA asks Prometheus"},
		{"vllm", "pools.prefill.model", "", "needs model"},
		{"vllm", "discovery.mode", "etcd", "needs etcd.endpoints"},
		{"vllm", "gateway.config", map[string]any{"drain-timeout": "1m"}, "gateway.drainSeconds"},
		{"vllm", "gateway.admin.enabled", true, "every pod could cordon workers"},
		{"vllm", "gateway.httpRoute.enabled", true, "names the Gateway"},
		{"vllm", "gateway.peers.existingSecret", "s", "gateway.tls.existingSecret"},
		{"vllm", "gateway.tls.clientCA.existingSecret", "s", "gateway.tls.existingSecret"},
		{"vllm", "gateway.tls.secret", "s", "secret"},
		{"vllm", "gateway.workerTLS", map[string]any{"existingSecret": "s", "key": ""}, "private key"},
		{"vllm", "nats", map[string]any{"enabled": true, "tls": map[string]any{"existingSecret": "s"}}, "has neither TLS nor users"},
		{"vllm", "nats", map[string]any{"url": "nats://bus:4222", "creds": map[string]any{"existingSecret": "s", "key": ""}}, "key"},
		{"vllm", "pools.prefill.scheme", "https", "discovery.mode etcd"},
		{"vllm", "pools.prefill.scheme", "tcp", "scheme"},
		{"replicas", "nats", map[string]any{"enabled": true}, "a NATS in common"},
		{"replicas", "gateway.tls.existingSecret", "", "gateway.peers needs gateway.tls.existingSecret"},
		{"replicas", "gateway.tls.clientCA.existingSecret", "ca", ""}, // Prometheus has a certificate in its Secret
		{"certificates", "gateway.workerTLS.cert", "tls.crt", "are shown one certificate"},
		{"certificates", "serviceMonitor.tls.existingSecret", "", "/metrics needs a certificate"},
		{"certificates", "etcd.auth.user", "", "etcd.auth.user"},
		{"certificates", "etcd.endpoints", []any{}, "etcd.endpoints"},
		{"registry", "etcd.auth", map[string]any{"existingSecret": "s", "user": "u"}, "the etcd that the chart runs"},
		{"limited", "gateway.replicas", 1, ""},
		{"limits that cut off", "gateway.replicas", 1, "networkPolicy.extraEgress"},
		{"limits that cut off", "networkPolicy.extraEgress", everywhere, ""},
	} {
		_, err := render(t, set(all[tt.example], tt.path, tt.value))
		if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s with %s: %v gives %v, want %q", tt.example, tt.path, tt.value, err, tt.want)
		}
	}
}

// everywhere is a rule by which a gateway may reach everything.
var everywhere = []any{map[string]any{"to": []any{map[string]any{"ipBlock": map[string]any{"cidr": "0.0.0.0/0"}}}}}

// Each value has its documented effect.
func TestValues(t *testing.T) {
	all := examples(t)
	for _, tt := range []struct {
		example, path string
		value         any
		want, not     string
	}{
		{"vllm", "grafanaDashboard.enabled", true, `"uid": "tandem-gateway"`, ""},
		{"vllm", "fullnameOverride", "llm", "tandem.dev/fleet: llm", "demo-tandem"},
		{"vllm", "serviceAccount", map[string]any{"create": false, "name": "ours"}, "serviceAccountName: ours", "kind: ServiceAccount\nmetadata"},
		{"vllm", "discovery.mode", "none", "automountServiceAccountToken: false", "kind: Role\n"},
		{"vllm", "pools.prefill.replicas", 0, "replicas: 0", ""},
		{"vllm", "pools.prefill.podDisruptionBudget", map[string]any{"enabled": false}, "",
			"PodDisruptionBudget\nmetadata:\n  name: demo-tandem-prefill"},
		{"vllm", "pools.prefill.args", []any{"serve-this"}, "- serve-this\n", ""},
		{"vllm", "gateway.extraArgs", []any{"--log-level=debug"}, `- "--log-level=debug"`, ""},
		{"vllm", "imagePullSecrets", []any{map[string]any{"name": "pull"}}, "- name: pull", ""},
		{"registry", "etcd", map[string]any{"endpoints": []any{"https://etcd-0:2379", "https://etcd-1:2379"}},
			"--etcd-endpoints=https://etcd-0:2379,https://etcd-1:2379", "quay.io/coreos/etcd"},
		{"registry", "nats", map[string]any{"enabled": false}, "router-kv-events: false", "nats-url"},
		{"vllm", "nats.url", "nats://bus:4222", "nats-url: nats://bus:4222", ""}, // for the group alone
		{"vllm", "nats.enabled", true, "image: docker.io/library/nats", "tandem.dev/fleet: demo-tandem\n      ports:\n        - {port: 4222}"},
		{"vllm", "gateway.config", map[string]any{"tls-cert-file": "/own/tls.crt", "tls-key-file": "/own/tls.key"}, "scheme: HTTPS",
			"path: /live, port: http}"},
		{"vllm", "gateway.workerTLS", map[string]any{"existingSecret": "engines", "cert": ""},
			"worker-ca-file: /etc/tandem/worker-tls/ca.crt", "client-cert-file"},
		{"vllm", "gateway.tls.existingSecret", "pair", "scheme: HTTPS", "replica-peers"},
		{"production", "gateway.tls.existingSecret", "pair", "serverName: demo-tandem.serving.svc", "appProtocol: http}"},
		{"production", "nats.url", "nats://bus:4222", "# The other gateways.\n", ""},
		{"replicas", "gateway.peers.existingSecret", "", "replicas: 3", "6222"},
		{"replicas", "networkPolicy.enabled", false, "publishNotReadyAddresses: true", "NetworkPolicy"},
		{"certificates", "etcd.attach", map[string]any{"auth": map[string]any{"existingSecret": ""},
			"tls": map[string]any{"existingSecret": ""}}, "https://gateway@etcd-1.etcd:2379", "worker-etcd"},
		{"certificates", "nats.creds.existingSecret", "nsc", "nats-creds: /etc/tandem/nats-creds/user.creds", "--nats-creds"},
		{"certificates", "pools.vllm.scheme", "http", "--url=http://$(POD_IP):8000", "--worker-ca-file"},
		{"production", "gateway.admin.port", 9200, "admin-address: 0.0.0.0:9200", "9090}"},
	} {
		text, err := render(t, set(set(sharing(all[tt.example], tt.path), "networkPolicy.extraEgress", everywhere), tt.path, tt.value))
		if err != nil || !strings.Contains(text, tt.want) || tt.not != "" && strings.Contains(text, tt.not) {
			t.Errorf("%s with %s: %v: %v, lacks %q or has %q", tt.example, tt.path, tt.value, err, tt.want, tt.not)
		}
		if tt.path == "serviceAccount" {
			continue // which is not the chart's then
		}
		assert.Empty(t, wrongs(text), "%s with %s: %v", tt.example, tt.path, tt.value)
	}
}

// What an operator reads after the installation is true of it.
func TestNotes(t *testing.T) {
	for _, tt := range []struct {
		example, path string
		value         any
		want, not     string
	}{
		{"vllm", "gateway.replicas", 1, "http://demo-tandem.serving.svc/v1/chat/completions", "each books for itself"},
		{"vllm", "gateway.replicas", 2, "each books for itself", "https"},
		{"vllm", "gateway.autoscaling.enabled", true, "each books for itself", ""},
		{"production", "nats.enabled", true, "curl --insecure https://localhost:8000/health", "each books for itself"},
		{"production", "gateway.peers.existingSecret", "", "each books for itself", ""},
		{"production", "gateway.tls.existingSecret", "pair", "BackendTLSPolicy for service demo-tandem", "http://"},
		{"replicas", "gateway.service.port", 443, "https://demo-tandem.serving.svc/v1", "each books for itself"},
		{"replicas", "gateway.service.port", 8443, "https://demo-tandem.serving.svc:8443/v1", "BackendTLSPolicy"},
		{"certificates", "gateway.replicas", 2, "-- /gateway health --config", "curl"},
	} {
		files, err := rendered(t, set(set(sharing(examples(t)[tt.example], tt.path), "networkPolicy.extraEgress", everywhere), tt.path, tt.value))
		if notes := files["tandem/templates/NOTES.txt"]; err != nil || !strings.Contains(notes, tt.want) || tt.not != "" &&
			strings.Contains(notes, tt.not) {
			t.Errorf("%s with %s: %v: %v, lacks %q or has %q:\n%s", tt.example, tt.path, tt.value, err, tt.want, tt.not, notes)
		}
	}
}

// sharing is values without gateway.peers where a path is of a NATS that the gateways have in common: one of the two is
// set.
func sharing(values map[string]any, path string) map[string]any {
	if strings.HasPrefix(path, "nats.") {
		return set(values, "gateway.peers.existingSecret", "")
	}
	return values
}

// Each mistake that a cluster or the gateway would object to is found: a name that is wrong, a reference that leads
// nowhere, a way of asking the gateway in which it does not answer, a file that is not mounted, a setting or a flag
// that is made up.
func TestMistakesAreFound(t *testing.T) {
	texts := map[string]string{}
	for _, name := range []string{"production", "replicas", "certificates", "registry"} {
		texts[name] = manifest(t, examples(t)[name])
	}
	assert.NotContains(t, texts["production"], "replicas: 1", "a deployment that is scaled has replicas")
	for _, tt := range []struct{ example, old, new, want string }{
		{"production", "kind: PodDisruptionBudget", "kind: PodDisruptionBudgets", "none of the kinds"},
		{"production", "automountServiceAccountToken: true", "automountServiceAccountTokn: true", "automountServiceAccountTokn"},
		{"production", "memory: 4Gi", "memory: 4GB", "quantities must match"},
		{"production", "path: /health, port: http", "path: /health, port: web", `asks port "web"`},
		{"production", "kind: Deployment, name: demo-tandem-gateway", "kind: Deployment, name: demo-gateway", `scales "demo-gateway"`},
		{"production", "targetPort: http", "targetPort: web", "leads to web"},
		{"production", "name: config, mountPath", "name: confg, mountPath", "is no volume"},
		{"production", "configMap: {name: demo-tandem-gateway}", "configMap: {name: demo-gateway}", "no config map demo-gateway"},
		{"production", "containerName: gateway", "containerName: gate", "of another container"},
		{"production", "@sha256:", ".", "no tag of its own"},
		{"production", "allowPrivilegeEscalation: false", "allowPrivilegeEscalation: true", "may more than it needs"},
		{"production", "serviceAccountName: demo-tandem", "serviceAccountName: other", "no service account other"},
		{"production", "containerPort: 5557", "containerPort: 8000", "is engine already"},
		{"replicas", "path: /live, port: http, scheme: HTTPS", "path: /live, port: http", "probe asks by"},
		{"replicas", "appProtocol: https}\n---\n# By", "appProtocol: http}\n---\n# By", "is said to be http"},
		{"replicas", "scheme: https\n", "scheme: http\n", "scrapes by http"},
		{"replicas", "{name: peers, mountPath: /etc/tandem/peers, readOnly: true}",
			"{name: peers, mountPath: /elsewhere, readOnly: true}", "/etc/tandem/peers/password is not mounted"},
		{"certificates", "exec: {command: [/gateway, health, --config=/etc/tandem/gateway/gateway.yaml]}",
			"httpGet: {path: /health, port: http, scheme: HTTPS}", "without a certificate"},
		{"certificates", "        cert: {secret: {name: tandem-scrape, key: tls.crt}}\n", "", "shows no certificate"},
		{"production", "    client-hints: ", "    client-hint: ", "the nearest is client-hints"},
		{"production", "--config=", "--confg=", "the nearest is --config"},
		{"registry", "--attach-drain=", "--attach-drein=", "is no flag of gateway attach"},
		{"certificates", "mountPath: /etc/tandem/etcd-auth", "mountPath: /etc/tandem/etcd", "/etc/tandem/etcd-auth/password is not mounted"},
	} {
		assert.Contains(t, texts[tt.example], tt.old, tt.example)
		text := strings.Replace(texts[tt.example], tt.old, tt.new, 1)
		found := wrongs(text)
		if !strings.Contains(strings.Join(found, "\n"), tt.want) {
			found, _ = settingsWrongs(t, text)
		}
		assert.Contains(t, strings.Join(found, "\n"), tt.want, tt.new)
	}
}
