package helm

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

const kubernetesFolder = "../kubernetes"

// kustomized is `kustomize build` of a folder.
func kustomized(t *testing.T, folder string) string {
	t.Helper()
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), folder)
	require.NoError(t, err, folder)
	text, err := built.AsYaml()
	require.NoError(t, err)
	return string(text)
}

// The base, each overlay and each combination of one with components has these objects; a cluster would take it, and
// the gateway its settings.
func TestKustomize(t *testing.T) {
	const (
		gateway  = "ConfigMap gateway, Deployment gateway, Service gateway"
		pods     = gateway + ", Role gateway, RoleBinding gateway, ServiceAccount gateway"
		replicas = pods + ", NetworkPolicy gateway, PodDisruptionBudget gateway, Service gateway-peers"
		servers  = gateway + ", Deployment etcd, Service etcd, Deployment nats, Service nats"
		vllm     = ", Deployment vllm-decode, Deployment vllm-prefill, PodDisruptionBudget vllm-decode, PodDisruptionBudget vllm-prefill"
		sglang   = ", Deployment sglang-decode, Deployment sglang-prefill, PodDisruptionBudget sglang-decode, PodDisruptionBudget sglang-prefill"
		watched  = ", Service gateway-metrics, ServiceMonitor gateway"
	)
	objects := map[string]string{
		"base": gateway + ", ConfigMap workers", "discovery": pods, "vllm": pods + vllm, "sglang": pods + sglang,
		"registry": servers + vllm, "registry-sglang": servers + sglang,
		"replicas": replicas, "production": replicas, "monitored": replicas + watched,
		"autoscaled":        pods + vllm + watched + ", ScaledObject decode, ScaledObject prefill",
		"autoscaled-sglang": pods + sglang + ", HorizontalPodAutoscaler decode, HorizontalPodAutoscaler prefill",
	}
	has := map[string][]string{
		"discovery": {"TANDEM_KUBERNETES_SELECTOR: "},
		"registry":  {"TANDEM_ETCD_ENDPOINTS: http://etcd:2379", "TANDEM_NATS_URL: nats://nats:4222"},
		"replicas": {"TANDEM_REPLICA_PEERS: tandem-gateway-peers:6222", "replicas: 3", "maxUnavailable: 0", "scheme: HTTPS",
			"topologyKey: topology.kubernetes.io/zone"},
	}
	folders, err := filepath.Glob(filepath.Join(kubernetesFolder, "overlays", "*"))
	require.NoError(t, err)
	combined, err := filepath.Glob(filepath.Join("testdata", "kustomize", "*")) // overlays with components next to them
	require.NoError(t, err)
	folders = append(append(folders, combined...), filepath.Join(kubernetesFolder, "base"))
	assert.Len(t, folders, len(objects))
	for _, folder := range folders {
		name := filepath.Base(folder)
		t.Run(name, func(t *testing.T) {
			text := kustomized(t, folder)
			wants(t, text, "tandem-", objects[name], nil, has[name])
			found, _ := settingsWrongs(t, text)
			assert.Empty(t, append(wrongs(text), found...))
			assert.Equal(t, name == "base", strings.Contains(text, "tandem-workers"), "the workers file")
		})
	}
}
